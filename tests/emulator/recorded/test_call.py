"""How long a recorded call takes, by its size."""

from __future__ import annotations

from dataclasses import replace

from inductor_plugin.problem import Problem
from tests.emulator.machine.schedule import Schedule
from tests.emulator.recorded.call import OPERATIONS_A_SECOND, Call, on
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.row import Verdict
from tests.support.attention.problems import attention
from tests.support.emulator.products import H100, PROBLEMS, K, M, N


def call(problem: Problem) -> Call:
    def run(_runtime: Runtime, _schedule: Schedule) -> Verdict:
        raise AssertionError

    return Call("a kernel", problem, run)


def test_the_time_of_a_call_is_that_of_its_operations() -> None:
    product = call(on(PROBLEMS["mm"], H100))
    assert product.seconds == 2 * M * N * K / OPERATIONS_A_SECOND
    assert product.target is H100
    batch = call(PROBLEMS["bmm"])
    assert batch.seconds == 3 * product.seconds
    heads = attention(batch=2, heads=3, queries=70, keys=90, dim=64)
    assert call(heads).seconds == 4 * 2 * 3 * 70 * 90 * 64 / OPERATIONS_A_SECOND
    assert call(replace(heads)).seconds < call(attention()).seconds
