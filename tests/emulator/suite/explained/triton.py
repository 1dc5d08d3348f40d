"""Mutants of Triton's kernels that are missed or not run: by family and opcode, the reason for each place in the table."""

from __future__ import annotations

from tests.emulator.suite.explained import reasons
from tests.emulator.suite.explained.reasons import Places

PLACES: Places = {
    # Before the second and the third stage are filled for the first time; behind the wait at the end of a turn.
    ("triton Ampere", "bar.sync"): dict.fromkeys((0, 1, 3), reasons.ORDERED),
    ("triton Ampere", "cp.async.commit_group"): {0: reasons.NEXT_GROUP},
    ("triton Ampere", "cp.async.wait_group"): dict.fromkeys(range(2, 8), reasons.TWICE),
    ("triton Ampere", "ld.global"): {6: reasons.ZEROS},
    # As those of the products below; a block has one tile of keys.
    ("triton attention", "bar.sync"): {
        **dict.fromkeys((0, 5, 7), reasons.MAPS),
        **dict.fromkeys((1, 2, 4, 6, 8, 9, 11, 12, 13, 15), reasons.ORDERED),
    },
    ("triton attention", "cp.async.bulk.commit_group"): dict.fromkeys(range(3), reasons.NO_BULK),
    ("triton attention", "cp.async.bulk.wait_group"): dict.fromkeys(range(6), reasons.NO_BULK),
    ("triton attention", "fence.proxy.async"): {0: reasons.OTHER_PROXY},
    ("triton attention", "st.shared"): {2: reasons.MAP_LAYOUT},
    ("triton attention", "tensormap.replace"): {
        **dict.fromkeys((10, 12, 23, 25, 36, 38), reasons.CLEARED),
        **dict.fromkeys((9, 22, 35), reasons.NARROW_BOX),
    },
    ("triton attention", "wgmma.mma_async"): dict.fromkeys(
        (22, 23, 24, 25, 30, 31), reasons.NO_WEIGHT
    ),
    # Each of many barriers around copies; the last one before the mbarriers end is behind those of the last turn.
    ("triton fp8", "bar.sync"): {
        **dict.fromkeys((0, 2), reasons.MAPS),
        **dict.fromkeys((1, *range(3, 23)), reasons.ORDERED),
    },
    ("triton fp8", "cp.async.bulk.commit_group"): dict.fromkeys(range(2), reasons.NO_BULK),
    ("triton fp8", "cp.async.bulk.wait_group"): dict.fromkeys(range(4), reasons.NO_BULK),
    ("triton fp8", "st.shared"): {1: reasons.MAP_LAYOUT},
    ("triton fp8", "tensormap.replace"): dict.fromkeys((9, 10, 12, 22, 23, 25), reasons.CLEARED),
    # Of the tensor maps; then between mbarriers, copies and products, where an earlier or a later one stays.
    ("triton TMA", "bar.sync"): {
        **dict.fromkeys((0, 1, 2), reasons.MAPS),
        **dict.fromkeys((*range(3, 16), 19), reasons.ORDERED),
    },
    ("triton TMA", "cp.async.bulk.commit_group"): dict.fromkeys((0, 1), reasons.NO_BULK),
    ("triton TMA", "cp.async.bulk.wait_group"): dict.fromkeys((0, 1, 2, 3), reasons.NO_BULK),
    ("triton TMA", "wgmma.wait_group"): dict.fromkeys((4, 5), reasons.LAST_WAIT),
    ("triton TMA", "tensormap.replace"): {
        **dict.fromkeys((14, 16, 31, 33), reasons.CLEARED),
        **dict.fromkeys((13, 30), reasons.NARROW_BOX),  # without the type elements have a byte
    },
    ("triton TMA", "st.shared"): {1: reasons.MAP_LAYOUT},
    # As those of Hopper, and: before the stages are filled, and before the memory of an earlier tile's rows is written again.
    ("triton Blackwell", "bar.sync"): {
        **dict.fromkeys((2, 3, 4), reasons.MAPS),
        **dict.fromkeys((*range(5, 28), 35, 43, 44), reasons.ORDERED),
    },
    ("triton Blackwell", "cp.async.bulk.commit_group"): dict.fromkeys((0, 1), reasons.NO_BULK),
    ("triton Blackwell", "cp.async.bulk.wait_group"): dict.fromkeys((0, 1, 2, 3), reasons.NO_BULK),
    ("triton Blackwell", "tcgen05.st"): {0: reasons.FIRST_PRODUCT},
    ("triton Blackwell", "tensormap.replace"): {
        **dict.fromkeys((14, 16, 31, 33), reasons.CLEARED),
        **dict.fromkeys((13, 30), reasons.NARROW_BOX),
    },
    ("triton Blackwell", "st.shared"): {1: reasons.MAP_LAYOUT},
    # Before a block reads each row's sum of weights.
    ("triton attention decode", "bar.sync"): {13: reasons.OWN_ROWS},
    ("triton attention decode", "ld.shared"): {0: reasons.OTHER_MAXIMUM},
    ("triton attention decode", "st.shared"): {5: reasons.OTHER_MAXIMUM},
    # Before the tile of dS, of which the barriers around P have ordered the last reads; before the first stage and before the
    # memory in which dQ, dK and dV change their layout, which nobody has read since an earlier barrier.
    ("triton gradient", "bar.sync"): dict.fromkeys((6, 8, 20, 30, 32), reasons.ORDERED),
}
