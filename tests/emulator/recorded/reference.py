"""What float64 says of a recorded product, from the operands as a kernel reads them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from inductor_plugin.problem import Problem
from tests.support.triton.products.fp8 import spread
from tests.support.triton.products.int4 import unpacked


def exact(
    problem: Problem, operands: Mapping[str, torch.Tensor], ends: tuple[int, ...] = ()
) -> torch.Tensor:
    """Return the product.

    Args:
        problem: The call, without an epilogue.
        operands: Its operands by what they are for (`product.ROLES`), of any type.
        ends: Where the rows of each group end, if there are groups.
    """
    a, b = operands["a"].double(), operands["b"].double()
    c = operands["c"].double() if "c" in operands else None
    scalars = dict(problem.arguments)
    if problem.op == "scaled_mm":
        product = _scaled(a, operands["scale_a"]) @ _scaled(b, operands["scale_b"])
        return product if c is None else product + c
    if problem.op == "weight_int4pack_mm":
        return a @ _weight(operands["b"], operands["scales"], int(scalars["group"]))
    if ends:
        parts = zip((0, *ends), ends, b, strict=False)
        return torch.cat([a[first:end] @ each for first, end, each in parts])
    if c is None:
        return a @ b
    if "d" in operands:
        return a @ b + c @ operands["d"].double()
    alpha, beta = (float(scalars.get(name, "1")) for name in ("alpha", "beta"))
    product = alpha * (a @ b)
    return product + beta * c if beta else product  # else C is not read


def _scaled(matrix: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return a factor times its scale, or those of its rows, columns or blocks."""
    each = scale.double()
    return matrix * (each.reshape(()) if each.numel() == 1 else spread(each, *matrix.shape))


def _weight(packed: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """Return a weight of 4 bits as a kernel multiplies it: in bfloat16."""
    scale, zero = (scales[:, :, i].float().t().repeat_interleave(group, 1) for i in (0, 1))
    return ((unpacked(packed) - 8) * scale + zero).bfloat16().double().t()
