"""Recorded CUTLASS attention as cases of the emulator: what they take from a record, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import Mask
from inductor_plugin.problem.target import target
from tests.emulator.kernels.attention import Case
from tests.emulator.machine.schedule import EAGER
from tests.emulator.recorded import heads
from tests.emulator.recorded.call import Call
from tests.emulator.recorded.heads import PREFIX
from tests.emulator.runtime.runtime import Runtime
from tests.support.attention.problems import attention, changed

H100 = target("H100")
FORWARD = "cutlass_fmha_sm90_128x64x64_cooperative_bf16_stages5"
BACKWARD = "cutlass_fmha_backward_sm90_64x128x64_bf16"
SIZES: dict[str, Any] = {
    "batch": 1,
    "heads": 2,
    "kv_heads": 1,
    "queries": 133,
    "keys": 150,
    "dim": 64,
}
WINDOW = Mask(left=70, right=5, bottom_right=True)
PLAIN = attention(**SIZES)
SPREAD = (133 * 2 * 64, 64, 2 * 64, 1)
PROBLEMS: dict[str, tuple[Problem, str]] = {
    "forward": (attention(**SIZES, mask=WINDOW, scale=0.3), FORWARD),
    "no lse": (attention(**SIZES, lse=False), FORWARD),
    "rows of heads side by side, behind an offset": (
        changed(PLAIN, "q", stride=SPREAD, offset=64),
        FORWARD,
    ),
    "gradient": (attention(**SIZES, mask=Mask(right=0), scale=0.2, backward=True), BACKWARD),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_case_has_what_the_record_says(name: str) -> None:
    problem, kernel = PROBLEMS[name]
    case = heads.case_of(replace(problem, target=H100), PREFIX + kernel)
    assert isinstance(case, Case), case
    assert case.config.name == kernel
    assert (case.batch, case.heads, case.heads_kv) == (1, 2, 1)
    assert (case.queries, case.keys, case.dim) == (133, 150, 64)
    assert f"scale={case.scale}" in [f"{name}={text}" for name, text in problem.arguments]
    assert case.lse == (
        name in ("forward", "rows of heads side by side, behind an offset", "gradient")
    )
    if name == "forward":
        assert (case.left, case.right, case.bottom_right) == (70, 5, True)
    q = problem.inputs[1 if case.config.backward else 0]
    assert case.layouts["q"] == (q.stride, q.offset)
    assert case.layouts["dk" if case.config.backward else "out"][0] == problem.output.stride


@pytest.mark.slow
def test_a_recorded_attention_is_right(runtime: Runtime) -> None:
    for name, (problem, kernel) in PROBLEMS.items():
        call = heads.call_of(problem, PREFIX + kernel, H100)
        assert isinstance(call, Call), call
        verdict = call.run(runtime, EAGER)
        assert verdict.error <= 1, name
        assert verdict.changed == 0, name
        assert sum(launch.products for launch in verdict.launches) > 0, name


def test_what_cannot_be_run_is_said() -> None:
    refused = str(heads.call_of(PLAIN, f"{PREFIX}cutlass_fmha_of_another_version", H100))
    assert "is not offered by this version" in refused
    assert FORWARD in refused
    elsewhere = str(heads.call_of(PLAIN, PREFIX + FORWARD, target("B200")))
    assert "B200 is sm_100a" in elsewhere
    capped = attention(**SIZES, softcap=3.0)
    assert "no soft-cap" in str(heads.call_of(capped, PREFIX + FORWARD, H100))
