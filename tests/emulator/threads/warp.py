"""What the lanes of a warp do together: shuffles, votes, reductions, election."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.emulator.arithmetic import floats
from tests.emulator.arithmetic.arrays import F32, I64, U32, U64, Array, flat
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.threads.group import Group

_BITS = np.arange(32, dtype=np.uint64)
_ABSENT = 0xFFFFFFFF
_REDUCTIONS: dict[str, Any] = {
    "add": np.add.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


def _places(group: Group) -> tuple[int, Array | None]:
    """Return how many warps a group has, and the place of each lane in [warps * 32]; None if it has whole warps."""
    known = group.cache.get("warps")
    if known is None:
        lanes = group.lanes
        whole = group.n % 32 == 0 and not (lanes[::32] & 31).any()
        if whole and (lanes[31::32] - lanes[::32] == 31).all():
            known = (group.n // 32, None)
        else:
            warps, place = np.unique(lanes >> 5, return_inverse=True)
            known = (len(warps), place * 32 + (lanes & 31))
        group.cache["warps"] = known
    return known


def _spread(values: Any, group: Group, fill: Any = 0) -> Array:
    """Return values as [warps, 32], with ``fill`` for lanes that are not there."""
    values = group.all(values)
    count, places = _places(group)
    if places is None:
        return flat(values).reshape(-1, 32)
    result = np.full(count * 32, fill, values.dtype)
    result[places] = values
    return result.reshape(-1, 32)


def _gathered(values: Array, group: Group) -> Array:
    """Return [warps, 32] as values of the group's lanes."""
    _, places = _places(group)
    together = flat(values).reshape(-1)
    return together if places is None else together[places]


def _for_each_lane(words: Array, group: Group) -> Array:
    """Return a value of each warp for each of its lanes."""
    return _gathered(np.repeat(words[:, None], 32, 1), group)


def _here(group: Group, guard: Array | None) -> Array:
    """Return which lanes take part, as [warps, 32]."""
    return _spread(np.ones(group.n, bool) if guard is None else guard, group, fill=False)


def check_members(mask: Any, alive: Array, group: Group, guard: Array | None) -> None:
    """Check that an instruction runs in all lanes of each warp that it names.

    Lanes that have ended are waited for by nobody ("all non-exited threads", as the PTX ISA says of each ``.sync``).

    Args:
        mask: The membermask of each lane; None for all 32, which ``.aligned`` means, too.
        alive: Which lanes of the wave have not ended.
        group: The lanes that are here.
        guard: Which of them take part.

    Raises:
        FaultError: A lane that is named is elsewhere, or one that takes part does not name itself.
        UnmodelledError: Parts of a warp run one instruction with masks of their own.
    """
    is_plain = mask is None and guard is None
    if is_plain and (_places(group)[1] is None or "all here" in group.cache):
        return
    here = _here(group, guard)[:, None, :]
    living = alive.reshape(-1, 32)[np.unique(group.lanes >> 5)][:, None, :]
    named = np.ones((1, 1, 32), bool)
    if mask is not None:
        named = (_spread(mask, group).astype(U64)[:, :, None] >> _BITS & U64(1)).astype(bool)
    taking = here[:, 0, :, None]
    if (taking & named & living & ~here).any():
        raise FaultError("not all lanes of a warp are here that this instruction names")
    if (taking & ~named & np.eye(32, dtype=bool)).any():
        raise FaultError("a lane runs this instruction that its membermask does not name")
    if (taking & ~named & here).any():
        raise UnmodelledError("parts of a warp with membermasks of their own")
    if is_plain:
        group.cache["all here"] = True


def shuffle(mode: str, values: Any, b: Any, c: Any, group: Group) -> tuple[Array, Array]:
    """Return values of other lanes, and whether each lane's source is in its segment (``shfl.sync``).

    The bounds are those of the PTX ISA: ``c`` has a clamp in bits 0 to 4 and a mask of the segment in 8 to 12. What a lane
    that has ended would give is undefined there; here all bits are set.
    """
    x = _spread(values, group, fill=_ABSENT)
    b, c = (_spread(operand, group).astype(I64) for operand in (b, c))
    lane = np.arange(32, dtype=I64)
    clamp, segment = c & 31, c >> 8 & 31
    most = (lane & segment) | (clamp & ~segment)
    if mode == "idx":
        source = (lane & segment) | (b & 31 & ~segment)
        inside = source <= most
    elif mode == "up":
        source = lane - (b & 31)
        inside = source >= most
    elif mode == "down":
        source = lane + (b & 31)
        inside = source <= most
    else:
        source = lane ^ (b & 31)
        inside = source <= most
    source = np.where(inside, source, lane)
    return _gathered(np.take_along_axis(x, source, 1), group), _gathered(inside, group)


def vote(mode: str, predicate: Any, group: Group, guard: Array | None = None) -> Array:
    """Return ``all``, ``any`` or ``uni`` of the predicates, or (``ballot``) a word with a bit for each lane."""
    here = _here(group, guard)
    bits = _spread(predicate, group, fill=False) & here
    if mode == "ballot":
        words = (bits.astype(U64) << _BITS).sum(1).astype(U32)
    elif mode == "any":
        words = bits.any(1)
    else:
        words = np.logical_and.reduce(bits | ~here, axis=1)
        if mode == "uni":
            words = words | ~bits.any(1)
    return _for_each_lane(np.asarray(words), group)


def match(mode: str, values: Any, group: Group, guard: Array | None = None) -> tuple[Array, Array]:
    """Return which lanes have the same value, as bits: for ``any`` those, for ``all`` all lanes or none; and whether all have."""
    here = _here(group, guard)
    x = _spread(values, group)
    same = (x[:, :, None] == x[:, None, :]) & here[:, None, :]
    words = (same.astype(U64) << _BITS).sum(2).astype(U32)
    everyone = (here.astype(U64) << _BITS).sum(1).astype(U32)[:, None]
    agree = words == everyone
    if mode == "all":
        words = np.where(agree, everyone, U32(0))
    return _gathered(words, group), _gathered(agree, group)


def reduce(operation: str, values: Any, group: Group, guard: Array | None = None) -> Array:
    """Return the reduction of the values of each warp (``redux.sync``); ``min`` and ``max`` of float32 are of those that are numbers."""
    here, x = _here(group, guard), _spread(values, group)
    if x.dtype == F32:
        return _for_each_lane(_float_extreme(operation, np.where(here, x, F32(np.nan))), group)
    function = _REDUCTIONS[operation]
    results = [function(row[mask]) if mask.any() else 0 for row, mask in zip(x, here, strict=True)]
    return _for_each_lane(np.array(results, x.dtype), group)


def _float_extreme(operation: str, values: Array) -> Array:
    """Return the least or largest number of each row of float32; where there is none, the NaN of PTX. +0 is larger than -0."""
    function = floats.minimum if operation == "min" else floats.maximum
    lanes: list[Array] = [values[:, lane] for lane in range(32)]
    return functools.reduce(function, lanes)


def elect(group: Group, guard: Array | None = None) -> tuple[Array, Array]:
    """Return the number of the first lane of each warp, and which lane it is (``elect.sync``)."""
    first = _here(group, guard).argmax(1)
    elected = np.arange(32)[None, :] == first[:, None]
    return _for_each_lane(first.astype(U32), group), _gathered(elected, group)
