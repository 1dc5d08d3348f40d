"""What a budget compiles first, and when it stops compiling."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import FORWARD, Mask, arguments
from inductor_plugin.tuning import budget as budget_module
from inductor_plugin.tuning.budget import (
    MEASURE_PER_COMPILE,
    MEASURE_S,
    SHARE,
    Budget,
    compile_until,
    heaviest_first,
    heaviest_unit_first,
    weight,
)
from inductor_plugin.tuning.builds.item import BuildItem, urgency
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.task import TaskCandidate
from tests.support.fakes.tasks import entry, problem, task, triton_job
from tests.support.fakes.waiting import FakeClock


def linear(rows: int, inner: int, columns: int, device: str = "cpu") -> Problem:
    a = Operand((rows, inner), (inner, 1), "float32", device)
    b = Operand((inner, columns), (columns, 1), "float32", device)
    return Problem("mm", (a, b), Operand((rows, columns), (columns, 1), "float32", device))


def test_more_work_weighs_more() -> None:
    sizes = (64, 128, 256, 1024)
    weights = [weight(linear(size, size, size)) for size in sizes]
    assert weights == sorted(weights)
    # Twice as long a dot product: twice the operations.
    assert weight(linear(512, 2048, 512)) == pytest.approx(2 * weight(linear(512, 1024, 512)))


def test_a_product_of_a_vector_weighs_what_it_moves() -> None:
    moved = 4 * (4096 + 4096 * 4096 + 4096)
    assert weight(linear(1, 4096, 4096)) == moved
    # A square product of as many bytes is much longer.
    assert weight(linear(2365, 2365, 2365)) > 10 * moved


def test_a_wide_product_has_as_many_operations_as_a_long_one() -> None:
    """A language model's head has 31 times as many columns as terms in a sum."""
    flops = 2 * 4096 * 4096 * 126976
    assert weight(linear(4096, 4096, 126976)) == flops / 16
    assert weight(linear(4096, 126976, 4096)) == flops / 16


def test_what_an_epilogue_reads_adds_bytes_alone() -> None:
    bare = linear(512, 64, 512)
    wide = Operand((512, 1 << 16), (0, 1), "float32", "cpu")
    fused = replace(bare, inputs=(*bare.inputs, wide), epilogue="mul-0", epilogue_reads=1)
    assert weight(fused) == 4 * (2 * 512 * 64 + 512 * 512 + 512 * (1 << 16))


def test_a_gpu_has_more_operations_in_the_time_of_a_byte() -> None:
    assert weight(linear(512, 512, 512, "cuda")) < weight(linear(512, 512, 512))


def test_attention_weighs_by_its_scores() -> None:
    def call(keys: int) -> Problem:
        q = Operand((1, 8, keys, 64), (512 * keys, 64 * keys, 64, 1), "float16", "cuda")
        how = arguments(scale=0.125, mask=Mask(), operands=("q", "k", "v"))
        return Problem(FORWARD, (q, q, q), q, tuple((n, repr(v)) for n, v in how.items()))

    assert weight(call(8192)) > 3 * weight(call(4096))
    assert weight(call(8192)) == 2 * 2 * 8 * 8192 * 8192 * 64 / 200


def test_measuring_is_given_time_for_each_candidate_but_never_most_of_the_budget() -> None:
    assert compile_until(100.0, 10.0, 0, 0.0) == 100.0
    assert compile_until(100.0, 10.0, 5, 0.0) == 100.0 - 5 * MEASURE_S
    assert compile_until(100.0, 10.0, 5, 8.0) == 100.0 - 5 * 8.0 * MEASURE_PER_COMPILE
    assert compile_until(100.0, 10.0, 10_000, 0.0) == 100.0 - SHARE * 10.0
    assert SHARE < 0.5


def test_batches_come_heaviest_first_with_a_problem_s_candidates_together() -> None:
    rows = (64, 512, 64, 128, 512)
    for size, expected in ((1, [[1], [4], [3], [0], [2]]), (2, [[1, 4], [3, 0], [2]])):
        assert heaviest_first(range(5), lambda i: problem(rows=rows[i]), size) == expected


def test_units_and_the_kernels_in_them_come_heaviest_first() -> None:
    rows = {"a": 64, "b": 512, "c": 128, "d": 1024}
    units = heaviest_unit_first(["ab", "cd"], lambda name: problem(rows=rows[name]))
    assert units == [["d", "c"], ["b", "a"]]


def test_a_budget_runs_from_its_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(100.0)
    monkeypatch.setattr(budget_module, "time", clock)
    budget = Budget(10.0)
    assert budget.ends == math.inf
    clock.now = 200.0  # the graph was lowered
    assert not budget.over
    budget.start()
    clock.now = 205.0
    budget.start()
    assert budget.ends == 210.0
    clock.now = 210.5
    assert budget.over


def test_what_begins_in_time_may_use_half_of_what_is_kept_for_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(200.0)
    monkeypatch.setattr(budget_module, "time", clock)
    budget = Budget(10.0)
    budget.start()
    assert budget.admit(2) == 210.0 - 0.5 * 2 * MEASURE_S
    budget.compiled(4.0)
    budget.compiled(12.0)
    reserve_s = 5 * MEASURE_PER_COMPILE * 8.0
    assert budget.admit(3) == 210.0 - 0.5 * reserve_s
    clock.now = 210.0 - reserve_s
    assert budget.admit(0) == clock.now  # too late to begin


def test_a_problem_s_library_kernels_count_once_in_all_its_compile_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(200.0)
    monkeypatch.setattr(budget_module, "time", clock)
    budget = Budget(100.0)
    budget.start()
    kernels = [
        TaskCandidate(CandidateId(name, name, "triton", ""), build=triton_job(name))
        for name in "abcd"
    ]
    tuned = task([entry("library", library=True), *kernels], budget=budget)
    for count, kernel in enumerate(kernels, 2):
        _, until = urgency([BuildItem(tuned, kernel, lambda: None)])
        assert until() == 300.0 - 0.5 * count * MEASURE_S


def test_what_is_not_admitted_is_given_no_time_to_be_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(200.0)
    monkeypatch.setattr(budget_module, "time", clock)
    budget = Budget(10.0)
    budget.start()
    clock.now = 208.5
    assert budget.admit(40, {"many": 10}) < clock.now
    assert budget.admit(2, {"many": 10}) == 210.0 - 0.5 * 12 * MEASURE_S
