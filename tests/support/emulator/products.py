"""Small products of each operator, and kernels that compute them."""

from __future__ import annotations

from dataclasses import replace

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.gemm import CutlassGemm
from tests.emulator.kernels.recorded import PREFIX

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
NARROW_B = operand(144, N, dtype="float8_e4m3fn", turned=True)
ROW_SCALES = operand(M, 1, dtype="float32"), operand(1, N, dtype="float32")
PROBLEMS = {
    "mm": Problem("mm", (A, B), D),
    "mm behind an offset": Problem("mm", (replace(A, offset=64), B), D),
    "addmm": Problem("addmm", (operand(N), A, B), D, (("alpha", "0.5"), ("beta", "2.0"))),
    "bmm": Problem("bmm", (operand(3, M, K), operand(3, K, N)), operand(3, M, N)),
    "scaled_mm": Problem("scaled_mm", (NARROW, NARROW_B, *ROW_SCALES), D),
    "grouped_mm": Problem("grouped_mm", (A, operand(2, K, N), operand(2, dtype="int32")), D),
}


def first(problem: Problem) -> str:
    """Return the name of the most promising candidate."""
    return PREFIX + CutlassGemm().candidates(replace(problem, target=H100))[0].name


BF16 = GemmConfig(
    "sm_90a", (128, 128, 64), (2, 1, 1), "pingpong", "bf16", "bf16", "bf16", "bf16", "f32"
)
