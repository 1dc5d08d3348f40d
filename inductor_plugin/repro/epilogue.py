"""The epilogue of a product, in Python. Pure.

Its steps are replayed from the record (`inductor_plugin.replay`). This module writes its reads and writes:
an operand by its name if it is broadcast, else by its strides, and a result transposed or with a dimension
split, as in the graph. Without that the compiled call would be another record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from inductor_plugin.problem.epilogue import STRUCTURE, Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import ParsedEpilogue
from inductor_plugin.repro import gate
from inductor_plugin.repro.call import Refused
from inductor_plugin.repro.operand import OperandText

_THRESHOLD = "lt le gt ge eq ne logical_and logical_or logical_not isnan isinf"
_STEPPED = "round floor ceil trunc sign fmod"
_SMOOTH = (
    "add sub mul truediv maximum minimum relu neg abs square reciprocal sqrt rsqrt exp exp2 expm1 log log2 "
    "log10 log1p sigmoid tanh erf erfc lgamma sin cos tan asin acos atan sinh cosh asinh acosh atanh pow "
    "atan2 bitwise_and bitwise_or bitwise_not where to_dtype"
)
_JUMPS = frozenset(f"{_THRESHOLD} {_STEPPED}".split())
REPLAYED = _JUMPS.union(_SMOOTH.split())
"""Steps that `inductor_plugin.replay` supports."""

_READERS = 64
"""Each reader is a line of the script; a graph has a handful."""


@dataclass(frozen=True)
class EpilogueText:
    """What follows a product, in Python.

    Attributes:
        names: Names of its operands, in the order of the record.
        lines: Lines of a function of ``product``, the operands and ``wide``.
        readers: Number of other readers of ``product``.
        jumps: Whether a value next to a threshold may fall on either side of it.
        outputs: Dtypes of the values it writes.
        dtype: Dtype of ``product``.
    """

    names: tuple[str, ...]
    lines: tuple[str, ...]
    readers: int
    jumps: bool
    outputs: tuple[str, ...]
    dtype: str


def epilogue_of(recorded: ParsedEpilogue, operands: Sequence[OperandText]) -> EpilogueText:
    """Return a recorded epilogue with its own operands.

    Raises:
        Refused: It cannot be written.
        ValueError: A dtype is not one that may become code (`gate`).
    """
    epilogue = recorded.epilogue
    for reason in _reasons(epilogue):
        raise Refused(reason)
    names = tuple(f"operand{index}" for index in range(len(operands)))
    # Inductor iterates over the sizes of a value that it stores: a split has to come before the steps.
    turned = [
        _turned(epilogue, *written) for written in zip(epilogue.writes, recorded.sizes, strict=True)
    ]
    splits = [
        size
        for size, text in zip(recorded.sizes, turned, strict=True)
        if _splits(epilogue.size, size) and text == _view(size)
    ]
    shape = splits[0] if splits else None
    whole, lines = ("shaped", [f"shaped = product{_view(shape)}"]) if shape else ("product", [])
    reads = [whole]
    for access in epilogue.reads:
        index = int(access.buffer.removeprefix("operand"))
        text = read_text(names[index], operands[index], epilogue.size, access)
        reads.append(f"{text}.expand_as(product).view_as(shaped)" if shape else text)
    back = ".view_as(product)" if shape else ""
    results = [
        f"written[{index}]{'' if size == shape else back + text}"
        for index, (text, size) in enumerate(zip(turned, recorded.sizes, strict=True))
    ]
    # Each further reader is a separate node; the first is the graph, which returns the product.
    results += ["product"] if epilogue.readers else []
    results += [f"read(product, {index})" for index in range(1, epilogue.readers)]
    lines.append(f"written = epilogue({', '.join(reads)}, wide=wide)")
    return EpilogueText(
        names=names,
        lines=(*lines, f"return {', '.join(results)}"),
        readers=epilogue.readers,
        jumps=any(map(_jumps, epilogue.steps)),
        outputs=tuple(gate.dtype(access.dtype) for access in epilogue.writes),
        dtype=gate.dtype(epilogue.dtype),
    )


def _turned(epilogue: Epilogue, access: Access, size: Sequence[int]) -> str:
    text = None if access.offset else write_text(epilogue.size, access.stride, size)
    if text is None:
        shape = "x".join(map(str, size))
        raise Refused(f"it writes {shape}, which is no turned or split product")
    return text


def _reasons(epilogue: Epilogue) -> Iterator[str]:
    """Yield why an epilogue cannot be replayed."""
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
    if step.op == "to_dtype" and step.value not in gate.DTYPES:
        return f"its epilogue casts to {step.value!r}, which is no dtype that this version knows"
    if step.op == "constant" and isinstance(step.value, str):
        return f"its epilogue has the number {step.value}, which is known at run time only"
    if step.op in STRUCTURE or step.op in REPLAYED:
        return None
    return f"this version cannot write the step {step.op!r} of its epilogue"


def _jumps(step: Step) -> bool:
    whole = step.op == "to_dtype" and str(step.value).startswith(("int", "uint", "bool"))
    return whole or step.op in _JUMPS


def read_text(name: str, operand: OperandText, size: tuple[int, ...], access: Access) -> str:
    """Return an expression for an operand that is read along a product of ``size``.

    It is its name where it is broadcast. Else sizes and strides that may be unknown are read from tensors.
    """
    missing, strides = len(size) - len(operand.size), _effective(size, access.stride)
    if access.offset == operand.offset and missing >= 0:
        fits = all(n in (1, wide) for n, wide in zip(operand.size, size[missing:], strict=True))
        if fits and (*(0,) * missing, *_effective(operand.size, operand.stride)) == strides:
            return name
    steps = [
        f"{name}.stride({operand.stride.index(step)})"
        if step > 1 and step in operand.stride
        else str(step)
        for step in strides
    ]
    return f"torch.as_strided({name}, product.shape, ({', '.join(steps)}), {access.offset})"


def write_text(size: tuple[int, ...], strides: Sequence[int], result: Sequence[int]) -> str | None:
    """Return the method calls that turn a value of ``size`` into a result with these strides; None if impossible."""
    if tuple(result) == size:
        return ""
    order = sorted(range(len(size)), key=lambda dim: -_effective(size, strides)[dim])
    turned = tuple(size[dim] for dim in order)
    dense = [math.prod(turned[place + 1 :]) for place in range(len(turned))]
    if _effective(turned, [strides[dim] for dim in order]) != _effective(turned, dense):
        return None
    text = "" if order == sorted(order) else f".permute({_list(order)}).contiguous()"
    if tuple(result) == turned:
        return text
    # With the same extents in another order, only strides could distinguish a transposed result from a view.
    if sorted(result) == sorted(turned) or math.prod(result) != math.prod(turned):
        return None
    return f"{text}{_view(result)}"


def _splits(product: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether each dimension of a product is one or several of a size, in order."""
    ends: set[int] = set(accumulate(reversed(size), mul))
    return len(size) > len(product) and ends.issuperset(accumulate(reversed(product), mul))


def _view(size: Sequence[int]) -> str:
    return f".view({_list([-1, *size[1:]])})"  # the first may be unknown


def _effective(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    return tuple(0 if n == 1 else step for n, step in zip(size, stride, strict=True))


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
