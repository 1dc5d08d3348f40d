"""Mutants of CUTLASS's attention that are missed or not run: by family and opcode, the reason for each place in the table."""

from __future__ import annotations

from tests.emulator.suite.explained import reasons
from tests.emulator.suite.explained.reasons import Places

UNSEEN: dict[tuple[str, str], tuple[int, ...]] = {
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
}
