"""Recorded candidates as calls of the emulator: each operator's operands, and what cannot be run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.problem import Problem
from inductor_plugin.problem.definition import problem_in
from tests.emulator.kernels import recorded
from tests.emulator.kernels.recorded import PREFIX, Recorded
from tests.emulator.machine.schedule import EAGER
from tests.emulator.runtime.runtime import Runtime
from tests.support.emulator.products import H100, PROBLEMS, A, B, D, first


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
