"""Every epilogue of the list (tests/support/graphs/epilogues.py) after products of every kind, as data.

Sizes are odd along m and multiples of 8 along n and k, as rows of 16 bytes ask; what else varies is
the type, a batch, padding between rows, a transposed weight, and a bias the product itself adds.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tests.gpu.cases.product import BF16, FP16, FP32, FUSED, Case, Spec
from tests.support.graphs import epilogues

M, N, K, BATCH = 333, 272, 136, 3
"""272 is a multiple of 16 too: rows of fp8 and int8 end at 16 bytes."""
PAD = 16
Tensors = Sequence[torch.Tensor]

ABSORBED = ("bias_row", "bias_column", "bias_full")
"""What Inductor makes an ``addmm`` of, so that nothing is left after a plain product; after a batch,
or another bias, it is."""
ONE_MATRIX = ("before_and_after",)
"""What is not offered for a batch: Inductor writes the first of its outputs in an order of its own, and
a CUTLASS kernel writes along D alone."""

FIRST = 2
"""Kernels of a plain case that run: the best two have different tiles or schedules."""


@dataclass(frozen=True)
class Kind:
    """What varies from one product to the next.

    Attributes:
        name: Shown.
        dtype: Of A, B and what is as large as a row or D.
        batch: Products of a batch; 0 for a plain one.
        padded: Whether A's rows and those of what is as large as D have gaps.
        transposed: Whether B's columns are contiguous.
        added: Whether the product itself adds a bias first (``addmm``, ``baddbmm``).
    """

    name: str
    dtype: torch.dtype = BF16
    batch: int = 0
    padded: bool = False
    transposed: bool = False
    added: bool = False

    @property
    def factors(self) -> tuple[Spec, Spec]:
        """A and B."""
        a = self._spec(M, K, lead=K + PAD if self.padded else K)
        if not self.transposed:
            return a, self._spec(K, N, lead=N)
        size, stride = (K, N), (1, K)
        if self.batch:
            size, stride = (self.batch, *size), (K * N, *stride)
        return a, Spec(size, self.dtype, stride)

    def operand(self, kind: str) -> Spec:
        """Return what an epilogue reads: ``row``, ``column``, ``full`` or ``scalar``."""
        if kind == "scalar":
            return Spec((), FP32, values="scale")
        if kind == "full":
            return self._spec(M, N, lead=N + PAD if self.padded else N)
        size = (N,) if kind == "row" else (M, 1)
        if self.batch:
            size = (self.batch, 1, N) if kind == "row" else (self.batch, M, 1)
        return Spec(size, self.dtype)

    def _spec(self, rows: int, columns: int, lead: int) -> Spec:
        size, stride = (rows, columns), (lead, 1)
        if self.batch:
            size, stride = (self.batch, *size), (rows * lead, *stride)
        return Spec(size, self.dtype, None if lead == columns else stride)


KINDS = (
    Kind("bf16"),
    Kind("fp16", FP16, transposed=True),
    Kind("bf16 batch", batch=BATCH),
    Kind("bf16 padded", padded=True, transposed=True),
    Kind("bf16 addmm", added=True, transposed=True),
    Kind("fp16 baddbmm", FP16, batch=BATCH, added=True),
)


@functools.cache
def cases() -> dict[str, Case]:
    """Return all cases by name: each epilogue after each kind of product."""
    every = [
        _case(case, kind)
        for kind in KINDS
        for case in epilogues.CASES
        if case.name not in (ONE_MATRIX if kind.batch else () if kind.added else ABSORBED)
    ]
    return {case.name: case for case in every}


def _case(epilogue: epilogues.Case, kind: Kind) -> Case:
    specs = [*kind.factors, *(kind.operand(operand) for operand in epilogue.operands)]
    if kind.added:
        specs.insert(0, kind.operand("row"))
    function = functools.partial(_graph, epilogue.function, kind.added, epilogue.readers > 0)
    first = FIRST if kind == KINDS[0] else 1
    name = f"{epilogue.name}: {kind.name}"
    return Case(name, FUSED, "mm", function, tuple(specs), first=first)


def _graph(
    epilogue: Callable[..., Tensors], added: bool, kept: bool, *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return what an epilogue makes of a product, and the product where others read it."""
    first = 1 if added else 0
    a, b, *operands = tensors[first:]
    if added:
        call = torch.baddbmm if a.dim() == 3 else torch.addmm
        product = call(tensors[0], a, b)
    else:
        product = (torch.bmm if a.dim() == 3 else torch.mm)(a, b)
    written = tuple(epilogue(product, *operands))
    return (*written, product) if kept else written
