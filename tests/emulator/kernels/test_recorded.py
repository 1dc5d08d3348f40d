"""Recorded candidates as calls of the emulator: each operator's operands, and what cannot be run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.definition import problem_in
from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass.gemm import CutlassGemm
from tests.emulator.kernels import recorded
from tests.emulator.kernels.recorded import PREFIX, Recorded
from tests.emulator.machine.schedule import EAGER
from tests.emulator.runtime.runtime import Runtime

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


def recorded_of(problem: Problem) -> Recorded:
    call = recorded.recorded(problem_in(problem.fields()), first(problem), H100)
    assert isinstance(call, Recorded), call
    return call


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_kernel_is_known_by_its_name(name: str) -> None:
    call = recorded_of(PROBLEMS[name])
    assert first(PROBLEMS[name]).startswith(PREFIX + call.config.name)
    assert call.source.symbol == call.config.name


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_recorded_call_is_right(runtime: Runtime, name: str) -> None:
    outcome = recorded.run(runtime, recorded_of(PROBLEMS[name]), EAGER)
    assert outcome.share <= 1
    assert outcome.changed == 0
    problem = PROBLEMS[name]
    written = problem.output.size[-2] * problem.output.size[-1]
    assert outcome.launches[-1].traffic["global written"] >= 2 * written


def test_what_cannot_be_run_is_said() -> None:
    name = first(PROBLEMS["mm"])
    plain = PROBLEMS["mm"]
    assert "sizes that vary" in str(recorded.recorded(None, name, H100))
    fused = replace(plain, epilogue="relu-0123")
    assert "has an epilogue" in str(recorded.recorded(fused, name, H100))
    assert "no CUTLASS product" in str(recorded.recorded(plain, "mm", H100))
    other = f"{PREFIX}cutlass_sm90_of_another_version"
    assert "is not offered any more" in str(recorded.recorded(plain, other, H100))
    wide = Problem("mm", tuple(replace(each, dtype="float64") for each in (A, B)), D)
    assert "no kernel for float64" in str(recorded.recorded(wide, name, H100))
