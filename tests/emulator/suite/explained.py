"""Why mutants are missed: because they are redundant, or because the emulator does not model what they break."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """Why a mutant is right in all schedules.

    Attributes:
        why: The reason, in a sentence.
        redundant: Whether the kernel is right without the instruction on every GPU; else a GPU may be wrong, and the emulator
            does not know it.
    """

    why: str
    redundant: bool = False


_ORDER = "one instruction of one group of lanes runs at a time: memory is sequentially consistent"
UNUSED = Explanation(
    "no output depends on it: with NaN in its place all are the same", redundant=True
)
"""Of loads and stores that compute rows and columns which nobody stores; a run shows it (`Score.unused`)."""
NOT_MODELLED = {
    "bar.warp.sync": Explanation("lanes of a warp are in order"),
    "membar": Explanation(_ORDER),
    "fence.acq_rel": Explanation(_ORDER),
    "fence.sc": Explanation(_ORDER),
    "fence.mbarrier_init": Explanation(_ORDER),
    "mbarrier.inval": Explanation("mbarriers are records beside the memory that they lie in"),
    "fence.proxy.tensormap": Explanation(
        "tensor maps are read where they are, not through a cache"
    ),
    "tcgen05.fence": Explanation(_ORDER),
    "tcgen05.relinquish_alloc_permit": Explanation(
        "no other block allocates in a multiprocessor's"
    ),
    "griddepcontrol.wait": Explanation("a launch begins when the one before it has ended"),
    "griddepcontrol.launch_dependents": Explanation(
        "the end of a block lets others begin, too", redundant=True
    ),
}
"""Instructions whose absence nothing here shows (README.md, "What it does not know"), with the reason, in all families."""

_ORDERED = Explanation(
    "the barriers before and behind it order the same accesses of shared memory: the watched schedule finds none without an order",
    redundant=True,
)
EXPLAINED: dict[tuple[str, str], dict[int, Explanation]] = {
    # Before the tile of dS, of which the barriers around P have ordered the last reads; before the first stage and before the
    # memory in which dQ, dK and dV change their layout, which nobody has read since an earlier barrier.
    ("triton gradient", "bar.sync"): dict.fromkeys((6, 8, 20, 30, 32), _ORDERED),
}
"""By family and opcode: the places of the mutants that are missed, as the table has them, each with its reason."""
