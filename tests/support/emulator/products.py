"""Small products of each operator, and kernels that compute them."""

from __future__ import annotations

from dataclasses import replace

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.gemm import CutlassGemm
from tests.emulator.recorded.products import PREFIX

H100 = target("H100")
M, N, K = 131, 136, 72


def operand(*size: int, dtype: str = "bfloat16", turned: bool = False, offset: int = 0) -> Operand:
    stride = (1, size[0]) if turned else tuple(math_strides(size))
    return Operand(size, stride, dtype, "cuda", offset)


def math_strides(size: tuple[int, ...]) -> list[int]:
    strides = [1]
    for extent in reversed(size[1:]):
        strides.insert(0, strides[0] * extent)
    return strides


A, B, D = operand(M, K), operand(K, N, turned=True), operand(M, N)
NARROW = operand(M, 144, dtype="float8_e4m3fn")
WIDE = 144
"""Columns of B where it has 8 bits: `torch._scaled_mm` wants multiples of 16."""
NARROW_B = operand(144, WIDE, dtype="float8_e4m3fn", turned=True)
ROW_SCALES = operand(M, 1, dtype="float32"), operand(1, WIDE, dtype="float32")
SCALED = (NARROW, NARROW_B, *ROW_SCALES)
BATCH = operand(3, M, K), operand(3, K, N)
ONES = (("alpha", "1"), ("beta", "1"))
PROBLEMS = {
    "mm": Problem("mm", (A, B), D),
    "mm behind an offset": Problem("mm", (replace(A, offset=64), B), D),
    "addmm": Problem("addmm", (operand(N), A, B), D, (("alpha", "0.5"), ("beta", "2.0"))),
    "addmm, an expanded bias": Problem("addmm", (replace(D, stride=(0, 1)), A, B), D, ONES),
    "bmm": Problem("bmm", BATCH, operand(3, M, N)),
    "baddbmm": Problem("baddbmm", (operand(3, M, N), *BATCH), operand(3, M, N), ONES),
    "scaled_mm": Problem("scaled_mm", SCALED, operand(M, WIDE)),
    "scaled_mm, a bias": Problem("scaled_mm", (*SCALED, operand(WIDE)), operand(M, WIDE)),
    "grouped_mm": Problem("grouped_mm", (A, operand(2, K, N), operand(2, dtype="int32")), D),
}

ODD = Problem("mm", (replace(A, stride=(K + 1, 1)), B), D)
"""A product whose A has rows that no TMA reads, but of a copy."""
LONG = Problem("mm", (operand(64, 4096), operand(4096, N, turned=True)), operand(64, N))
"""A product with few tiles, and a sum to be split."""
WHOLE = Problem(
    "int_mm",
    (operand(M, 144, dtype="int8"), operand(144, N, dtype="int8", turned=True)),
    operand(M, N, dtype="int32"),
)


def first(problem: Problem) -> str:
    """Return the name of the most promising candidate."""
    return PREFIX + CutlassGemm().candidates(replace(problem, target=H100))[0].name


BF16 = GemmConfig(
    "sm_90a", (128, 128, 64), (2, 1, 1), "pingpong", "bf16", "bf16", "bf16", "bf16", "f32"
)
