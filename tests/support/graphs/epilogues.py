"""The epilogues a CUTLASS kernel is expected to fuse, as functions of a product and operands."""

# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.overrides import TorchFunctionMode

from inductor_plugin.problem.epilogue import Epilogue
from tests.support.graphs.with_epilogues import Shape, lowered

M, N, K = 256, 512, 128
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One epilogue.

    Attributes:
        name: For people.
        function: Takes the product and operands.
        operands: How each is broadcast to D: ``row``, ``column``, ``full``, ``scalar`` (float32).
        readers: How many readers the product has besides the function.
    """

    name: str
    function: Callable[..., Tensors]
    operands: tuple[str, ...] = ()
    readers: int = 0

    def shapes(self, dtype: torch.dtype) -> list[Shape]:
        """Return the operands for a product of a dtype."""
        sizes = {"row": (N,), "column": (M, 1), "full": (M, N), "scalar": ()}
        return [
            Shape(sizes[name], torch.float32 if name == "scalar" else dtype)
            for name in self.operands
        ]

    def graph(self, dtype: torch.dtype) -> tuple[Callable[..., Tensors], list[Shape]]:
        """Return the function of A, B and operands, and the shapes of its arguments."""

        def called(a: torch.Tensor, b: torch.Tensor, *operands: torch.Tensor) -> Tensors:
            return self.function(torch.mm(a, b), *operands)

        return called, [Shape((M, K), dtype), Shape((K, N), dtype), *self.shapes(dtype)]


@functools.cache
def epilogue_of(case: Case, dtype: torch.dtype) -> Epilogue:
    """Return Inductor's epilogue of a case; lowered once a process."""
    function, shapes = case.graph(dtype)
    epilogue, _ = lowered(function, shapes, case.readers)
    return epilogue


class _WholeGelu(TorchFunctionMode):
    """Computes gelu by its formula: torch's on a CPU returns NaN for infinity."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.gelu and not kwargs:
            (x,) = args
            return x * 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        return func(*args, **(kwargs or {}))


def eager(
    case: Case, product: torch.Tensor, operands: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the result of a case in eager mode, with 16-bit operands converted to float32."""
    whole = [
        operand.float() if operand.dtype in (torch.float16, torch.bfloat16) else operand
        for operand in operands
    ]
    with torch.no_grad(), _WholeGelu():
        return list(case.function(product, *whole))


def _before_and_after(p: torch.Tensor, bias: torch.Tensor) -> Tensors:
    summed = p + bias
    return summed, F.gelu(summed)


def _fp8(dtype: torch.dtype) -> Callable[..., Tensors]:
    most = torch.finfo(dtype).max
    return lambda p, s: ((p.float() * s).clamp(-most, most).to(dtype),)


def _cut_before_others(p: torch.Tensor, s: torch.Tensor) -> Tensors:
    scaled = (p.float() * s).clamp(-128, 127)
    return scaled.to(torch.int8), scaled * 0.3


CASES = (
    Case("bias_row", lambda p, r: (p + r,), ("row",)),
    Case("bias_column", lambda p, c: (p + c,), ("column",)),
    Case("bias_full", lambda p, f: (p + f,), ("full",)),
    Case("bias_scalar", lambda p, s: (p + s,), ("scalar",)),
    Case("scale_tensor", lambda p, s: (p * s,), ("scalar",)),
    Case("scale_constant", lambda p: (p * 0.125,)),
    Case("relu", lambda p: (F.relu(p),)),
    Case("gelu", lambda p, r: (F.gelu(p + r),), ("row",)),
    Case("gelu_tanh", lambda p, r: (F.gelu(p + r, approximate="tanh"),), ("row",)),
    Case("silu", lambda p: (F.silu(p),)),
    Case("sigmoid", lambda p: (torch.sigmoid(p),)),
    Case("tanh", lambda p: (torch.tanh(p),)),
    Case("hardswish", lambda p: (F.hardswish(p),)),
    Case("residual", lambda p, r, f: (F.relu(p + r) + f,), ("row", "full")),
    Case("gate", lambda p, f: (F.silu(p) * f,), ("full",)),
    Case("gate_two", lambda p, r, f, g: (torch.sigmoid(p + r) * f + g,), ("row", "full", "full")),
    Case("fp8_e4m3", _fp8(torch.float8_e4m3fn), ("scalar",)),
    Case("fp8_e5m2", _fp8(torch.float8_e5m2), ("scalar",)),
    Case(
        "int8",
        lambda p, s: ((p.float() * s).round().clamp(-128, 127).to(torch.int8),),
        ("scalar",),
    ),
    Case("before_and_after", _before_and_after, ("row",)),
    Case("product_kept", lambda p, f: (F.relu(p) + f,), ("full",), readers=1),
)
"""All that are compiled for sm_90a (`benchmarks.fusion.evt_compile`)."""

MORE = (
    Case("leaky_relu", lambda p: (F.leaky_relu(p, 0.1),)),
    Case("clamp", lambda p: (p.clamp(-1, 6),)),
    Case("elu", lambda p: (F.elu(p),)),
    Case("mish", lambda p: (F.mish(p),)),
    Case("softplus", lambda p: (F.softplus(p),)),
    Case("relu_backward", lambda p, f: (torch.where(f > 0, p, 0.0),), ("full",)),
    Case("mask", lambda p, f: (p * ((f > 0) & (f < 1)).to(p.dtype),), ("full",)),
    Case("norm", lambda p, c, r: ((p - c) * torch.rsqrt(r.abs() + 1e-5),), ("column", "row")),
    Case("cut", lambda p: ((p * 10).clamp(-128, 127).to(torch.int8),)),
    Case("cut_before_others", _cut_before_others, ("scalar",)),
    Case("negative_zero", lambda p: (torch.maximum(p, torch.full_like(p, -0.0)),)),
    Case("division", lambda p, s: (p / s - p.abs().sqrt(),), ("scalar",)),
)
"""More supported epilogues, of which only the numbers are compared."""
