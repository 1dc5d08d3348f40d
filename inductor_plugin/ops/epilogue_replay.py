"""An epilogue of a record, replayed with torch in the dtypes of its graph.

`epilogue_eval.evaluate` rounds once, where a value is stored, as kernels do. Here each step has the
dtype of the graph: run eagerly, the result is what the model computes without Inductor; compiled,
Inductor lowers it to the same epilogue again, signature included.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from inductor_plugin.ops.epilogue_eval import COMPARISONS
from inductor_plugin.problem.epilogue import Epilogue, Step
from inductor_plugin.problem.epilogue_text import load
from inductor_plugin.problem.epilogue_views import OperandRead, Write, plan

_TORCH: Any = torch
_OPERATOR: Any = operator
SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": _OPERATOR.truediv,
    **COMPARISONS,
    "bitwise_and": _OPERATOR.and_,
    "bitwise_or": _OPERATOR.or_,
}
"""Steps with a Python operator, which takes numbers too; all others are functions of torch."""

_WIDENED = ("float16", "bfloat16", "float32", "float64")
"""Dtypes that ``wide`` replaces; rounding to eight bits is part of the computation."""
_CLAMPS = {"maximum": torch.clamp_min, "minimum": torch.clamp_max}
_TAKE_NUMBERS = {"where": (1, 2), "pow": (1,), "fmod": (1,)}
"""Functions of torch and their arguments that may be numbers."""


def replay(
    stored: Mapping[str, str], operands: Sequence[Mapping[str, Any]]
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function that computes a recorded epilogue.

    It takes the product, then the epilogue's operands. It returns the epilogue's outputs as the graph has
    stored them (transposed, or with a dimension split), then the product itself and a value for each of its
    further readers, if it had any. With ``wide=torch.float64`` it computes floating point values in that
    dtype and rounds nothing.

    Args:
        stored: The epilogue as the record stores it (`epilogue_text.dump`).
        operands: The epilogue's operands, each with ``size``, ``stride`` and ``offset`` as measured.

    Raises:
        ValueError: The text is of another version, or damaged, or the epilogue cannot be computed again.
    """
    recorded = load(stored)
    epilogue, views = recorded.epilogue, plan(recorded, operands)
    steps = _shared(epilogue.steps)

    further = _reader() if epilogue.readers > 1 else None

    def compute(
        product: torch.Tensor, *given: torch.Tensor, wide: torch.dtype | None = None
    ) -> tuple[torch.Tensor, ...]:
        whole = product.view(-1, *views.shape[1:]) if views.shape else product
        reads = [_seen(read, given[read.operand], product) for read in views.reads]
        if views.shape:
            reads = [read.expand_as(product).view_as(whole) for read in reads]
        written = _replayed(epilogue, steps, (whole, *reads), wide)
        results = [
            value if views.shape and write.size == views.shape else _stored(write, value, product)
            for write, value in zip(views.writes, written, strict=True)
        ]
        # Each further reader is a separate node; the first is the graph, which returns the product.
        results += [product] if epilogue.readers else []
        results += [further(product, index) for index in range(1, epilogue.readers) if further]
        return tuple(results)

    return compute


@functools.cache
def _reader() -> Callable[[torch.Tensor, int], torch.Tensor]:
    """Return an operator that acts as another reader of a product, which is then written also where it is fused."""

    @_TORCH.library.custom_op("inductor_plugin_repro::read", mutates_args=())
    def read(product: torch.Tensor, number: int) -> torch.Tensor:
        del number
        return product.new_zeros(1)

    @read.register_fake
    def _(product: torch.Tensor, number: int) -> torch.Tensor:
        del number
        return product.new_zeros(1)

    return read


def _seen(read: OperandRead, operand: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    if read.strides is None:
        return operand
    strides = [operand.stride(dim) if dim >= 0 else step for dim, step in read.strides]
    return torch.as_strided(operand, product.shape, strides, read.offset)


def _stored(write: Write, value: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    if value.numel() != product.numel():  # an operand alone
        if not (write.order or write.size):
            return value
        value = value.expand_as(product)
    value = value.view_as(product) if value.dim() != product.dim() else value
    value = value.permute(write.order).contiguous() if write.order else value
    return value.view(-1, *write.size[1:]) if write.size else value


def _shared(steps: Sequence[Step]) -> list[tuple[Step, tuple[int, ...], int]]:
    """Return each step with its arguments and the first step that is equal to it.

    Inductor repeats a value for each use; steps computed twice would be repeated twice as often.
    """
    first: dict[tuple[str, tuple[int, ...], str], int] = {}
    shared: list[tuple[Step, tuple[int, ...], int]] = []
    for index, step in enumerate(steps):
        arguments = tuple(shared[argument][2] for argument in step.arguments)
        equal = first.setdefault((step.op, arguments, repr(step.value)), index)
        shared.append((step, arguments, equal))
    return shared


def _replayed(
    epilogue: Epilogue,
    steps: Sequence[tuple[Step, tuple[int, ...], int]],
    inputs: Sequence[torch.Tensor],
    wide: torch.dtype | None,
) -> tuple[torch.Tensor, ...]:
    product, *reads = inputs
    values: list[Any] = []
    written: dict[int, torch.Tensor] = {}
    for index, (step, sources, equal) in enumerate(steps):
        arguments = [values[source] for source in sources]
        if equal != index:
            values.append(values[equal])
        elif step.op == "product":
            values.append(product)
        elif step.op == "load" and isinstance(step.value, int):
            values.append(reads[step.value])
        elif step.op == "constant":
            values.append(step.value)
        elif step.op == "store" and isinstance(step.value, int):
            dtype = wide or getattr(torch, epilogue.writes[step.value].dtype)
            written[step.value] = _tensor(arguments, 0, product).to(dtype)
            values.append(None)
        elif step.op == "to_dtype":
            dtype = wide if wide and step.value in _WIDENED else getattr(torch, str(step.value))
            values.append(_tensor(arguments, 0, product).to(dtype))
        else:
            values.append(_computed(step, arguments, product))
    return tuple(written[place] for place in sorted(written))


def _computed(step: Step, arguments: list[Any], product: torch.Tensor) -> Any:
    op = step.op
    tensors = [isinstance(value, torch.Tensor) for value in arguments]
    if op == "mul" and step.arguments[0] == step.arguments[1] and tensors[0]:
        return torch.square(arguments[0])  # as a product, Inductor would compute the value twice
    if op in SIGNS:
        # Python swaps a sum with the number first; the order is part of a signature.
        if not tensors[0] and (not tensors[1] or op in ("add", "mul")):
            arguments[0] = _tensor(arguments, 0, product)
        return SIGNS[op](*arguments)
    if op in _CLAMPS and tensors == [True, False]:
        return _CLAMPS[op](*arguments)
    for place in range(len(arguments)):
        if place not in _TAKE_NUMBERS.get(op, ()):
            arguments[place] = _tensor(arguments, place, product)
    return getattr(_TORCH, op)(*arguments)


def _tensor(arguments: Sequence[Any], place: int, product: torch.Tensor) -> torch.Tensor:
    """Return an argument as a tensor: a number in the dtype of the others."""
    value = arguments[place]
    if isinstance(value, torch.Tensor):
        return value
    others = [other.dtype for other in arguments if isinstance(other, torch.Tensor)]
    dtype = others[-1] if others else torch.float32
    return torch.full((), value, dtype=dtype, device=product.device)
