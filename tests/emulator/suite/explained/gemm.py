"""Mutants of CUTLASS's products that are missed or not run: by family and opcode, the reason for each place in the table."""

from __future__ import annotations

from tests.emulator.suite.explained import reasons
from tests.emulator.suite.explained.reasons import Places

UNSEEN: dict[tuple[str, str], tuple[int, ...]] = {
    # Turns of epilogues and of loads, and waits for the wrong phase at the end of a producer: who comes first decides.
    ("sm90 pingpong", "mbarrier.try_wait"): (10, 23, 27, 45),
    ("sm90 cooperative", "mbarrier.try_wait"): (3,),
    ("sm90 clusters", "mbarrier.try_wait"): (3,),
    ("sm90 full bias", "mbarrier.try_wait"): (1, 5, 25),
    ("sm90 stream-K", "mbarrier.try_wait"): (3,),
    ("sm90 fp8", "mbarrier.try_wait"): (11, 15),
    ("tree", "mbarrier.try_wait"): (17, 29, 35),
    # Two tiles of one block, which the case has not; fewer tiles of keys than it has.
    ("sm90 stream-K", "bar.sync"): (19,),
    ("sm90 stream-K", "cp.async.bulk.commit_group"): (0,),
    ("sm90 stream-K", "cp.async.bulk.wait_group"): (2, 3),
    # C is not read here; a warp comes late to the next tile's number; strides are those of the group behind; rows that the first
    # group must not have are written again.
    ("sm90 grouped", "cp.async.bulk.commit_group"): (1,),
    ("sm90 grouped", "cp.async.bulk.wait_group"): (4, 5),
    ("sm90 grouped", "ld.global"): (7, 10, 21, 22),
    ("sm90 grouped", "mbarrier.try_wait"): (14, 16, *range(23, 38, 2), 39, 44, 47, 55),
    ("sm90 grouped", "tensormap.replace"): (2,),
    # Two tiles of a block, or four, of which each has stages of its own; C is there before it is waited for; with another beta
    # no C orders the stores.
    ("tree Blackwell", "cp.async.bulk.wait_group"): (0, 1),
    ("tree Blackwell", "mbarrier.arrive"): (5,),
    ("tree Blackwell", "mbarrier.init"): (40, 41, 43, 44, 45, 47, 51, 55),
    ("tree Blackwell", "mbarrier.try_wait"): (14, 22, 27, 32, 37, 46, 72),
    ("sm100", "bar.sync"): (6, 10),
    ("sm100", "mbarrier.try_wait"): (14, 27, 32, 55, 72),
    ("sm100 two SMs", "mbarrier.init"): (36, 37, 39, 47),
    ("sm100 two SMs", "mbarrier.try_wait"): (32,),
}
"""Places of mutants that are right in the representative's case alone: other cases would notice them, so they count as missed."""
PLACES: Places = {
    # Before anything; behind the last turn and before the epilogue's first store, one of which suffices.
    ("sm80", "bar.sync"): dict.fromkeys((0, 3, 4), reasons.ORDERED),
    ("sm80", "cp.async.commit_group"): {3: reasons.NO_COPY},
    ("sm80", "cp.async.wait_all"): {0: reasons.NO_COPY},
    # Behind the stores of each part of a tile: they leave where C was loaded, and that has waits of its own. Waits: the turns of
    # the warp groups for their epilogues and of the loads; what a producer waits for at its end; the four stages of C, at first.
    ("sm90 pingpong", "bar.sync"): dict.fromkeys((3, 7, 11, 15), reasons.ORDERED),
    ("sm90 pingpong", "cp.async.bulk.wait_group"): dict.fromkeys((0, 1), reasons.FEW_PENDING),
    ("sm90 pingpong", "mapa"): dict.fromkeys(range(14), reasons.OWN_BLOCK),
    ("sm90 pingpong", "mbarrier.init"): dict.fromkeys((24, 25), reasons.NOBODY_WAITS),
    ("sm90 pingpong", "mbarrier.try_wait"): {
        **dict.fromkeys((10, 26, 27), reasons.TURNS),
        **dict.fromkeys((22, 23, 24, 44, 45, 46, 48, 50), reasons.TAIL),
        **dict.fromkeys((28, 30, 32, 34), reasons.FIRST_FILL),
    },
    ("sm90 pingpong", "wgmma.fence"): {1: reasons.SAME_SUMS},
    # Without C there is no pipeline of C, and nobody waits for the turn of its loads.
    ("sm90 cooperative", "bar.sync"): {7: reasons.ORDERED},
    ("sm90 cooperative", "mapa"): dict.fromkeys(range(2), reasons.OWN_BLOCK),
    ("sm90 cooperative", "mbarrier.arrive"): {1: reasons.NOBODY_WAITS},
    ("sm90 cooperative", "mbarrier.init"): dict.fromkeys((*range(8, 18), 19), reasons.NOBODY_WAITS),
    ("sm90 cooperative", "mbarrier.try_wait"): dict.fromkeys((2, 3, 4), reasons.TAIL),
    ("sm90 cooperative", "wgmma.fence"): {1: reasons.SAME_SUMS},
    ("sm90 clusters", "bar.sync"): {6: reasons.ORDERED},
    ("sm90 clusters", "mbarrier.arrive"): {1: reasons.NOBODY_WAITS},
    ("sm90 clusters", "mbarrier.init"): dict.fromkeys((*range(8, 18), 19), reasons.NOBODY_WAITS),
    ("sm90 clusters", "mbarrier.try_wait"): dict.fromkeys((2, 3), reasons.LATER_STAGE),
    ("sm90 clusters", "wgmma.fence"): {1: reasons.SAME_SUMS},
    ("sm90 full bias", "bar.sync"): dict.fromkeys((3, 7), reasons.ORDERED),
    ("sm90 full bias", "mapa"): dict.fromkeys(range(7), reasons.OWN_BLOCK),
    ("sm90 full bias", "mbarrier.init"): dict.fromkeys((20, 21), reasons.NOBODY_WAITS),
    ("sm90 full bias", "mbarrier.try_wait"): {
        **dict.fromkeys((0, 1), reasons.TURNS),
        **dict.fromkeys((4, 5, 6, 24, 25, 26, 28), reasons.TAIL),
    },
    ("sm90 full bias", "wgmma.fence"): {1: reasons.SAME_SUMS},
    # Around the flags by which blocks hand over parts of a tile; then as above.
    ("sm90 stream-K", "bar.sync"): {
        **dict.fromkeys((15, 19), reasons.ORDERED),
    },
    ("sm90 stream-K", "cp.async.bulk.commit_group"): {0: reasons.NEXT_GROUP},
    ("sm90 stream-K", "cp.async.bulk.wait_group"): dict.fromkeys(range(4), reasons.TWO_STORES),
    ("sm90 stream-K", "mapa"): dict.fromkeys(range(2), reasons.OWN_BLOCK),
    ("sm90 stream-K", "mbarrier.arrive"): {1: reasons.NOBODY_WAITS},
    ("sm90 stream-K", "mbarrier.init"): dict.fromkeys((*range(8, 18), 19), reasons.NOBODY_WAITS),
    ("sm90 stream-K", "mbarrier.try_wait"): dict.fromkeys((2, 3, 4), reasons.TAIL),
    ("sm90 stream-K", "wgmma.fence"): {1: reasons.SAME_SUMS},
    # As those above: of two stores a tile, the turns of two warp groups, and without C.
    ("sm90 fp8", "bar.sync"): dict.fromkeys((5, 9), reasons.ORDERED),
    ("sm90 fp8", "cp.async.bulk.commit_group"): {0: reasons.NEXT_GROUP},
    ("sm90 fp8", "cp.async.bulk.wait_group"): dict.fromkeys(range(4), reasons.TWO_STORES),
    ("sm90 fp8", "mapa"): dict.fromkeys(range(2), reasons.OWN_BLOCK),
    ("sm90 fp8", "mbarrier.arrive"): {5: reasons.NOBODY_WAITS},
    ("sm90 fp8", "mbarrier.init"): dict.fromkeys((*range(8, 18), 19), reasons.NOBODY_WAITS),
    ("sm90 fp8", "mbarrier.try_wait"): {
        11: reasons.TURNS,
        **dict.fromkeys((14, 15, 16), reasons.TAIL),
    },
    ("sm90 fp8", "wgmma.fence"): {1: reasons.SAME_SUMS},
    # As the pingpong product with C: a visitor loads it.
    ("tree", "bar.sync"): dict.fromkeys((5, 9), reasons.ORDERED),
    ("tree", "cp.async.bulk.wait_group"): dict.fromkeys(range(2), reasons.FEW_PENDING),
    ("tree", "mapa"): dict.fromkeys(range(8), reasons.OWN_BLOCK),
    ("tree", "mbarrier.init"): dict.fromkeys((20, 21), reasons.NOBODY_WAITS),
    ("tree", "mbarrier.try_wait"): {
        **dict.fromkeys((16, 17), reasons.TURNS),
        **dict.fromkeys((18, 20), reasons.FIRST_FILL),
        **dict.fromkeys((26, 28, 29, 30, 34, 35, 36), reasons.TAIL),
    },
    ("tree", "wgmma.fence"): {1: reasons.SAME_SUMS},
    # A map is written for each group. Waits: before the warp that finds the next tiles ends, the loads of C and of A and B.
    ("sm90 grouped", "bar.sync"): dict.fromkeys((3, 7), reasons.ORDERED),
    ("sm90 grouped", "cp.async.bulk.commit_group"): {
        **dict.fromkeys((0, 4), reasons.NO_BULK),
        3: reasons.EMPTY_GROUP,
        5: reasons.UNCOUNTED,
    },
    ("sm90 grouped", "cp.async.bulk.wait_group"): {
        **dict.fromkeys((0, 1, 10, 11), reasons.NO_BULK),
        **dict.fromkeys((2, 3), reasons.FEW_PENDING),
        7: reasons.EMPTY_GROUP,
        **dict.fromkeys((12, 13), reasons.UNCOUNTED),
    },
    ("sm90 grouped", "fence.proxy.async"): {
        **dict.fromkeys((0, 2), reasons.READ_BEFORE),
        **dict.fromkeys(range(4, 10), reasons.ORDINARY),
    },
    ("sm90 grouped", "mapa"): dict.fromkeys(range(11), reasons.OWN_BLOCK),
    ("sm90 grouped", "mbarrier.init"): dict.fromkeys((48, 49), reasons.NOBODY_WAITS),
    ("sm90 grouped", "mbarrier.try_wait"): {
        **dict.fromkeys((*range(22, 37, 2), 46, 48, 54, 56), reasons.TAIL),
        38: reasons.TURNS,
    },
    # Of each operand, at first and for each later group: two sizes and a stride, and then those of dimensions that it has not.
    ("sm90 grouped", "tensormap.replace"): {
        **dict.fromkeys((11, 16, 42, 47, 51, 52, 56), reasons.SAME_GROUPS),
        **{
            place: reasons.MAP_HAS
            for first in (1, 11, 22, 31, 42, 51)
            for place in (first + 2, first + 3, first + 4, first + 6, first + 7, first + 8)
        },
    },
    ("sm90 grouped", "wgmma.fence"): {1: reasons.SAME_SUMS},
    # Two barriers before the work begins. The warp that asks for the next tiles waits for the loads' turn, and for its stages before
    # it ends; the products wait for all stages of tensor memory, of which the last is behind the others.
    **{
        (family, change): places
        for family in ("tree Blackwell", "sm100")
        for change, places in {
            "fence.proxy.async": dict.fromkeys(range(5), reasons.READ_BEFORE),
            "mapa": dict.fromkeys(range(13), reasons.OWN_BLOCK),
            "mbarrier.init": dict.fromkeys(range(20, 22), reasons.NOBODY_WAITS),
            "mbarrier.test_wait": dict.fromkeys(range(4), reasons.TAIL),
        }.items()
    },
    ("tree Blackwell", "bar.sync"): dict.fromkeys((0, 1, 8, 12), reasons.ORDERED),
    ("tree Blackwell", "mbarrier.try_wait"): {
        0: reasons.ANSWERED,
        30: reasons.TURNS,
        **dict.fromkeys((26, 36, 38, 40), reasons.TAIL),
        **dict.fromkeys((52, 54, 56), reasons.LATER_STAGE),
    },
    ("sm100", "bar.sync"): dict.fromkeys((0, 1), reasons.ORDERED),
    ("sm100", "mbarrier.try_wait"): {
        0: reasons.ANSWERED,
        48: reasons.TURNS,
        **dict.fromkeys((26, 54, 56, 58), reasons.TAIL),
        **dict.fromkeys((38, 40, 42), reasons.LATER_STAGE),
    },
    ("sm100 two SMs", "fence.proxy.async"): dict.fromkeys(range(4), reasons.READ_BEFORE),
    ("sm100 two SMs", "mapa"): dict.fromkeys((1, 3), reasons.OWN_BLOCK),
    ("sm100 two SMs", "mbarrier.init"): dict.fromkeys(range(8, 16), reasons.NOBODY_WAITS),
    ("sm100 two SMs", "mbarrier.test_wait"): dict.fromkeys((0, 1), reasons.LATER_STAGE),
    ("sm100 two SMs", "mbarrier.try_wait"): {
        0: reasons.ANSWERED,
        **dict.fromkeys((38, 40, 42), reasons.LATER_STAGE),
    },
}
