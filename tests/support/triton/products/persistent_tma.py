"""Persistent products through TMA: refused problems, graphs to run, and the number of tiles."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

import torch

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import target
from inductor_plugin.templates.triton.persistent_tma import TritonPersistentTma, candidate, tiles_of
from inductor_plugin.templates.triton.product import Product, product_of
from tests.support.lowering import Arg
from tests.support.triton.interpreter import Usage
from tests.support.triton.lowering import (
    F16,
    SMALLEST_OF,
    Case,
    Contract,
    Graph,
    batch,
    bmm,
    epilogues,
    matrix,
    mm,
    problem,
)

TEMPLATE = TritonPersistentTma()


NAME = "triton_persistent_tma"


def cube(b: int, rows: int, columns: int, stride: int) -> Operand:
    return Operand((b, rows, columns), (stride, columns, 1), "bfloat16", "cuda")


REJECTED: dict[str, tuple[Problem, str]] = {
    "few rows": (problem(m=32), "at least 33 and K at least 64, this is 32x4096x4096"),
    "the fewest rows": (problem(m=33), ""),
    "few columns": (problem(128, 32), "this is 128x32x4096"),
    "the fewest columns": (
        problem(128, 33, inputs=(matrix(128, 4096), matrix(4096, 33, stride=(1, 4096)))),
        "",
    ),
    "the shortest K": (problem(128, k=64), ""),
    "a short K": (problem(128, k=56), "this is 128x4096x56"),
    "an older device": (
        problem(m=128, target=target("A100")),
        "it needs compute capability 9.0, the device has 8.0",
    ),
    "a batch with an odd stride": (
        batch(3, 65, 128, 64, inputs=(cube(3, 65, 64, 4164), cube(3, 64, 128, 8192))),
        "A's batch stride is 4164 elements",
    ),
    "a matrix for all of a batch": (
        batch(3, 64, 128, 64, inputs=(cube(3, 64, 64, 4096), cube(3, 64, 128, 0))),
        "B is broadcast",
    ),
    "an aligned batch": (batch(3, 65, 128, 64), ""),
    "an odd stride": (
        problem(inputs=(matrix(128, 512, stride=(516, 1)), matrix(512, 512))),
        "A's stride is 516 elements",
    ),
    "an odd offset": (
        problem(inputs=(matrix(128, 512), matrix(512, 512, offset=4))),
        "B's offset is 4 elements",
    ),
    "an odd extent": (
        problem(inputs=(matrix(128, 500, stride=(504, 1)), matrix(500, 512))),
        "A's inner extent is 500 elements",
    ),
    "an odd extent of columns": (
        problem(inputs=(matrix(128, 512), matrix(512, 516, stride=(1, 520)))),
        "",
    ),
    "overlapping rows": (
        problem(inputs=(matrix(128, 512, stride=(8, 1)), matrix(512, 512))),
        "the rows of A overlap",
    ),
}


CASES: dict[str, Case] = {
    "rows by rows": Case(mm, (Arg((200, 136), F16), Arg((136, 264), F16))),
    "columns by columns": Case(
        lambda a, b: (torch.mm(a.t(), b.t()),), (Arg((72, 136), F16), Arg((80, 72), F16)), winner=1
    ),
    "a linear layer, scaled": Case(
        lambda c, a, w: (torch.addmm(c, a, w.t(), alpha=0.5, beta=2),),
        (Arg((131,), F16), Arg((75, 200), F16), Arg((131, 200), F16)),
        winner=2,
    ),
    "more tiles than multiprocessors": Case(mm, (Arg((1100, 64), F16), Arg((64, 1104), F16))),
    "padded strides, relu and a residual": Case(
        lambda a, b, r: (torch.relu(torch.mm(a, b)) + r,),
        (Arg((70, 88), F16, (96, 1)), Arg((88, 72), F16, (80, 1)), Arg((70, 72), F16)),
        winner=3,
    ),
    "bfloat16": Case(mm, (Arg((70, 136)), Arg((136, 72))), tolerance=1e-2),
    "float32 written": Case(
        lambda a, b: (torch.ops.aten.mm.dtype(a, b, torch.float32),),
        (Arg((70, 136), F16), Arg((136, 72), F16)),
        reference=mm,
    ),
    "a batch, odd sizes": Case(bmm, (Arg((3, 67, 840), F16), Arg((3, 840, 136), F16)), winner=1),
    "a batch of more tiles than multiprocessors": Case(
        bmm, (Arg((70, 65, 64), F16), Arg((70, 64, 136), F16))
    ),
    "a batch, transposed, padded": Case(
        lambda a, b: (torch.bmm(a.transpose(1, 2), b.transpose(1, 2)),),
        (Arg((2, 72, 40), F16, (5120, 48, 1)), Arg((2, 67, 72), F16, (5600, 80, 1))),
    ),
    "a batch of heads side by side": Case(
        bmm, (Arg((4, 50, 64), F16, (64, 256, 1)), Arg((4, 64, 70), F16, (64, 1, 256)))
    ),
    "a batch with a scaled bias": Case(
        lambda c, a, b: (torch.relu(torch.baddbmm(c, a, b, alpha=0.5, beta=2)),),
        (Arg((2, 1, 72), F16), Arg((2, 67, 88), F16), Arg((2, 88, 72), F16)),
    ),
}


EPILOGUES = epilogues(torch.mm, (Arg((70, 136), F16), Arg((136, 72), F16)), (70, 72))


BATCH_EPILOGUES = epilogues(torch.bmm, (Arg((2, 50, 72), F16), Arg((2, 72, 72), F16)), (2, 50, 72))


def all_kernels(problem: Problem) -> list[Any]:
    product = product_of(problem)
    assert isinstance(product, Product)
    return [
        candidate(product, tile) for tile in tiles_of(product, SMALLEST_OF[90].shared_per_block)
    ]


def check_kernel(name: str, arch: int, usage: Usage) -> None:
    """Check that operands are loaded by TMA, and that the device's tensor cores multiply them."""
    assert "cp.async.bulk.tensor" in usage.ptx
    assert ("wgmma.mma_async" if arch == 90 else "tcgen05.mma") in usage.ptx


CONTRACT = Contract(
    TEMPLATE,
    REJECTED,
    CASES,
    (EPILOGUES, BATCH_EPILOGUES),
    (90, 100),
    {
        "a matrix": Graph(mm, (Arg((4096, 4096), F16), Arg((4096, 4096), F16, (1, 4096)))),
        "a batch": Graph(bmm, (Arg((8, 4096, 4096), F16), Arg((8, 4096, 4096), F16))),
    },
    all_kernels,
    check_kernel,
)
