"""Which recorded epilogues can be computed again from tensors, and as which views. Pure.

Inductor has the same epilogue again only if the operands are read by the same strides, and the results are
stored in the same order: `plan` says how, `inductor_plugin.replay` does it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

from inductor_plugin.problem.epilogue import STRUCTURE, Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import ParsedEpilogue

_THRESHOLD = "lt le gt ge eq ne logical_and logical_or logical_not isnan isinf"
_STEPPED = "round floor ceil trunc sign fmod"
_SMOOTH = (
    "add sub mul truediv maximum minimum relu neg abs square reciprocal sqrt rsqrt exp exp2 expm1 log log2 "
    "log10 log1p sigmoid tanh erf erfc lgamma sin cos tan asin acos atan sinh cosh asinh acosh atanh pow "
    "atan2 bitwise_and bitwise_or bitwise_not where to_dtype"
)
_JUMPS = frozenset(f"{_THRESHOLD} {_STEPPED}".split())
REPLAYED = _JUMPS.union(_SMOOTH.split())
"""Steps that can be computed again; their names are those of functions of torch."""
_READERS = 64
"""Each reader is a call in the graph; a network has a handful."""


class NotReplayableError(ValueError):
    """An epilogue cannot be computed again; the message says why."""


@dataclass(frozen=True)
class OperandRead:
    """A read of an operand.

    Attributes:
        operand: Its index among the epilogue's operands.
        strides: For each dimension of the product (dim, step): the stride of the operand's ``dim``, which
            may be unknown, or ``step`` where ``dim`` is -1. None if it is broadcast as it is.
        offset: Offset of the first element that is read.
    """

    operand: int
    strides: tuple[tuple[int, int], ...] | None
    offset: int


@dataclass(frozen=True)
class Write:
    """A result.

    Attributes:
        order: Order of the product's dimensions in which it is stored; empty for their own.
        size: Its sizes if they are not the product's own, of which the first may be unknown; else empty.
    """

    order: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The views of an epilogue.

    Attributes:
        shape: Sizes in which the steps are computed if a result splits a dimension, since Inductor iterates over
            the sizes of what it stores; else empty.
        reads: In the order of the epilogue's reads.
        writes: In the order of its writes.
    """

    shape: tuple[int, ...]
    reads: tuple[OperandRead, ...]
    writes: tuple[Write, ...]


def plan(recorded: ParsedEpilogue, operands: Sequence[Mapping[str, Any]]) -> Plan:
    """Return how an epilogue reads its operands and stores its results.

    Args:
        recorded: The epilogue.
        operands: Its own operands, each with ``size``, ``stride`` and ``offset``.

    Raises:
        NotReplayableError: It cannot be computed again.
    """
    epilogue = recorded.epilogue
    for reason in _reasons(epilogue):
        raise NotReplayableError(reason)
    writes = [_write(epilogue, *pair) for pair in zip(epilogue.writes, recorded.sizes, strict=True)]
    splits = [
        write.size for write in writes if not write.order and _splits(epilogue.size, write.size)
    ]
    return Plan(
        shape=splits[0] if splits else (),
        reads=tuple(_read(access, operands, epilogue.size) for access in epilogue.reads),
        writes=tuple(writes),
    )


def jumps(step: Step) -> bool:
    """Return whether a value next to a threshold may fall on either side of it."""
    whole = step.op == "to_dtype" and str(step.value).startswith(("int", "uint", "bool"))
    return whole or step.op in _JUMPS


def _reasons(epilogue: Epilogue) -> Iterator[str]:
    """Yield why an epilogue cannot be computed again."""
    if epilogue.reduction:
        yield f"its epilogue reduces ({epilogue.reduction})"
    if epilogue.atomic or epilogue.mutates:
        yield "its epilogue changes a tensor that was there before"
    if epilogue.product != "full":
        yield "its epilogue reads the product in another order than it has"
    if not epilogue.writes:
        yield "its epilogue writes nothing that is known"
    if epilogue.readers > _READERS:
        yield f"its product has {epilogue.readers} other readers"
    if not all(access.stride for access in (*epilogue.reads, *epilogue.writes)):
        yield "its epilogue has an index that strides do not say: a gather, a pad, a copy turned"
    yield from filter(None, map(_refused_step, epilogue.steps))


def _refused_step(step: Step) -> str | None:
    if step.op == "to_dtype_rounded":
        return "its epilogue rounds in between (emulate_precision_casts)"
    if step.op == "to_dtype" and not str(step.value).isidentifier():
        return f"its epilogue casts to {step.value!r}, which is no dtype"
    if step.op == "constant" and isinstance(step.value, str):
        return f"its epilogue has the number {step.value}, which is known at run time only"
    if step.op in STRUCTURE or step.op in REPLAYED:
        return None
    return f"this version cannot compute the step {step.op!r} of its epilogue"


def _read(
    access: Access, operands: Sequence[Mapping[str, Any]], size: tuple[int, ...]
) -> OperandRead:
    place = int(access.buffer.removeprefix("operand"))
    own, stride = operands[place]["size"], operands[place]["stride"]
    missing, steps = len(size) - len(own), _effective(size, access.stride)
    if access.offset == operands[place]["offset"] and missing >= 0:
        fits = all(n in (1, wide) for n, wide in zip(own, size[missing:], strict=True))
        if fits and (*(0,) * missing, *_effective(own, stride)) == steps:
            return OperandRead(place, None, 0)
    known = [(stride.index(n), n) if n > 1 and n in stride else (-1, n) for n in steps]
    return OperandRead(place, tuple(known), access.offset)


def _write(epilogue: Epilogue, access: Access, result: tuple[int, ...]) -> Write:
    """Return how a value of the product's sizes becomes a result at the strides of an access.

    Raises:
        NotReplayableError: It is neither transposed nor split.
    """
    size, wrong = (
        epilogue.size,
        f"it writes {'x'.join(map(str, result))}, which is no turned or split product",
    )
    if access.offset:
        raise NotReplayableError(wrong)
    if result == size:
        return Write((), ())
    strides = _effective(size, access.stride)
    order = tuple(sorted(range(len(size)), key=lambda dim: -strides[dim]))
    turned = tuple(size[dim] for dim in order)
    dense = [math.prod(turned[place + 1 :]) for place in range(len(turned))]
    if tuple(strides[dim] for dim in order) != _effective(turned, dense):
        raise NotReplayableError(wrong)
    order = () if order == tuple(range(len(size))) else order
    if result == turned:
        return Write(order, ())
    # With the same extents in another order, only strides could distinguish a transposed result from a view.
    if sorted(result) == sorted(turned) or math.prod(result) != math.prod(turned):
        raise NotReplayableError(wrong)
    return Write(order, result)


def _splits(product: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether each dimension of a product is one or several of a size, in order."""
    ends: set[int] = set(accumulate(reversed(size), mul))
    return len(size) > len(product) and ends.issuperset(accumulate(reversed(product), mul))


def _effective(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    return tuple(0 if n == 1 else step for n, step in zip(size, stride, strict=True))
