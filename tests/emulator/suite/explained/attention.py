"""Mutants of CUTLASS's attention that are missed or not run: by family and opcode, the reason for each place in the table."""

from __future__ import annotations

from tests.emulator.suite.explained import reasons
from tests.emulator.suite.explained.reasons import Places

UNSEEN: dict[tuple[str, str], tuple[int, ...]] = {
    # Turns of the warp groups, and stages at a producer's end, by the wrong phase.
    ("fmha backward", "mbarrier.try_wait"): (29, 39, 43),
    ("fmha pingpong", "mbarrier.try_wait"): (20,),
}
"""Places of mutants that are right in the representative's case alone: other cases would notice them, so they count as missed."""
PLACES: Places = {
    # A pipeline of Q is not there for the gradients' reduction; the first product of P and V is waited for with the next one of
    # Q and K. Waits: the turns of the warp groups; those of the two warps that load; K and V at first.
    ("fmha pingpong", "mapa"): dict.fromkeys(range(5), reasons.OWN_BLOCK),
    ("fmha pingpong", "mbarrier.init"): dict.fromkeys(range(28, 36), reasons.NOBODY_WAITS),
    ("fmha pingpong", "mbarrier.try_wait"): {
        **dict.fromkeys((4, 5, 14, 15, 18, 28), reasons.TURNS),
        20: reasons.FIRST_FILL,
    },
    ("fmha pingpong", "wgmma.commit_group"): {1: reasons.NEXT_GROUP},
    # A block has one tile of Q, so that its stages are filled once; K and V at first; the turns of the warp groups.
    **{
        (family, change): places
        for family in ("fmha forward", "fmha 8 bits")
        for change, places in {
            "mapa": dict.fromkeys(range(3), reasons.OWN_BLOCK),
            "mbarrier.init": dict.fromkeys((3, 7, *range(28, 36), 37, 41), reasons.NOBODY_WAITS),
            "mbarrier.try_wait": {
                **dict.fromkeys((0, 2, 4, 6), reasons.FIRST_FILL),
                **dict.fromkeys((16, 17, 26, 27), reasons.TURNS),
            },
            "wgmma.commit_group": {1: reasons.NEXT_GROUP},
        }.items()
    },
    # The first tile of dQ. K and V are loaded once; stages are released behind the last tile, too.
    ("fmha backward", "cp.async.bulk.wait_group"): dict.fromkeys((0, 1), reasons.FEW_PENDING),
    ("fmha backward", "mapa"): dict.fromkeys(range(8), reasons.OWN_BLOCK),
    ("fmha backward", "mbarrier.arrive"): dict.fromkeys(range(17, 21), reasons.NOBODY_WAITS),
    ("fmha backward", "mbarrier.init"): dict.fromkeys((3, 7, 11, 15), reasons.NOBODY_WAITS),
    # The first loads; dO behind Q; the turns for P and for the epilogue; the first warp group's stages of dQ; their release, which
    # only an epilogue with shared memory would need: this one stores registers (store.cuh).
    ("fmha backward", "mbarrier.try_wait"): {
        **dict.fromkeys((0, 2, 4, 6, 8, 10), reasons.FIRST_FILL),
        14: reasons.RELEASED_TOGETHER,
        **dict.fromkeys((28, 42), reasons.TURNS),
        36: reasons.ONE_TURN_AHEAD,
        **dict.fromkeys((38, 40), reasons.TAIL),
    },
    # dV joins the group behind it. Waits: two for dV and dQ; that for dV alone, which the next tile's first wait is for as well.
    ("fmha backward", "wgmma.commit_group"): {2: reasons.NEXT_GROUP},
    ("fmha backward", "wgmma.fence"): dict.fromkeys((4, 5), reasons.FENCED),
    ("fmha backward", "wgmma.wait_group"): {
        **dict.fromkeys(range(4, 8), reasons.TWICE),
        **dict.fromkeys((8, 9), reasons.WAITED_AGAIN),
    },
}
