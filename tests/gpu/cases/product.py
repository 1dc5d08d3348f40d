"""One product to check on a GPU, with or without an epilogue, as data: its tensors, its graph, the same in float32."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness.error import error_of

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ATEN: Any = torch
Function = Callable[..., Any]
FUSED = "fused.cutlass"

ACCEPTED: dict[torch.dtype, float] = {
    BF16: 0.01,
    FP16: 0.002,
    FP32: 0.002,
    E4M3: 0.03,
    E5M2: 0.06,
    torch.int8: 0.03,
    torch.int32: 0.0,
}
"""Accepted error by the type of a result: root mean square, relative. Rounding to bfloat16 costs 0.002,
to TF32 0.0005 a factor; the parts of a split product are rounded once more. A product that is rounded to
bfloat16 first, as a library's is, moves one value in about 60 to the next e4m3, which is an eighth away."""


def worst(
    results: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    tolerance: float | None = None,
) -> float:
    """Return the largest error of some results, as a part of what is accepted: by type if None."""
    shares: list[float] = []
    for result, wanted in zip(results, expected, strict=True):
        error = error_of(result, wanted)
        accepted = ACCEPTED[result.dtype] if tolerance is None else tolerance
        exact = 0.0 if error == 0 else math.inf
        shares.append(error / accepted if accepted else exact)
    return max(shares)


@dataclass(frozen=True)
class Spec:
    """One tensor of a case.

    Attributes:
        size: Its extents.
        dtype: Its type.
        stride: Its strides; row by row if None. A batch that all share has 0.
        values: ``normal`` numbers, ``scale`` for positive ones around 1, ``small`` whole numbers, or
            ``int4`` for a packed weight.
        contents: The very values, for the ends of groups.
    """

    size: tuple[int, ...]
    dtype: torch.dtype = BF16
    stride: tuple[int, ...] | None = None
    values: str = "normal"
    contents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """One product and the candidates of one template for it.

    Attributes:
        name: Unique, in words.
        template: Whose candidates run; `FUSED` for CUTLASS kernels with an epilogue.
        op: Inductor's name of the operator; a template that does not serve it has no such case.
        function: The graph; returns a tuple.
        specs: Its tensors.
        reference: The same on float32 (float64) tensors; the operator's own by default.
        wanted: Regular expressions; for each, one candidate whose name or configuration matches.
        first: How many candidates run besides, best first.
        rows: Other numbers of rows to call the same CUTLASS kernel with.
        tolerance: Accepted error; by the result's type if None.
        precision: torch's precision of float32 products.
    """

    name: str
    template: str
    op: str
    function: Function
    specs: tuple[Spec, ...]
    reference: Function | None = None
    wanted: tuple[str, ...] = ()
    first: int = 2
    rows: tuple[int, ...] = ()
    tolerance: float | None = None
    precision: str = "highest"

    def expected(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the results in float32, those of whole numbers exactly.

        What is cast to a narrow type by the graph is cast here, too.
        """
        if self.reference is not None:
            return (self.reference(*tensors),)
        exact = all(tensor.dtype in (torch.int8, torch.int32) for tensor in tensors)
        wide = torch.float64 if exact else FP32
        return self.function(*(tensor.to(wide) for tensor in tensors))


def by_columns(rows: int, columns: int, dtype: torch.dtype = BF16, *, lead: int = 0) -> Spec:
    """Return a matrix whose columns are contiguous; ``lead`` elements from one to the next."""
    return Spec((rows, columns), dtype, (1, lead or rows))


def by_rows(rows: int, columns: int, dtype: torch.dtype = BF16, *, lead: int = 0) -> Spec:
    """Return a matrix whose rows are contiguous; ``lead`` elements from one to the next."""
    return Spec((rows, columns), dtype, (lead or columns, 1))


def matrices(
    m: int, n: int, k: int, order: str = "tn", dtype: torch.dtype = BF16
) -> tuple[Spec, ...]:
    """Return A[m, k] and B[k, n] in an order of memory, in CUTLASS's letters."""
    a = by_rows(m, k, dtype) if order[0] == "t" else by_columns(m, k, dtype)
    b = by_rows(k, n, dtype) if order[1] == "t" else by_columns(k, n, dtype)
    return a, b


def row_scales(m: int, n: int) -> tuple[Spec, Spec]:
    """Return one scale for each row of A and column of B."""
    return Spec((m, 1), FP32, values="scale"), Spec((1, n), FP32, values="scale")
