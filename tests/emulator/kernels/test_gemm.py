"""The project's CUTLASS products: its sources, compiler, host code and C interface, on GPUs that are not there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.problem.target import target
from tests.emulator.kernels import gemm
from tests.emulator.kernels.gemm import Case
from tests.emulator.machine.schedule import ALL, EAGER, Schedule
from tests.emulator.runtime.runtime import Runtime
from tests.support.emulator.products import BF16

pytestmark = pytest.mark.slow

COOPERATIVE = replace(BF16, schedule="cooperative", cluster=(1, 1, 1), bias="row")
SM80 = replace(
    BF16, arch="sm_80", schedule="multistage", cluster=(1, 1, 1), tile=(128, 128, 32), stages=4
)
# It is compiled for a minute: a kernel of the suite, as is BF16.
SM100 = replace(
    BF16, arch="sm_100a", schedule="two_sm", tile=(128, 64, 64), layout_b="row", bias="row"
)

CASES = {
    "sm80": (Case(SM80, 130, 136, 72), "A100"),
    "sm80 on a newer GPU": (Case(SM80, 130, 136, 72), "L40S"),
    "sm80 batch": (Case(SM80, 131, 72, 40, batch=3, pad=8, shared_b=True, alpha=0.5), "A100"),
    "sm80 split": (Case(SM80, 70, 136, 200, split=3), "A100"),
    "pingpong": (Case(BF16, 259, 136, 200), "H100"),
    "pingpong, few multiprocessors": (Case(BF16, 771, 128, 136, multiprocessors=2), "H100"),
    "pingpong, batch": (Case(BF16, 131, 136, 72, batch=3, shared_b=True, pad=8), "H200"),
    "cooperative": (Case(COOPERATIVE, 261, 200, 136, alpha=0.5, beta=2.0), "H200"),
    "sm100": (Case(SM100, 259, 136, 200, alpha=0.5, beta=2.0), "B200"),
}


@pytest.mark.parametrize("schedule", ALL, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_product_is_right(runtime: Runtime, name: str, schedule: Schedule) -> None:
    case, gpu = CASES[name]
    outcome = gemm.run(runtime, case, target(gpu), schedule)
    assert outcome.error <= 1
    assert outcome.changed == 0
    (launch,) = outcome.launches
    if schedule == EAGER and case.split == 1:  # the parts of a split sum are written besides
        once = case.m * case.n * gemm.DTYPES[case.config.d].itemsize * max(case.batch, 1)
        assert once <= launch.traffic["global written"] <= 1.25 * once
    assert (launch.products > 0) == (case.config.arch != "sm_80")
    # The epilogue for sm_100 ends with stores that nobody waits for.
    stores = [line for line in launch.unfinished if " bulk store operations " in line]
    assert list(launch.unfinished) == (stores if case.config.arch == "sm_100a" else [])


def test_a_wait_that_is_taken_out_is_noticed(runtime: Runtime) -> None:
    """The test of the tests: without one of its waits a kernel is wrong in a schedule."""
    case, gpu = CASES["sm80"]

    def without_waits(text: str) -> str:
        return text.replace("cp.async.wait_group", "// cp.async.wait_group")

    with runtime.edited(without_waits):
        errors = [gemm.run(runtime, case, target(gpu), schedule).error for schedule in ALL[:2]]
    assert errors[0] <= 1
    assert not errors[1] <= 1
