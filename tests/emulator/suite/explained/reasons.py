"""Reasons for which mutants are missed or not run: they are redundant, or the emulator does not model what they break."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """Why a mutant is right in all schedules, or cannot be run.

    Attributes:
        why: The reason, in a sentence.
        redundant: Whether the kernel is right without the instruction on every GPU; else a GPU may be wrong, and the emulator
            does not know it.
    """

    why: str
    redundant: bool = False


Places = dict[tuple[str, str], dict[int, Explanation]]
"""Reasons by family and opcode, and by place."""
ORDER = (
    "other fences or barriers order what lies before it, or nothing here does: memory is sequentially consistent, and the watched "
    "schedule knows what fences order by flags and relaxed arrivals alone"
)
UNUSED = Explanation(
    "no output depends on it: with NaN and with large numbers in its place all are the same",
    redundant=True,
)
"""Of loads and stores that compute rows and columns which nobody stores; a run shows it (`Score.unused`)."""
NOT_MODELLED = {
    "bar.warp.sync": Explanation("lanes of a warp are in order"),
    "membar": Explanation(ORDER),
    "fence.acq_rel": Explanation(ORDER),
    "fence.sc": Explanation(ORDER),
    "fence.mbarrier_init": Explanation(ORDER),
    "mbarrier.inval": Explanation(
        "an mbarrier that never ends is a record beside the memory that it lies in"
    ),
    "fence.proxy.tensormap": Explanation(
        "tensor maps are read where they are, not through a cache"
    ),
    "tcgen05.fence": Explanation(ORDER),
    "tcgen05.relinquish_alloc_permit": Explanation(
        "no other block allocates in a multiprocessor's"
    ),
    "griddepcontrol.wait": Explanation("a launch begins when the one before it has ended"),
    "griddepcontrol.launch_dependents": Explanation(
        "the end of a block lets others begin, too", redundant=True
    ),
}
"""Instructions whose absence nothing here shows (README.md, "What it does not know"), with the reason, in all families."""

ORDERED = Explanation(
    "the barriers before and behind it order the same accesses of shared memory: the watched schedule finds none without an order",
    redundant=True,
)
MAPS = Explanation(
    "the warp that writes and publishes a tensor map copies by it itself; other warps do so behind later barriers",
    redundant=True,
)
NO_BULK = Explanation(
    "no bulk operation is pending: tensormap.cp_fenceproxy is over when it returns", redundant=True
)
LAST_WAIT = Explanation("the wait of the last tile leaves no product pending", redundant=True)
CLEARED = Explanation("it writes 0 into a map that was cleared", redundant=True)
MAP_LAYOUT = Explanation("the layout of a tensor map in memory is not the hardware's")
NARROW_BOX = Explanation(
    "a box narrower than its swizzle is refused: how it lies in shared memory is not known here"
)
FIRST_PRODUCT = Explanation(
    "the first product of a tile does not add to what tensor memory has", redundant=True
)
OWN_ROWS = Explanation(
    "each warp stores all rows, all warps the same, and reads what it has stored itself",
    redundant=True,
)
OTHER_MAXIMUM = Explanation(
    "weights may be relative to any number near a row's largest score, and here that of another row is near enough"
)
TWICE = Explanation(
    "either of two equal waits suffices: no group is committed in between", redundant=True
)
NO_COPY = Explanation(
    "no copy is pending behind the last turn: the groups of the last turns are empty",
    redundant=True,
)
NEXT_GROUP = Explanation(
    "its copies join the next group, for which the same waits wait", redundant=True
)
ZEROS = Explanation(
    "the last part of K is empty in this case: its sums are zeros, those beside it as well"
)
OTHER_PROXY = Explanation(
    "ordinary stores and a copy behind them write the same memory: only copies that read it are watched for their fence"
)
READ_BEFORE = Explanation(
    "ordinary loads and an asynchronous write behind them of the same memory: only copies that read are watched for their fence"
)
ORDINARY = Explanation(
    "ordinary loads and stores alone, which mbarriers order, have the memory of the next tiles",
    redundant=True,
)
MAP_HAS = Explanation(
    "a map of two dimensions: the host has set the sizes of the others to 1, and their strides are not read",
    redundant=True,
)
UNCOUNTED = Explanation(
    "copies that mbarriers complete are in no bulk group in PTX, and CUTLASS waits all the same before it changes their maps"
)
EMPTY_GROUP = Explanation(
    "its group is empty: what is pending is in the groups before it, for which the wait waits",
    redundant=True,
)
SAME_GROUPS = Explanation(
    "the map has it from the group before: groups differ in their rows alone", redundant=True
)
ANSWERED = Explanation(
    "the loads of the next tile wait for its number, and the warp that asks for it has waited for theirs",
    redundant=True,
)
NO_WEIGHT = Explanation(
    "the weights of its keys are 0 for its rows, which are masked: what V has there is any finite number"
)
NOBODY_WAITS = Explanation(
    "nobody waits for a phase of this mbarrier that it would hold up: a pipeline or a turn that the kernel does not have",
    redundant=True,
)
OWN_BLOCK = Explanation(
    "the address is of the block's own: a cluster has one block, or only its first block does this",
    redundant=True,
)
FIRST_FILL = Explanation("nobody has read a stage before its first fill", redundant=True)
TAIL = Explanation(
    "what a producer waits for before it ends: a cluster has one block, which is there until its last warp ends",
    redundant=True,
)
LATER_STAGE = Explanation(
    "the wait for the next stage is behind all arrivals at this one", redundant=True
)
TURNS = Explanation(
    "which warps go first is for speed: the watched schedule finds no access that it orders",
    redundant=True,
)
SAME_SUMS = Explanation(
    "no thread has touched the sums of a product since the products before it, all of one shape: PTX wants no fence",
    redundant=True,
)
TWO_STORES = Explanation(
    "a tile has two stores, one of each buffer, and ends with a wait for both", redundant=True
)
FEW_PENDING = Explanation("no more groups are pending than it allows", redundant=True)
WAITED_AGAIN = Explanation(
    "what it waits for is waited for again, before anybody touches the operands or the sums of it",
    redundant=True,
)
FENCED = Explanation(
    "no thread has touched its sums since a fence of other products, and all products of these sums are of one shape",
    redundant=True,
)
RELEASED_TOGETHER = Explanation(
    "its readers release it with the stage before it, behind their last reads of both, and that has been waited for",
    redundant=True,
)
ONE_TURN_AHEAD = Explanation(
    "it stores nothing, and its turns keep it less than two stages ahead of the warp group that does",
    redundant=True,
)
THIS_CASE = Explanation(
    "right in this case and these schedules alone: with other sizes, or another warp first, it hangs or races"
)
