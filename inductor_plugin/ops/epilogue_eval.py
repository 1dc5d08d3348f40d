"""Computes an `Epilogue` with torch, where the library of its kernel is missing.

Everything is computed in float32 and rounded where it is stored, as the kernels and Inductor's own loops do
(`templates.cutlass.evt`): converting a value to a 16-bit float between two steps rounds nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_plugin.problem.epilogue import Epilogue, Step

_ROUNDED = ("float16", "bfloat16", "float32")
_TORCH: Any = torch


def _where(condition: Any, value: Any, other: Any) -> Any:
    return torch.where(condition, value, other)


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
"""Comparisons by the name in Inductor's ``ops``."""
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": torch.true_divide,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "relu": torch.relu,
    "neg": operator.neg,
    "abs": torch.abs,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "round": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    **COMPARISONS,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "logical_not": torch.logical_not,
    "where": _where,
}
"""By the name in Inductor's ``ops``."""


def evaluate(
    epilogue: Epilogue, product: torch.Tensor, operands: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Return the outputs of an epilogue, in the order of its writes.

    Args:
        epilogue: The epilogue; its sizes are ignored.
        product: D, [m, n] or [batch, m, n].
        operands: Tensors in the order of its reads; each can be expanded to D's sizes.

    Raises:
        ValueError: A step is not in `OPERATIONS`, or an operand is missing.
    """
    if len(operands) != len(epilogue.reads):
        raise ValueError(f"the epilogue reads {len(epilogue.reads)} tensors, not {len(operands)}")
    values: list[torch.Tensor] = []
    written: dict[int, torch.Tensor] = {}
    for step in epilogue.steps:
        value = _computed(step, product, operands, values)
        values.append(value)
        if step.op == "store" and isinstance(step.value, int):
            dtype = getattr(torch, epilogue.writes[step.value].dtype)
            written[step.value] = value.expand(product.shape).to(dtype)
    return tuple(written[place] for place in range(len(epilogue.writes)))


def _computed(
    step: Step,
    product: torch.Tensor,
    operands: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Return the value of one step."""
    arguments = [values[index] for index in step.arguments]
    if step.op == "product":
        return product if product.dtype == torch.int32 else product.float()
    if step.op == "load" and isinstance(step.value, int):
        return _widened(operands[step.value])
    if step.op == "constant":
        # Filled on the device: a copy from the host would synchronize, and fail in a CUDA graph capture.
        return torch.full((), _number(step), dtype=torch.float32, device=product.device)
    if step.op == "store":
        return arguments[0]
    if step.op == "to_dtype":
        dtype = str(step.value)
        return arguments[0].to(torch.float32 if dtype in _ROUNDED else getattr(torch, dtype))
    if step.op not in OPERATIONS:
        names = ", ".join(OPERATIONS)
        raise ValueError(f"nothing computes {step.op!r} here; use one of {names}")
    return OPERATIONS[step.op](*arguments)


def _number(step: Step) -> float:
    if not isinstance(step.value, (int, float)):
        raise ValueError(f"a constant is no number: {step.value!r}")  # noqa: TRY004 - as the others
    return float(step.value)


def _widened(operand: torch.Tensor) -> torch.Tensor:
    """Return an operand in the dtype of the computation: 16-bit floats in float32."""
    floating: bool = operand.dtype in (_TORCH.float16, _TORCH.bfloat16)
    return operand.float() if floating else operand
