"""Products with 4-bit weights: refused problems, graphs to run, and the number of tiles."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from inductor_plugin.ops import int4 as ops_int4
from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.templates.triton.int4 import (
    TritonInt4,
    Weighted,
    candidate,
    tiles_of,
    weighted_of,
)
from tests.support.lowering import BF16, Arg
from tests.support.triton.lowering import H100, Case, Contract, Graph, epilogues, matrix

TEMPLATE = TritonInt4()


NAME = "triton_int4"


def weight(n: int = 4096, k: int = 4096, words: int = 4, **facts: Any) -> Operand:
    size = (n // 8, k // (32 * words), 32, words)
    stride = (size[1] * 32 * words, 32 * words, words, 1)
    return replace(Operand(size, stride, "int32", "cuda"), **facts)


def problem(a: Operand | None = None, b: Operand | None = None, **facts: Any) -> Problem:
    a, b = a or matrix(4, 4096), b or weight()
    n = b.size[0] * 8
    scales = Operand((a.size[1] // 64, n, 2), (2 * n, 2, 1), "bfloat16", "cuda")
    call = Problem(
        ops_int4.NAME,
        (a, b, scales),
        matrix(a.size[0], n),
        arguments=(("group", "64"),),
        target=H100,
    )
    return replace(call, **facts)


REJECTED: dict[str, tuple[Problem, str]] = {
    "many rows": (problem(matrix(65, 4096)), "at most 64 rows, this has 65"),
    "the most rows": (problem(matrix(64, 4096)), ""),
    "no rows": (problem(matrix(0, 4096)), "this has 0"),
    "a result of another type": (
        problem(output=matrix(4, 4096, dtype="float32")),
        "A and the scales must be bfloat16",
    ),
    "a dynamic N": (problem(dynamic=(SizeClass(1, 0, 9, 512, 512),)), "known only at run time"),
    "float16": (problem(matrix(4, 4096, dtype="float16")), "they are float16 and bfloat16"),
    "another group": (problem(arguments=(("group", "48"),)), "this one 48"),
    "groups of another length": (problem(arguments=(("group", "128"),)), "not one pair a group"),
    "another K": (problem(matrix(4, 2048)), "does not hold 2048 rows"),
    "bytes": (problem(b=weight(dtype="uint8")), "B must be int32, it is uint8"),
    "a transposed weight": (problem(b=weight(stride=(1, 1, 1, 1))), "B must be contiguous"),
    "a dynamic K": (problem(dynamic=(SizeClass(0, 1, 9, 16, 16),)), "known only at run time"),
    "a CPU": (problem(matrix(4, 4096, device="cpu")), "not all on a CUDA device"),
}


def int4(group: int) -> Any:
    def function(a: Any, b: Any, scales: Any) -> tuple[torch.Tensor]:
        return (torch.ops.aten._weight_int4pack_mm(a, b, group, scales),)

    return function


def unpacked(words: torch.Tensor) -> torch.Tensor:
    """Return the values [n, k] of packed words, in the layout of int4mm.cu."""
    tiles, chunks, lanes, inner = words.shape
    values = torch.full((tiles * 8, chunks * inner * 32), -1)
    for lane in range(lanes):
        for i in range(inner):
            # In bytes of two values, the first of them the high half.
            base = i * 16 + lane % 4
            for byte, k in enumerate((base, base + 4, base + 8, base + 12)):
                for half, shift in ((0, 4 * byte), (1, 16 + 4 * byte)):
                    nibbles = (words[:, :, lane, i] >> shift) & 15
                    values[lane // 4 :: 8, 2 * k + half :: inner * 32] = nibbles.long()
    assert (values >= 0).all()
    return values


def reference(group: int) -> Any:
    def function(a: torch.Tensor, b: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor]:
        scale, zero = (scales[:, :, i].t().repeat_interleave(group, 1) for i in (0, 1))
        dense = ((unpacked(b) - 8) * scale + zero).to(BF16).float()
        return (a @ dense.t(),)

    return function


def arguments(m: int, n: int, k: int, words: int, group: int) -> tuple[Arg, ...]:
    packed = Arg((n // 8, k // (32 * words), 32, words), torch.int32)
    return Arg((m, k), BF16), packed, Arg((k // group, n, 2), BF16)


CASES: dict[str, Case] = {
    "eight inner tiles": Case(int4(64), arguments(3, 64, 256, 4, 64), 0, reference(64), 1e-2),
    "four inner tiles": Case(int4(32), arguments(16, 72, 192, 2, 32), 1, reference(32), 1e-2),
    "two inner tiles": Case(int4(128), arguments(20, 40, 384, 1, 128), 2, reference(128), 1e-2),
    "a long group and relu": Case(
        lambda a, b, s: (torch.relu(int4(256)(a, b, s)[0]),),
        arguments(33, 136, 512, 4, 256),
        3,
        lambda a, b, s: (torch.relu(reference(256)(a, b, s)[0]),),
        1e-2,
    ),
    "padded rows": Case(
        int4(32),
        (Arg((5, 192), BF16, (200, 1)), *arguments(5, 72, 192, 2, 32)[1:]),
        0,
        reference(32),
        1e-2,
    ),
}


EPILOGUES = epilogues(
    lambda *tensors: int4(64)(*tensors)[0],
    arguments(6, 72, 256, 4, 64),
    (6, 72),
    lambda *tensors: reference(64)(*tensors)[0],
)


def all_kernels(problem: Problem) -> list[Any]:
    product = weighted_of(problem)
    assert isinstance(product, Weighted)
    return [candidate(product, tile) for tile in tiles_of(product)]


CONTRACT = Contract(
    TEMPLATE,
    REJECTED,
    CASES,
    (EPILOGUES,),
    (80, 90, 100),
    {"a tile of rows": Graph(int4(64), arguments(16, 4096, 4096, 4, 64))},
    all_kernels,
    tiles=tuple(Graph(int4(64), arguments(rows, 4096, 4096, 4, 64), 4) for rows in (16, 32, 64)),
)
