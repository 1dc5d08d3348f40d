"""Split K: refused problems, graphs to run, and the number of tiles."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import re
from typing import Any

import torch

from inductor_plugin.problem import Problem, SizeClass
from inductor_plugin.templates.triton.product import Product, product_of
from inductor_plugin.templates.triton.split_k import TritonSplitK, candidate, tiles_of
from tests.support.lowering import Arg
from tests.support.triton.interpreter import Usage
from tests.support.triton.lowering import (
    F16,
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

TEMPLATE = TritonSplitK()


REJECTED: dict[str, tuple[Problem, str]] = {
    "a short K": (problem(k=512), "K must be at least 1024"),
    "the shortest K": (problem(k=1024), ""),
    "a K shorter by a column": (problem(k=1023), "it is 1023"),
    "a tile for each multiprocessor": (problem(12 * 128, 11 * 128), "its 132 tiles of 128x128"),
    "a tile for almost each multiprocessor": (problem(10 * 128, 13 * 128), ""),
    "many tiles": (problem(m=4096, n=4096), "its 1024 tiles of 128x128 fill a device"),
    "a dynamic result": (
        problem(dynamic=(SizeClass(0, 0, 4, 4, 4),)),
        "the result's size is known only at run time",
    ),
    "a dynamic batch": (
        batch(2, 4, 512, 4096, dynamic=(SizeClass(0, 0, 2, 2, 2), SizeClass(1, 0, 2, 2, 2))),
        "the result's size is known only at run time",
    ),
    "many products": (batch(200, 4, 64, 4096), "its 200 tiles of 128x128 fill a device"),
    "float32": (
        problem(inputs=(matrix(4, 4096, dtype="float32"), matrix(4096, 64, dtype="float32"))),
        "they are float32 and float32",
    ),
}


CASES: dict[str, Case] = {
    "a few rows": Case(mm, (Arg((5, 1100), F16), Arg((1100, 70), F16))),
    "a few columns": Case(mm, (Arg((70, 1024), F16), Arg((1024, 20), F16, (1, 1024)))),
    "a scaled bias": Case(
        lambda c, a, w: (torch.addmm(c, a, w.t(), alpha=0.5, beta=2),),
        (Arg((130,), F16), Arg((20, 1500), F16), Arg((130, 1500), F16)),
    ),
    "transposed, padded strides": Case(
        lambda a, b: (torch.mm(a.t(), b),),
        (Arg((1050, 40), F16, (64, 1)), Arg((1050, 33), F16, (48, 1))),
    ),
    "relu and a residual": Case(
        lambda a, b, r: (torch.relu(torch.mm(a, b)) + r,),
        (Arg((100, 1024), F16), Arg((1024, 100), F16), Arg((100, 100), F16)),
    ),
    "a slice": Case(
        lambda a, b: (torch.mm(a[:, 3:1030], b[5:1032, :]),),
        (Arg((4, 1040), F16), Arg((1040, 72), F16)),
        winner=1,
    ),
    "bfloat16": Case(mm, (Arg((9, 1100)), Arg((1100, 70))), tolerance=1e-2),
    "float32 written": Case(
        lambda a, b: (torch.ops.aten.mm.dtype(a, b, torch.float32),),
        (Arg((5, 1024), F16), Arg((1024, 96), F16)),
        reference=mm,
    ),
    "a batch, odd sizes": Case(bmm, (Arg((3, 19, 1071), F16), Arg((3, 1071, 77), F16)), winner=1),
    "a batch, transposed, padded": Case(
        lambda a, b: (torch.bmm(a.transpose(1, 2), b.transpose(1, 2)),),
        (Arg((2, 1060, 40), F16, (51000, 48, 1)), Arg((2, 36, 1060), F16, (38400, 1064, 1))),
    ),
    "a batch that shares B": Case(
        lambda a, b: (torch.bmm(a, b.expand(3, 1024, 72)),),
        (Arg((3, 70, 1024), F16), Arg((1, 1024, 72), F16)),
    ),
    "a batch with a scaled bias": Case(
        lambda c, a, b: (torch.relu(torch.baddbmm(c, a, b, alpha=0.5, beta=2)),),
        (Arg((2, 1, 70), F16), Arg((2, 20, 1050), F16), Arg((2, 1050, 70), F16)),
    ),
}


EPILOGUES = epilogues(torch.mm, (Arg((40, 1030), F16), Arg((1030, 90), F16)), (40, 90))


BATCH_EPILOGUES = epilogues(
    torch.bmm, (Arg((2, 6, 1030), F16), Arg((2, 1030, 40), F16)), (2, 6, 40)
)


def all_kernels(problem: Problem) -> list[Any]:
    """Return all tiles, each with four parts: the number of parts changes no registers."""
    product = product_of(problem)
    assert isinstance(product, Product)
    return [candidate(product, tile) for tile in tiles_of(product) if tile.parts == 4]


def check_kernel(name: str, arch: int, usage: Usage) -> None:
    """Check that the last block of a tile reads what all others have stored."""
    assert re.search(r"atom\S*\.acq_rel\S*\.add", usage.ptx)
    assert "ld.global.cg" in usage.ptx
    # All threads have stored before one counts: the kernel has the barrier, whatever Triton adds.
    operations = re.findall(r"tt\.(?:store|atomic_rmw)|(?:gpu|ttg)\.barrier", usage.ttir)
    assert operations[1].endswith(".barrier"), operations
    assert (operations[0], operations[2]) == ("tt.store", "tt.atomic_rmw")
    before = usage.ptx[: usage.ptx.index("atom.global")]
    assert before.rindex("bar.sync") > before.rindex("st.global")


CONTRACT = Contract(
    TEMPLATE,
    REJECTED,
    CASES,
    (EPILOGUES, BATCH_EPILOGUES),
    (80, 90, 100),
    {
        "a matrix": Graph(mm, (Arg((64, 8192), F16), Arg((8192, 512), F16, (1, 8192)))),
        "a batch": Graph(bmm, (Arg((2, 512, 8192), F16), Arg((2, 8192, 512), F16))),
    },
    all_kernels,
    check_kernel,
    tuple(
        Graph(mm, (Arg((rows, 8192), F16), Arg((8192, columns), F16)), kernels)
        for rows, columns, kernels in (
            (16, 512, 3),
            (32, 512, 2),
            (512, 32, 2),
            (64, 512, 3),
            (512, 512, 4),
        )
    ),
)
