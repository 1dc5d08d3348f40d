"""Products of a few rows: refused problems, graphs to run, and the number of tiles."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import torch

from inductor_plugin.problem import Problem
from inductor_plugin.templates.triton.decode import TritonDecode, candidate, dots_of, vectors_of
from inductor_plugin.templates.triton.product import Product, product_of
from tests.support.lowering import Arg
from tests.support.triton.lowering import (
    F16,
    Case,
    Contract,
    Graph,
    bmm,
    epilogues,
    matrix,
    mm,
    problem,
)

TEMPLATE = TritonDecode()


REJECTED: dict[str, tuple[Problem, str]] = {
    "many rows": (problem(m=33), "at most 32 rows, this has 33"),
    "a small B": (problem(n=32), "B[4096, 32] is too small"),
    "a short K": (problem(k=64), "B[64, 4096] is too small"),
    "the smallest B": (problem(n=64, k=128), ""),
    "a column too few": (problem(n=63), "B[4096, 63] is too small"),
    "a row too few": (problem(k=127), "B[127, 4096] is too small"),
    "a result in float32": (problem(output=matrix(4, 4096, dtype="float32")), ""),
    "a result on a CPU": (
        problem(output=matrix(4, 4096, device="cpu")),
        "not all on a CUDA device",
    ),
    "a CPU": (
        problem(inputs=(matrix(4, 512, device="cpu"), matrix(512, 512))),
        "not all on a CUDA device",
    ),
    "float32": (
        problem(inputs=(matrix(4, 512, dtype="float32"), matrix(512, 512, dtype="float32"))),
        "they are float32 and float32",
    ),
    "two types": (
        problem(inputs=(matrix(4, 512, dtype="float16"), matrix(512, 512))),
        "they are float16 and bfloat16",
    ),
    "another result": (problem(output=matrix(4, 4096, dtype="float16")), "this asks for float16"),
    "no unit stride": (
        problem(inputs=(matrix(4, 512), matrix(512, 512, stride=(1024, 2)))),
        "B needs a unit stride, its strides are (1024, 2)",
    ),
    "an empty one": (problem(m=0), "a dimension is empty"),
    "an opaque one": (
        problem(inputs=(matrix(4, 512), matrix(512, 512, layout="mkldnn"))),
        "opaque layout",
    ),
    "a factor that is no number": (
        problem(
            op="addmm",
            inputs=(matrix(4, 512), matrix(4, 512), matrix(512, 512)),
            arguments=(("alpha", "s0"),),
        ),
        "must be numbers",
    ),
}


def linear(c: torch.Tensor, a: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.addmm(c, a, w.t()),)


CASES: dict[str, Case] = {
    "one row": Case(mm, (Arg((1, 256), F16), Arg((256, 128), F16))),
    "one row, odd sizes": Case(mm, (Arg((1, 331), F16), Arg((331, 77), F16)), winner=1),
    "two rows of a linear layer": Case(
        linear, (Arg((130,), F16), Arg((2, 200), F16), Arg((130, 200), F16))
    ),
    "one row, padded strides": Case(
        mm, (Arg((1, 200), F16, (256, 1)), Arg((200, 96), F16, (1, 232)))
    ),
    "one row through tensor cores": Case(mm, (Arg((1, 256), F16), Arg((256, 130), F16)), winner=3),
    "seven rows": Case(mm, (Arg((7, 384), F16), Arg((384, 130), F16))),
    "32 rows, transposed": Case(
        lambda a, b: (torch.mm(a.t(), b.t()),), (Arg((160, 32), F16), Arg((96, 160), F16))
    ),
    "17 rows of a linear layer, scaled": Case(
        lambda c, a, w: (torch.addmm(c, a, w.t(), alpha=0.5, beta=2),),
        (Arg((70,), F16), Arg((17, 150), F16), Arg((70, 150), F16)),
        winner=2,
    ),
    "relu and a residual": Case(
        lambda c, a, w, r: (torch.relu(torch.addmm(c, a, w.t())) + r,),
        (Arg((96,), F16), Arg((5, 136), F16), Arg((96, 136), F16), Arg((5, 96), F16)),
    ),
    "a slice": Case(
        lambda a, b: (torch.mm(a[:, 3:150], b[5:152, :]),),
        (Arg((4, 160), F16), Arg((160, 72), F16)),
    ),
    "bfloat16": Case(mm, (Arg((9, 300)), Arg((300, 70))), tolerance=1e-2),
    "float32 written": Case(
        lambda a, b: (torch.ops.aten.mm.dtype(a, b, torch.float32),),
        (Arg((5, 256), F16), Arg((256, 96), F16)),
        reference=mm,
    ),
    "a batch of rows": Case(bmm, (Arg((3, 1, 256), F16), Arg((3, 256, 77), F16))),
    "a batch, odd sizes": Case(bmm, (Arg((3, 19, 171), F16), Arg((3, 171, 77), F16)), winner=1),
    "a batch, transposed, padded": Case(
        lambda a, b: (torch.bmm(a.transpose(1, 2), b.transpose(1, 2)),),
        (Arg((2, 160, 5), F16, (1280, 8, 1)), Arg((2, 96, 160), F16, (16400, 168, 1))),
    ),
    "a batch of heads side by side": Case(
        bmm, (Arg((4, 3, 128), F16, (128, 512, 1)), Arg((4, 128, 70), F16, (128, 1, 512)))
    ),
    "a batch that shares B": Case(
        lambda a, b: (torch.bmm(a, b.expand(3, 160, 72)),),
        (Arg((3, 4, 160), F16), Arg((1, 160, 72), F16)),
    ),
    "a batch with a scaled bias": Case(
        lambda c, a, b: (torch.relu(torch.baddbmm(c, a, b, alpha=0.5, beta=2)),),
        (Arg((2, 1, 70), F16), Arg((2, 7, 150), F16), Arg((2, 150, 70), F16)),
    ),
}


EPILOGUES = epilogues(torch.mm, (Arg((6, 200), F16), Arg((200, 90), F16)), (6, 90))


BATCH_EPILOGUES = epilogues(torch.bmm, (Arg((2, 2, 200), F16), Arg((2, 200, 90), F16)), (2, 2, 90))


WEIGHTS = (Arg((4096, 4096), F16), Arg((4096, 4096), F16, (1, 4096)))


def all_kernels(problem: Problem) -> list[Any]:
    product = product_of(problem)
    assert isinstance(product, Product)
    return [candidate(product, tile) for tile in (*vectors_of(product), *dots_of(product))]


CONTRACT = Contract(
    TEMPLATE,
    REJECTED,
    CASES,
    (EPILOGUES, BATCH_EPILOGUES),
    (80, 90, 100),
    {
        "one row": Graph(mm, (Arg((1, 4096), F16), WEIGHTS[1])),
        "a tile of rows": Graph(mm, (Arg((16, 4096), F16), WEIGHTS[0])),
        "a batch": Graph(bmm, (Arg((8, 4, 4096), F16), Arg((8, 4096, 512), F16))),
    },
    all_kernels,
    tiles=tuple(
        Graph(mm, (Arg((rows, 4096), F16), weight), kernels)
        for rows, kernels in ((1, (8, 9)), (2, (8, 9)), (16, (6, 6)), (32, (6, 6)))
        for weight, kernels in zip(WEIGHTS, kernels, strict=True)
    ),
)
