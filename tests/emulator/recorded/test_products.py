"""Recorded CUTLASS products as calls of the emulator: each operator's operands, and what cannot be run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.problem import Problem
from inductor_plugin.problem.definition import problem_in
from tests.emulator.kernels import build
from tests.emulator.machine.schedule import EAGER
from tests.emulator.recorded import products
from tests.emulator.recorded.call import Call
from tests.emulator.recorded.products import PREFIX, Product
from tests.emulator.runtime.runtime import Runtime
from tests.support.emulator.products import H100, LONG, ODD, PROBLEMS, WHOLE, A, B, D, first

CHOSEN = {
    "stream-K": (LONG, "cutlass_sm90_128x64x64_1x1x1_stream_k_bf16_bf16_f32_bf16_tn_align8"),
    "split K": (LONG, "cutlass_sm90_128x64x64_1x1x1_stream_k_bf16_bf16_f32_bf16_tn_align8_split8"),
    "a copy of A": (
        ODD,
        "cutlass_sm90_64x64x64_1x1x1_pingpong_bf16_bf16_f32_bf16_tn_align8_copied_0",
    ),
    "integers": (WHOLE, "cutlass_sm90_64x64x128_1x1x1_pingpong_s8_s8_s32_s32_tn_align16"),
}
"""Candidates that are not the first ones."""
PLAIN = "cutlass_sm90_64x64x64_1x1x1_pingpong_bf16_bf16_f32_bf16"
OF_THE_SUITE = {
    "mm": f"{PLAIN}_tn_align8",
    "mm behind an offset": f"{PLAIN}_tn_align8",
    "bmm": f"{PLAIN}_tt_align8",
    "baddbmm": f"{PLAIN}_tt_align8_bias_full_bf16",
}
"""Candidates whose kernels the suite compiles as well, in place of the first ones."""


def recorded_of(problem: Problem, name: str = "") -> Product:
    known = problem_in(problem.fields())
    assert known is not None
    product = products.recorded(known, name or first(problem), H100)
    assert isinstance(product, Product), product
    return product


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_kernel_is_known_by_its_name(name: str) -> None:
    product = recorded_of(PROBLEMS[name])
    assert first(PROBLEMS[name]).startswith(PREFIX + product.config.name)
    assert product.source.symbol == product.config.name


@pytest.mark.parametrize("name", CHOSEN)
def test_a_candidate_that_is_not_the_first_is_known_with_or_without_its_template(name: str) -> None:
    problem, candidate = CHOSEN[name]
    product = recorded_of(problem, candidate)
    assert candidate.startswith(product.config.name)
    assert product == recorded_of(problem, PREFIX + candidate)


def test_a_kernel_with_copies_reads_the_copies() -> None:
    problem, candidate = CHOSEN["a copy of A"]
    product = recorded_of(problem, candidate)
    assert product.problem.inputs[0].stride != problem.inputs[0].stride
    assert product.problem.inputs[0].stride[0] % 8 == 0
    call = products.call_of(problem, candidate, H100)
    assert isinstance(call, Call)
    assert call.note == "operands are copied before"


def chosen(name: str) -> Product:
    known = (PROBLEMS.get(name, LONG), OF_THE_SUITE.get(name, ""))
    return recorded_of(*CHOSEN.get(name, known))


@pytest.fixture(scope="module")
def built(runtime: Runtime) -> None:
    """Compile the nine kernels of all calls as one unit, which takes half as long as one after the other."""
    names = [*PROBLEMS, *CHOSEN]
    build.libraries([chosen(name).config for name in names], runtime.cudart)


@pytest.mark.slow
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", [*PROBLEMS, *CHOSEN])
def test_a_recorded_call_is_right(runtime: Runtime, name: str) -> None:
    product = chosen(name)
    outcome = products.run(runtime, product, EAGER)
    assert outcome.share <= 1
    assert outcome.changed == 0
    written = product.problem.output.size[-2] * product.problem.output.size[-1]
    assert sum(launch.traffic["global written"] for launch in outcome.launches) >= 2 * written


def test_what_cannot_be_run_is_said() -> None:
    plain = PROBLEMS["mm"]
    other = f"{PREFIX}cutlass_sm90_of_another_version"
    assert "is not offered on H100 by this version" in str(products.recorded(plain, other, H100))
    wide = Problem("mm", tuple(replace(each, dtype="float64") for each in (A, B)), D)
    assert "no kernel for float64" in str(products.recorded(wide, first(plain), H100))
