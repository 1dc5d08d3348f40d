"""Scaled products of 8-bit floats: refused problems, graphs to run, and the number of tiles."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch

from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.target import target
from inductor_plugin.templates.triton.fp8 import Scaled, TritonFp8, candidate, scaled_of, tiles_of
from tests.support.lowering import BF16, Arg
from tests.support.triton.interpreter import Usage
from tests.support.triton.lowering import H100, Case, Contract, Graph, epilogues, matrix

FP8, F32 = torch.float8_e4m3fn, torch.float32


TEMPLATE = TritonFp8()


NAME = "triton_fp8"


def operands(
    a_scale: tuple[int, int] = (256, 1),
    b_scale: tuple[int, int] = (1, 512),
    a: Operand | None = None,
    b: Operand | None = None,
) -> tuple[Operand, ...]:
    return (
        a or matrix(256, 1024, dtype="float8_e4m3fn"),
        b or matrix(1024, 512, dtype="float8_e4m3fn", stride=(1, 1024)),
        matrix(*a_scale, dtype="float32"),
        matrix(*b_scale, dtype="float32"),
    )


def problem(*inputs: Operand, **facts: Any) -> Problem:
    call = Problem("scaled_mm", inputs or operands(), matrix(256, 512), target=H100)
    return replace(call, **facts)


E4 = {"dtype": "float8_e4m3fn"}
E5 = {"dtype": "float8_e5m2"}


REJECTED: dict[str, tuple[Problem, str]] = {
    "one scale a matrix": (problem(*operands((1, 1), (1, 1))), "sizes (1, 1) and (1, 1)"),
    "blocks of 128x128 in both": (problem(*operands((2, 8), (8, 4))), "sizes (2, 8) and (8, 4)"),
    "bfloat16": (problem(*operands(a=matrix(256, 1024))), "bfloat16 by float8_e4m3fn"),
    "B by rows": (
        problem(*operands(b=matrix(1024, 512, **E4))),
        "B must be column-major, its strides are (512, 1)",
    ),
    "an odd stride": (
        problem(*operands(a=matrix(256, 1024, **E4, stride=(1032, 1)))),
        "A's stride is 1032 elements",
    ),
    "few columns": (
        problem(*operands(b=matrix(1024, 32, **E4, stride=(1, 1024)), b_scale=(1, 32))),
        "too small for a tile",
    ),
    "the smallest": (
        problem(
            *operands(
                b_scale=(1, 64),
                a=matrix(256, 128, **E4),
                b=matrix(128, 64, **E4, stride=(1, 128)),
            ),
            output=matrix(256, 64),
        ),
        "",
    ),
    "a column too few": (
        problem(*operands(b=matrix(1024, 63, **E4, stride=(1, 1024)), b_scale=(1, 63))),
        "too small for a tile",
    ),
    "a short K": (
        problem(*operands(a=matrix(256, 112, **E4), b=matrix(112, 512, **E4, stride=(1, 112)))),
        "too small for a tile",
    ),
    "two of wide range": (
        problem(*operands(a=matrix(256, 1024, **E5), b=matrix(1024, 512, **E5, stride=(1, 1024)))),
        "float8_e5m2 by float8_e5m2",
    ),
    "A of wide range": (problem(*operands(a=matrix(256, 1024, **E5))), ""),
    "a bias": (problem(*operands(), matrix(1, 512)), ""),
    "two biases": (problem(*operands(), matrix(1, 512), matrix(1, 512)), "not 6 inputs"),
    "dynamic rows of blocks": (
        problem(*operands((2, 8), (8, 512)), dynamic=(SizeClass(0, 0, 129, 256, 256),)),
        "",
    ),
    "dynamic columns": (
        problem(dynamic=(SizeClass(1, 1, 257, 512, 512),)),
        "K or N is known only at run time",
    ),
    "a device without 8-bit floats": (
        problem(target=target("A100")),
        "it needs compute capability 9.0, the device has 8.0",
    ),
    "scales of another type": (
        problem(*operands()[:3], matrix(1, 512)),
        "scales must be float32, they are float32 and bfloat16",
    ),
    "an 8-bit result": (problem(output=matrix(256, 512, **E4)), "this asks for float8_e4m3fn"),
    "a CPU": (problem(output=matrix(256, 512, device="cpu")), "not all on a CUDA device"),
    "a dynamic K": (
        problem(dynamic=(SizeClass(0, 1, 513, 1024, 1024), SizeClass(1, 0, 513, 1024, 1024))),
        "K or N is known only at run time",
    ),
    "dynamic rows without their scales": (
        problem(dynamic=(SizeClass(0, 0, 129, 256, 256),)),
        "how many rows of A share a scale is known only at run time",
    ),
}


def scaled(
    a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor
) -> tuple[torch.Tensor]:
    return (torch._scaled_mm(a, b, s, t, out_dtype=BF16),)


def loosely(a: Any, b: Any, s: Any, t: Any) -> tuple[torch.Tensor]:
    return (torch._scaled_mm(a, b, s, t, out_dtype=BF16, use_fast_accum=True),)


def biased(a: Any, b: Any, s: Any, t: Any, c: Any) -> tuple[torch.Tensor]:
    return (torch._scaled_mm(a, b, s, t, bias=c, out_dtype=BF16).relu(),)


def spread(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return a scale for each element, as `torch._scaled_mm` defines it."""
    for dim, extent in enumerate((rows, columns)):
        each = extent if scale.size(dim) == 1 else 1 if scale.size(dim) == extent else 128
        scale = scale.repeat_interleave(each, dim).narrow(dim, 0, extent)
    return scale


def reference(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> tuple[Any]:
    return ((a * spread(s, *a.shape)) @ (b * spread(t, *b.shape)),)


def arguments(m: int, n: int, k: int, s: Arg, t: Arg) -> tuple[Arg, ...]:
    return Arg((m, k), FP8), Arg((k, n), FP8, (1, k)), s, t


CASES: dict[str, Case] = {
    "rows and columns": Case(
        scaled, arguments(72, 80, 144, Arg((72, 1), F32), Arg((1, 80), F32)), 0, reference, 1e-2
    ),
    "rows and columns, a bias and relu": Case(
        biased,
        (*arguments(48, 144, 272, Arg((48, 1), F32), Arg((1, 144), F32)), Arg((144,), BF16)),
        1,
        lambda a, b, s, t, c: ((reference(a, b, s, t)[0] + c).relu(),),
        1e-2,
    ),
    "rows and columns, fast sums": Case(
        loosely, arguments(72, 80, 144, Arg((72, 1), F32), Arg((1, 80), F32)), 0, reference, 1e-2
    ),
    "rows and columns, a long sum": Case(
        scaled, arguments(72, 80, 1040, Arg((72, 1), F32), Arg((1, 80), F32)), 0, reference, 1e-2
    ),
    "1x128 and 128x128": Case(
        scaled,
        arguments(130, 144, 384, Arg((130, 3), F32, (1, 130)), Arg((3, 2), F32, (1, 3))),
        1,
        reference,
        1e-2,
    ),
    "1x128 and 1x128": Case(
        scaled,
        arguments(70, 96, 256, Arg((70, 2), F32, (1, 70)), Arg((2, 96), F32, (96, 1))),
        0,
        reference,
        1e-2,
    ),
    "128x128 and 1x128": Case(
        scaled,
        arguments(140, 96, 256, Arg((2, 2), F32, (1, 2)), Arg((2, 96), F32, (96, 1))),
        0,
        reference,
        1e-2,
    ),
    "one row": Case(
        scaled, arguments(1, 80, 144, Arg((1, 1), F32), Arg((1, 80), F32)), 0, reference, 1e-2
    ),
    "one row, blocks": Case(
        scaled,
        arguments(1, 144, 384, Arg((1, 3), F32), Arg((3, 2), F32, (1, 3))),
        0,
        reference,
        1e-2,
    ),
    "padded strides": Case(
        scaled,
        (
            Arg((33, 144), FP8, (160, 1)),
            Arg((144, 80), FP8, (1, 176)),
            Arg((33, 1), F32),
            Arg((1, 80), F32),
        ),
        0,
        reference,
        1e-2,
    ),
    "e5m2 by e4m3": Case(
        scaled,
        (
            Arg((40, 144), torch.float8_e5m2),
            Arg((144, 80), FP8, (1, 144)),
            Arg((40, 1), F32),
            Arg((1, 80), F32),
        ),
        0,
        reference,
        1e-2,
    ),
}


EPILOGUES = epilogues(
    lambda *tensors: scaled(*tensors)[0],
    arguments(72, 80, 144, Arg((72, 1), F32), Arg((1, 80), F32)),
    (72, 80),
    lambda *tensors: reference(*tensors)[0],
)


BY_ROW = Arg((4096, 1), F32), Arg((1, 2048), F32)


BY_BLOCK = Arg((4096, 32), F32, (1, 4096)), Arg((32, 16), F32, (1, 32))


KINDS_OF_KERNELS = {
    "exact": (scaled, BY_ROW),
    "fast": (loosely, BY_ROW),
    "blocks": (scaled, BY_BLOCK),
}


def all_kernels(problem: Problem) -> list[Any]:
    product = scaled_of(problem)
    assert isinstance(product, Scaled)
    return [candidate(product, tile) for tile in tiles_of(product)]


def check_kernel(name: str, arch: int, usage: Usage) -> None:
    """Check how operands are loaded and multiplied, and where exact sums are accumulated."""
    assert "cp.async.bulk.tensor" in usage.ptx
    assert ("wgmma.mma_async" if arch == 90 else "tcgen05.mma") in usage.ptx
    if arch == 90:
        # Hopper's tensor cores sum 8-bit products with fewer bits than float32 has: exact sums
        # are accumulated outside, those of 128x128 elements by 256 threads.
        additions = len(re.findall(r"\b(?:add|fma)\S*\.f32", usage.ptx))
        assert additions == 0 if name == "fast" else additions >= 128 * 128 // 256


GRAPHS = {
    name: Graph(function, arguments(4096, 2048, 4096, *scales), 10 if name == "fast" else 6)
    for name, (function, scales) in KINDS_OF_KERNELS.items()
}
CONTRACT = Contract(
    *(TEMPLATE, REJECTED, CASES, (EPILOGUES,), (90, 100), GRAPHS, all_kernels, check_kernel),
    tiles=tuple(GRAPHS.values()),
)
