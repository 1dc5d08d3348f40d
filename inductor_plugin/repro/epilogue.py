"""The call of a product with its epilogue, in Python. Pure.

The steps of the epilogue are replayed from the record (`inductor_plugin.replay`). This module writes its
reads and writes: an operand by its name if it is broadcast, else by its strides, and a result transposed
or with a dimension split, as in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, get_args

from inductor_plugin.problem.epilogue import STRUCTURE, Access, Epilogue, Pattern, Step
from inductor_plugin.problem.epilogue_text import ParsedEpilogue
from inductor_plugin.repro import gate
from inductor_plugin.repro.call import CallText
from inductor_plugin.repro.operand import OperandText

_TRUTH = "lt le gt ge eq ne logical_and logical_or logical_not isnan isinf"
_STEPPED = "round floor ceil trunc sign fmod"
_SMOOTH = (
    "add sub mul truediv maximum minimum relu neg abs square reciprocal sqrt rsqrt exp exp2 expm1 log log2 "
    "log10 log1p sigmoid tanh erf erfc lgamma sin cos tan asin acos atan sinh cosh asinh acosh atanh pow "
    "atan2 bitwise_and bitwise_or bitwise_not where to_dtype"
)
_JUMPS = frozenset(f"{_TRUTH} {_STEPPED}".split())
REPLAYED = _JUMPS.union(_SMOOTH.split())
"""Steps that `inductor_plugin.replay` supports."""

_READERS = 64
"""Each reader is a line of the script; a graph has a handful."""

Parts: TypeAlias = tuple[tuple[int, int], ...]


def with_epilogue(
    product: CallText,
    operands: Sequence[OperandText],
    recorded: ParsedEpilogue,
    *,
    dynamic: bool = False,
) -> CallText | str:
    """Return a call with its epilogue, or why it cannot be written.

    Args:
        product: The call without its epilogue.
        operands: All operands; those of the epilogue are the last.
        recorded: The epilogue, as in the record.
        dynamic: Whether a size is unknown when the call is compiled.

    Raises:
        ValueError: A dtype or pattern is not one that may become code (`gate`).
    """
    epilogue = recorded.epilogue
    if reason := _refused(epilogue):
        return reason
    size, parts = _parts(recorded)
    view = _view(size, parts, dynamic=dynamic)
    whole = "shaped" if view else "product"
    more = operands[len(product.names) :]
    patterns = {access.buffer: access.pattern for access in reversed(epilogue.reads)}
    kinds = [
        gate.word(patterns[f"operand{index}"], get_args(Pattern), "pattern")
        for index in range(len(more))
    ]
    names = [f"{'operand' if kind == 'other' else kind}{i}" for i, kind in enumerate(kinds)]
    arguments = [whole]
    for access in epilogue.reads:
        index = int(access.buffer.removeprefix("operand"))
        strides = _strides(access, size, parts)
        unknown = f"{whole}.shape" if dynamic else ""
        arguments.append(
            read_text(names[index], more[index], size, strides, access.offset, unknown=unknown)
        )
    results: list[str] = []
    for index, (access, extents) in enumerate(zip(epilogue.writes, recorded.sizes, strict=True)):
        strides = _strides(access, size, parts)
        result = None if access.offset else write_text(size, strides, extents)
        if result is None:
            return f"it writes {'x'.join(map(str, extents))}, which is no turned or split product"
        results.append(f"written[{index}]{result}")
    if epilogue.readers:
        results.append("product")
    # Each further reader is a separate node; the first is the graph, which returns the product.
    results += [f"read(product, {index})" for index in range(1, epilogue.readers)]
    views = (f"shaped = {view}",) if view else ()
    call, last = f"written = epilogue({', '.join(arguments)}", f"return {', '.join(results)}"
    return replace(
        product,
        names=(*product.names, *names),
        lines=(*views, f"{call})", last),
        exact_lines=(*views, f"{call}, wide=WIDE)", last),
        readers=epilogue.readers,
        jumps=_jumps(epilogue),
        outputs=tuple(gate.dtype(access.dtype) for access in epilogue.writes),
        dtype=gate.dtype(epilogue.dtype),
    )


def _refused(epilogue: Epilogue) -> str | None:
    """Return why an epilogue cannot be replayed, or None."""
    accesses = (*epilogue.reads, *epilogue.writes)
    reasons = {
        f"its epilogue reduces ({epilogue.reduction})": bool(epilogue.reduction),
        "its epilogue changes a tensor that was there before": epilogue.atomic or epilogue.mutates,
        "its epilogue reads the product in another order than it has": epilogue.product != "full",
        "its epilogue writes nothing that is known": not epilogue.writes,
        f"its product has {epilogue.readers} other readers": epilogue.readers > _READERS,
        "its epilogue has an index that strides do not say: a gather, a pad, a copy turned": any(
            not access.stride for access in accesses
        ),
    }
    applying = (reason for reason, holds in reasons.items() if holds)
    return next(applying, None) or next(filter(None, map(_refused_step, epilogue.steps)), None)


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


def _jumps(epilogue: Epilogue) -> bool:
    """Return whether a value next to a threshold may fall on either side of it."""
    return any(
        step.op in _JUMPS
        or (step.op == "to_dtype" and str(step.value).startswith(("int", "uint", "bool")))
        for step in epilogue.steps
    )


def _parts(recorded: ParsedEpilogue) -> tuple[tuple[int, ...], Parts]:
    """Return the extents an epilogue iterates over: the product's, or those of a result that splits them."""
    product = recorded.epilogue.size
    for access, size in zip(recorded.epilogue.writes, recorded.sizes, strict=True):
        parts = split(product, size)
        if parts is not None and _strides(access, size, parts) == _dense(size):
            return tuple(size), parts
    return product, tuple((dim, 1) for dim in range(len(product)))


def split(product: Sequence[int], size: Sequence[int]) -> Parts | None:
    """Return extents as parts of the product's: its dimension, and how many elements along it a step is.

    None if they do not split each dimension of the product into one or several. Example: 6x8 as 2x3x8
    is (0, 3), (0, 1), (1, 1).
    """
    parts: list[tuple[int, int]] = []
    for dim, extent in enumerate(product):
        start, left = len(parts), extent
        while len(parts) < len(size) and (left > 1 or len(parts) == start):
            left, odd = divmod(left, size[len(parts)] or 1)
            if odd:
                return None
            parts.append((dim, left))
        if left != 1:
            return None
    return tuple(parts) if len(parts) == len(size) else None


def _view(size: Sequence[int], parts: Parts, *, dynamic: bool) -> str:
    """Return the product with its dimensions split; empty if none is."""
    if all(step == 1 for _, step in parts):
        return ""
    extents = [str(extent) for extent in size]
    dims = [dim for dim, _ in parts]
    for place, dim in enumerate(dims if dynamic else ()):
        if dims.count(dim) == 1:
            extents[place] = f"product.shape[{dim}]"
        elif dims.index(dim) == place and "-1" not in extents:
            extents[place] = "-1"
    return f"product.view({', '.join(extents)})"


def read_text(
    name: str,
    operand: OperandText,
    size: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    *,
    unknown: str = "",
) -> str:
    """Return an expression for an operand that is read at strides along ``size``, zero if it is broadcast.

    ``unknown`` is an expression for ``size`` if an extent is unknown; then strides are symbolic too.
    """
    missing = len(size) - len(operand.size)
    if offset == operand.offset and missing >= 0:
        fits = all(n in (1, wide) for n, wide in zip(operand.size, size[missing:], strict=True))
        if fits and (*(0,) * missing, *_effective(operand.size, operand.stride)) == strides:
            return name
    if not unknown:
        return f"torch.as_strided({name}, {size}, {strides}, {offset})"
    named = (
        f"{name}.stride({operand.stride.index(step)})"
        if step > 1 and step in operand.stride
        else str(step)
        for step in strides
    )
    return f"torch.as_strided({name}, {unknown}, ({', '.join(named)}), {offset})"


def write_text(
    size: tuple[int, ...], strides: tuple[int, ...], result: Sequence[int]
) -> str | None:
    """Return the method calls that turn a value of ``size`` into a result with these strides; None if impossible."""
    if tuple(result) == size:
        return ""
    order = sorted(range(len(size)), key=lambda dim: -strides[dim])
    turned = tuple(size[dim] for dim in order)
    if tuple(strides[dim] for dim in order) != _dense(turned):
        return None
    text = "" if order == sorted(order) else f".permute({_list(order)}).contiguous()"
    if tuple(result) == turned:
        return text
    # With the same extents in another order, only strides could distinguish a transposed result from a view.
    if sorted(result) == sorted(turned) or math.prod(result) != math.prod(turned):
        return None
    return f"{text}.view({_list(result)})"


def _strides(access: Access, size: Sequence[int], parts: Parts) -> tuple[int, ...]:
    return _effective(size, [access.stride[dim] * step for dim, step in parts])


def _dense(size: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor in C order; zero where the extent is 1."""
    return _effective(size, [math.prod(size[place + 1 :]) for place in range(len(size))])


def _effective(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    return tuple(0 if n == 1 else step for n, step in zip(size, stride, strict=True))


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
