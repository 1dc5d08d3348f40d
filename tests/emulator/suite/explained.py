"""Why mutants are missed or not run: they are redundant, or the emulator does not model what they break."""

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


_ORDER = "one instruction of one group of lanes runs at a time: memory is sequentially consistent"
UNUSED = Explanation(
    "no output depends on it: with NaN and with large numbers in its place all are the same",
    redundant=True,
)
"""Of loads and stores that compute rows and columns which nobody stores; a run shows it (`Score.unused`)."""
NOT_MODELLED = {
    "bar.warp.sync": Explanation("lanes of a warp are in order"),
    "membar": Explanation(_ORDER),
    "fence.acq_rel": Explanation(_ORDER),
    "fence.sc": Explanation(_ORDER),
    "fence.mbarrier_init": Explanation(_ORDER),
    "mbarrier.inval": Explanation(
        "an mbarrier that never ends is a record beside the memory that it lies in"
    ),
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
_MAPS = Explanation(
    "the warp that writes and publishes a tensor map copies by it itself; other warps do so behind later barriers",
    redundant=True,
)
_NO_BULK = Explanation(
    "no bulk operation is pending: tensormap.cp_fenceproxy is over when it returns", redundant=True
)
_LAST_WAIT = Explanation("the wait of the last tile leaves no product pending", redundant=True)
_CLEARED = Explanation("it writes 0 into a map that was cleared", redundant=True)
_MAP_LAYOUT = Explanation("the layout of a tensor map in memory is not the hardware's")
_NARROW_BOX = Explanation(
    "a box narrower than its swizzle is refused: how it lies in shared memory is not known here"
)
_FIRST_PRODUCT = Explanation(
    "the first product of a tile does not add to what tensor memory has", redundant=True
)
_JOINED = Explanation(
    "races in global memory are not watched, and a block's warps have stored before the next block runs"
)
_PARTS = Explanation(
    "parts of a sum go from block to block through global memory, of which races are not watched, and the blocks run side by side"
)
_OWN_ROWS = Explanation(
    "each warp stores all rows, all warps the same, and reads what it has stored itself",
    redundant=True,
)
_OTHER_MAXIMUM = Explanation(
    "weights may be relative to any number near a row's largest score, and here that of another row is near enough"
)
_TWICE = Explanation(
    "either of two equal waits suffices: no group is committed in between", redundant=True
)
_NO_COPY = Explanation(
    "no copy is pending behind the last turn: the groups of the last turns are empty",
    redundant=True,
)
_NEXT_GROUP = Explanation(
    "its copies join the next group, for which the same waits wait", redundant=True
)
_ZEROS = Explanation(
    "the last part of K is empty in this case: its sums are zeros, those beside it as well"
)
_OTHER_PROXY = Explanation(
    "ordinary stores and a copy behind them write the same memory: only copies that read it are watched for their fence"
)
_NO_WEIGHT = Explanation(
    "the weights of its keys are 0 for its rows, which are masked: what V has there is any finite number"
)
_NOBODY_WAITS = Explanation(
    "nobody waits for a phase of this mbarrier that it would hold up: a pipeline or a turn that the kernel does not have",
    redundant=True,
)
_OWN_BLOCK = Explanation("a cluster has one block: the address is of its own", redundant=True)
_FIRST_FILL = Explanation("nobody has read a stage before its first fill", redundant=True)
_TAIL = Explanation(
    "what a producer waits for before it ends: a cluster has one block, which is there until its last warp ends",
    redundant=True,
)
_LATER_STAGE = Explanation(
    "the wait for the next stage is behind all arrivals at this one", redundant=True
)
_TURNS = Explanation(
    "which warps go first is for speed: the watched schedule finds no access that it orders",
    redundant=True,
)
_SAME_SUMS = Explanation(
    "no thread has touched the sums of a product since the products before it, all of one shape: PTX wants no fence",
    redundant=True,
)
_TWO_STORES = Explanation(
    "a tile has two stores, one of each buffer, and ends with a wait for both", redundant=True
)
_FEW_PENDING = Explanation("no more groups are pending than it allows", redundant=True)
_THIS_CASE = Explanation(
    "right in this case and these schedules alone: with other sizes, or another warp first, it hangs or races"
)
_UNSEEN: dict[tuple[str, str], tuple[int, ...]] = {
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
    ("fmha pingpong", "mbarrier.try_wait"): (20,),
}
"""Places of mutants that are right in the representative's case alone: other cases would notice them, so they count as missed."""
_REASONS: dict[tuple[str, str], dict[int, Explanation]] = {
    # Before anything; behind the last turn and before the epilogue's first store, one of which suffices.
    ("sm80", "bar.sync"): dict.fromkeys((0, 3, 4), _ORDERED),
    ("sm80", "cp.async.commit_group"): {3: _NO_COPY},
    ("sm80", "cp.async.wait_all"): {0: _NO_COPY},
    # Behind the stores of each part of a tile: they leave where C was loaded, and that has waits of its own. Waits: the turns of
    # the warp groups for their epilogues and of the loads; what a producer waits for at its end; the four stages of C, at first.
    ("sm90 pingpong", "bar.sync"): dict.fromkeys((3, 7, 11, 15), _ORDERED),
    ("sm90 pingpong", "cp.async.bulk.wait_group"): dict.fromkeys((0, 1), _FEW_PENDING),
    ("sm90 pingpong", "mapa"): dict.fromkeys(range(14), _OWN_BLOCK),
    ("sm90 pingpong", "mbarrier.init"): dict.fromkeys((24, 25), _NOBODY_WAITS),
    ("sm90 pingpong", "mbarrier.try_wait"): {
        **dict.fromkeys((10, 26, 27), _TURNS),
        **dict.fromkeys((22, 23, 24, 44, 45, 46, 48, 50), _TAIL),
        **dict.fromkeys((28, 30, 32, 34), _FIRST_FILL),
    },
    ("sm90 pingpong", "wgmma.fence"): {1: _SAME_SUMS},
    # Without C there is no pipeline of C, and nobody waits for the turn of its loads.
    ("sm90 cooperative", "bar.sync"): {7: _ORDERED},
    ("sm90 cooperative", "mapa"): dict.fromkeys(range(2), _OWN_BLOCK),
    ("sm90 cooperative", "mbarrier.arrive"): {1: _NOBODY_WAITS},
    ("sm90 cooperative", "mbarrier.init"): dict.fromkeys((*range(8, 18), 19), _NOBODY_WAITS),
    ("sm90 cooperative", "mbarrier.try_wait"): dict.fromkeys((2, 3, 4), _TAIL),
    ("sm90 cooperative", "wgmma.fence"): {1: _SAME_SUMS},
    ("sm90 clusters", "bar.sync"): {6: _ORDERED},
    ("sm90 clusters", "mbarrier.arrive"): {1: _NOBODY_WAITS},
    ("sm90 clusters", "mbarrier.init"): dict.fromkeys((*range(8, 18), 19), _NOBODY_WAITS),
    ("sm90 clusters", "mbarrier.try_wait"): dict.fromkeys((2, 3), _LATER_STAGE),
    ("sm90 clusters", "wgmma.fence"): {1: _SAME_SUMS},
    ("sm90 full bias", "bar.sync"): dict.fromkeys((3, 7), _ORDERED),
    ("sm90 full bias", "mapa"): dict.fromkeys(range(7), _OWN_BLOCK),
    ("sm90 full bias", "mbarrier.init"): dict.fromkeys((20, 21), _NOBODY_WAITS),
    ("sm90 full bias", "mbarrier.try_wait"): {
        **dict.fromkeys((0, 1), _TURNS),
        **dict.fromkeys((4, 5, 6, 24, 25, 26, 28), _TAIL),
    },
    ("sm90 full bias", "wgmma.fence"): {1: _SAME_SUMS},
    # Around the flags by which blocks hand over parts of a tile; then as above.
    ("sm90 stream-K", "bar.sync"): {
        **dict.fromkeys((1, 3, 5, 7, 9, 11), _PARTS),
        **dict.fromkeys((15, 19), _ORDERED),
    },
    ("sm90 stream-K", "cp.async.bulk.commit_group"): {0: _NEXT_GROUP},
    ("sm90 stream-K", "cp.async.bulk.wait_group"): dict.fromkeys(range(4), _TWO_STORES),
    ("sm90 stream-K", "mapa"): dict.fromkeys(range(2), _OWN_BLOCK),
    ("sm90 stream-K", "mbarrier.arrive"): {1: _NOBODY_WAITS},
    ("sm90 stream-K", "mbarrier.init"): dict.fromkeys((*range(8, 18), 19), _NOBODY_WAITS),
    ("sm90 stream-K", "mbarrier.try_wait"): dict.fromkeys((2, 3, 4), _TAIL),
    ("sm90 stream-K", "wgmma.fence"): {1: _SAME_SUMS},
    # As those above: of two stores a tile, the turns of two warp groups, and without C.
    ("sm90 fp8", "bar.sync"): dict.fromkeys((5, 9), _ORDERED),
    ("sm90 fp8", "cp.async.bulk.commit_group"): {0: _NEXT_GROUP},
    ("sm90 fp8", "cp.async.bulk.wait_group"): dict.fromkeys(range(4), _TWO_STORES),
    ("sm90 fp8", "mapa"): dict.fromkeys(range(2), _OWN_BLOCK),
    ("sm90 fp8", "mbarrier.arrive"): {5: _NOBODY_WAITS},
    ("sm90 fp8", "mbarrier.init"): dict.fromkeys((*range(8, 18), 19), _NOBODY_WAITS),
    ("sm90 fp8", "mbarrier.try_wait"): {11: _TURNS, **dict.fromkeys((14, 15, 16), _TAIL)},
    ("sm90 fp8", "wgmma.fence"): {1: _SAME_SUMS},
    # As the pingpong product with C: a visitor loads it.
    ("tree", "bar.sync"): dict.fromkeys((5, 9), _ORDERED),
    ("tree", "cp.async.bulk.wait_group"): dict.fromkeys(range(2), _FEW_PENDING),
    ("tree", "mapa"): dict.fromkeys(range(8), _OWN_BLOCK),
    ("tree", "mbarrier.init"): dict.fromkeys((20, 21), _NOBODY_WAITS),
    ("tree", "mbarrier.try_wait"): {
        **dict.fromkeys((16, 17), _TURNS),
        **dict.fromkeys((18, 20), _FIRST_FILL),
        **dict.fromkeys((26, 28, 29, 30, 34, 35, 36), _TAIL),
    },
    ("tree", "wgmma.fence"): {1: _SAME_SUMS},
    # A pipeline of Q is not there for the gradients' reduction; the first product of P and V is waited for with the next one of
    # Q and K. Waits: the turns of the warp groups; those of the two warps that load; K and V at first.
    ("fmha pingpong", "mapa"): dict.fromkeys(range(5), _OWN_BLOCK),
    ("fmha pingpong", "mbarrier.init"): dict.fromkeys(range(28, 36), _NOBODY_WAITS),
    ("fmha pingpong", "mbarrier.try_wait"): {
        **dict.fromkeys((4, 5, 14, 15, 18, 28), _TURNS),
        20: _FIRST_FILL,
    },
    ("fmha pingpong", "wgmma.commit_group"): {1: _NEXT_GROUP},
    # A block has one tile of Q, so that its stages are filled once; K and V at first; the turns of the warp groups.
    **{
        (family, change): places
        for family in ("fmha forward", "fmha 8 bits")
        for change, places in {
            "mapa": dict.fromkeys(range(3), _OWN_BLOCK),
            "mbarrier.init": dict.fromkeys((3, 7, *range(28, 36), 37, 41), _NOBODY_WAITS),
            "mbarrier.try_wait": {
                **dict.fromkeys((0, 2, 4, 6), _FIRST_FILL),
                **dict.fromkeys((16, 17, 26, 27), _TURNS),
            },
            "wgmma.commit_group": {1: _NEXT_GROUP},
        }.items()
    },
    # Before the second and the third stage are filled for the first time; behind the wait at the end of a turn.
    ("triton Ampere", "bar.sync"): {**dict.fromkeys((0, 1, 3), _ORDERED), 8: _JOINED},
    ("triton Ampere", "cp.async.commit_group"): {0: _NEXT_GROUP},
    ("triton Ampere", "cp.async.wait_group"): dict.fromkeys(range(2, 8), _TWICE),
    ("triton Ampere", "ld.global"): {6: _ZEROS},
    # As those of the products below; a block has one tile of keys.
    ("triton attention", "bar.sync"): {
        **dict.fromkeys((0, 5, 7), _MAPS),
        **dict.fromkeys((1, 2, 4, 6, 8, 9, 11, 12, 13, 15), _ORDERED),
    },
    ("triton attention", "cp.async.bulk.commit_group"): dict.fromkeys(range(3), _NO_BULK),
    ("triton attention", "cp.async.bulk.wait_group"): dict.fromkeys(range(6), _NO_BULK),
    ("triton attention", "fence.proxy.async"): {0: _OTHER_PROXY},
    ("triton attention", "st.shared"): dict.fromkeys(range(3), _MAP_LAYOUT),
    ("triton attention", "tensormap.replace"): {
        **dict.fromkeys((10, 12, 23, 25, 36, 38), _CLEARED),
        **dict.fromkeys((9, 22, 35), _NARROW_BOX),
    },
    ("triton attention", "wgmma.mma_async"): dict.fromkeys((22, 23, 24, 25, 30, 31), _NO_WEIGHT),
    # Each of many barriers around copies; the last one before the mbarriers end is behind those of the last turn.
    ("triton fp8", "bar.sync"): {
        **dict.fromkeys((0, 2), _MAPS),
        **dict.fromkeys((1, *range(3, 23)), _ORDERED),
    },
    ("triton fp8", "cp.async.bulk.commit_group"): dict.fromkeys(range(2), _NO_BULK),
    ("triton fp8", "cp.async.bulk.wait_group"): dict.fromkeys(range(4), _NO_BULK),
    ("triton fp8", "st.shared"): dict.fromkeys(range(2), _MAP_LAYOUT),
    ("triton fp8", "tensormap.replace"): dict.fromkeys((9, 10, 12, 22, 23, 25), _CLEARED),
    # Of the tensor maps; then between mbarriers, copies and products, where an earlier or a later one stays.
    ("triton TMA", "bar.sync"): {
        **dict.fromkeys((0, 1, 2), _MAPS),
        **dict.fromkeys((*range(3, 16), 19), _ORDERED),
    },
    ("triton TMA", "cp.async.bulk.commit_group"): dict.fromkeys((0, 1), _NO_BULK),
    ("triton TMA", "cp.async.bulk.wait_group"): dict.fromkeys((0, 1, 2, 3), _NO_BULK),
    ("triton TMA", "wgmma.wait_group"): dict.fromkeys((4, 5), _LAST_WAIT),
    ("triton TMA", "tensormap.replace"): {
        **dict.fromkeys((14, 16, 31, 33), _CLEARED),
        **dict.fromkeys((13, 30), _NARROW_BOX),  # without the type elements have a byte
    },
    ("triton TMA", "st.shared"): dict.fromkeys((0, 1), _MAP_LAYOUT),
    # As those of Hopper, and: before the stages are filled, and before the memory of an earlier tile's rows is written again.
    ("triton Blackwell", "bar.sync"): {
        **dict.fromkeys((2, 3, 4), _MAPS),
        **dict.fromkeys((*range(5, 28), 35, 43, 44), _ORDERED),
    },
    ("triton Blackwell", "cp.async.bulk.commit_group"): dict.fromkeys((0, 1), _NO_BULK),
    ("triton Blackwell", "cp.async.bulk.wait_group"): dict.fromkeys((0, 1, 2, 3), _NO_BULK),
    ("triton Blackwell", "tcgen05.st"): {0: _FIRST_PRODUCT},
    ("triton Blackwell", "tensormap.replace"): {
        **dict.fromkeys((14, 16, 31, 33), _CLEARED),
        **dict.fromkeys((13, 30), _NARROW_BOX),
    },
    ("triton Blackwell", "st.shared"): dict.fromkeys((0, 1), _MAP_LAYOUT),
    # Before a block says that it has stored its part; before it reads each row's sum of weights.
    ("triton attention decode", "bar.sync"): {10: _JOINED, 13: _OWN_ROWS},
    ("triton attention decode", "ld.shared"): {0: _OTHER_MAXIMUM},
    ("triton attention decode", "st.shared"): {5: _OTHER_MAXIMUM},
    # Before the tile of dS, of which the barriers around P have ordered the last reads; before the first stage and before the
    # memory in which dQ, dK and dV change their layout, which nobody has read since an earlier barrier.
    ("triton gradient", "bar.sync"): dict.fromkeys((6, 8, 20, 30, 32), _ORDERED),
}
"""By family and opcode: the reason for each place; `_UNSEEN` overrules it."""
EXPLAINED = {
    key: places | dict.fromkeys(_UNSEEN.get(key, ()), _THIS_CASE)
    for key, places in _REASONS.items()
}
"""By family and opcode: the places of the mutants that are missed or not run, as the table has them, each with its reason."""
