"""Screenings and finals in this process, quickly: each kind of fault once. Every fault in every type is in `test_numbers`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from inductor_plugin.worker.child import bench, verdict
from inductor_plugin.worker.jobs import COMPARED_ONCE, Event, Outcome
from tests.support.candidates import wrong_numbers
from tests.support.worker.number_jobs import K, M, N, jobs, screened, weighted, with_end


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Whether a kernel is steady is in `test_verdict`.
    monkeypatch.setattr(verdict, "_STEADY_S", 0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of so few numbers they would wait for each other
    yield
    torch.set_num_threads(threads)
    wrong_numbers.reset()
    # To release them would collect garbage, which takes seconds among thousands of tests.
    bench._kept.clear()  # pyright: ignore[reportPrivateUsage]


def screening_of(name: str, dtype: str = "float32", op: str = "mm") -> Outcome:
    """Screen a candidate; one that is wrong between rows has operand and output with gaps there."""
    fault = getattr(wrong_numbers, name)
    gap = 8 if fault in wrong_numbers.OF_LAYOUTS else 0
    return screened(jobs(fault, dtype, op, pitch=K + gap, out_pitch=N + gap)[0])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("keeps_addresses", "other addresses"),
        ("packs_by_address", "other addresses"),
        ("adds_to_numbers", "error"),
        ("hides_nan", "a number where the library kernel has NaN"),
        ("reads_padding", "NaN or infinite"),
        ("saturates", "operands times 2^20"),
        ("flushes_factors", "operands times 2^-20"),
        ("writes_a", "it changed its operand 0"),
        ("clears_b", "it changed its operand 1"),
        ("fills_gaps", "elements between those of its output"),
    ],
)
def test_a_fault_of_each_kind_is_refused_before_anything_is_measured(
    fault: str, reason: str
) -> None:
    outcome = screening_of(fault)
    assert outcome.status == ("red_zone" if reason.startswith(("it ch", "elem")) else "wrong")
    assert reason in outcome.reason
    assert not outcome.samples_ms


@pytest.mark.parametrize(
    ("fault", "dtype", "op"),
    [
        ("clamps_result", "float16", "mm"),
        ("reads_int8", "int32", "mm"),
        ("clamps_c", "float32", "addmm"),
    ],
)
def test_a_fault_of_a_type_or_of_what_is_added_is_refused(fault: str, dtype: str, op: str) -> None:
    assert screening_of(fault, dtype, op).status == "wrong"


def test_an_honest_kernel_is_measured_and_what_its_check_takes_is_known() -> None:
    screen, final = jobs(wrong_numbers.exact, "float32", "mm", pitch=K + 8, out_pitch=N + 8)
    events: list[Event] = []
    outcome: Any = bench.run(screen, events.append)
    assert (outcome.status, outcome.reason, len(outcome.samples_ms)) == ("ok", "", 12)
    assert outcome.error is not None
    assert 0 < outcome.check_s < outcome.elapsed_s
    # Whatever breaks the process is the fault of who has started last.
    assert [each.subject for each in events if each.what == "start"][-1] == "exact"
    finalists: Any = bench.run(final, lambda _event: None)
    assert [each.status for each in finalists] == ["ok", "ok"]
    assert [each.error is not None for each in finalists] == [False, True]
    assert [each.check_s > 0 for each in finalists] == [True, False]


def test_operands_whose_exp_overflows_are_tried_where_large_ones_are_not() -> None:
    screen, _ = jobs(wrong_numbers.overflows_early, "float32", "mm")
    assert screen.check is not None
    check = replace(screen.check, large_values=False, steep=2)
    assert screened(replace(screen, check=check)).status == "wrong"


def test_what_is_right_at_the_measured_size_alone_is_refused_with_that_size() -> None:
    job = jobs(wrong_numbers.last_tile_missing, "float32", "mm")[0]
    outcome = screened(with_end(job, M - 7, "float32"))
    assert (outcome.status, outcome.samples_ms) == ("wrong", ())
    assert outcome.reason.endswith("(at size 17 rows)")


def test_a_size_that_the_library_kernel_cannot_compute_is_said_and_the_rest_is_measured() -> None:
    job = with_end(jobs(wrong_numbers.exact, "float32", "mm")[0], M - 7, "float32")
    (end,) = job.ends
    assert end.library is not None
    broken = replace(end.library, inputs=end.library.inputs[::-1])
    outcome = screened(replace(job, ends=(replace(end, library=broken),)))
    assert (outcome.status, len(outcome.samples_ms)) == ("ok", 12)
    assert outcome.reason.startswith("not compared at size 17 rows: the library kernel raised")


def test_without_anything_to_compare_with_a_candidate_is_not_measured(tmp_path: Path) -> None:
    alone = replace(jobs(wrong_numbers.exact, "float32", "mm")[0], library=None)
    outcome = screened(alone)
    assert (outcome.status, "no library kernel" in outcome.reason) == ("skipped", True)
    assert screened(replace(alone, check=None, problem_id="unchecked")).status == "ok"
    zeros = weighted(wrong_numbers.exact, torch.zeros(K, N), tmp_path / "0.bin")
    zeros = replace(zeros, problem_id="zeros")
    outcome = screened(zeros)
    assert (outcome.status, "no numbers to compare" in outcome.reason) == ("skipped", True)
    assert zeros.library is not None
    assert screened(replace(zeros, candidate=zeros.library)).status == "ok"


def test_finals_compare_again_and_name_who_writes_an_operand() -> None:
    _, final = jobs(wrong_numbers.every_10th_call, "float32", "mm")
    library, faulty = bench.final(final, lambda _event: None)
    assert (library.status, faulty.status) == ("ok", "wrong")
    assert "called again" in faulty.reason
    _, final = jobs(wrong_numbers.writes_a, "float32", "mm")
    honest = jobs(wrong_numbers.exact, "float32", "mm")[0].candidate
    racers = (*final.candidates, honest)
    library, writes, innocent = bench.final(
        replace(final, candidates=racers, problem_id="written"), lambda _event: None
    )
    assert (library.status, writes.status, innocent.status) == ("ok", "red_zone", "ok")
    assert writes.reason == "it changed its operand 0"


def test_who_cannot_win_is_compared_once_and_wholly_in_the_finals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen, final = jobs(wrong_numbers.keeps_addresses, "float32", "mm")
    behind = replace(screen, lead_ms=0.0)
    outcome = screened(behind)
    assert (outcome.status, len(outcome.samples_ms)) == ("ok", 12)
    assert (COMPARED_ONCE, True) in outcome.conditions
    assert screened(jobs(wrong_numbers.too_large, "float32", "mm")[0]).status == "wrong"
    assert [each.status for each in bench.final(final, lambda _event: None)] == ["ok", "wrong"]
    assert screened(replace(screen, lead_ms=1e6)).status == "wrong"
    honest, final = jobs(wrong_numbers.exact, "float32", "mm")
    assert (COMPARED_ONCE, True) not in screened(replace(honest, lead_ms=1e6)).conditions
    # Two calls were slow, its samples are not.
    monkeypatch.setattr(bench, "_may_win", Mock(return_value=False))
    assert screened(replace(screen, problem_id="another", lead_ms=1e6)).status == "wrong"
    assert [each.status for each in bench.final(final, lambda _event: None)] == ["ok", "ok"]


def test_who_changed_an_operand_once_is_not_told_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, final = jobs(wrong_numbers.exact, "float32", "mm")
    changes = iter(["it changed its operand 0"])

    def changed(_state: object, _specs: object) -> str:
        return next(changes, "")

    monkeypatch.setattr(bench.ProblemState, "changed", changed)
    library, exact = bench.final(final, lambda _event: None)
    assert (library.status, exact.status) == ("ok", "skipped")


def test_a_wrong_candidate_leaves_fresh_operands_to_the_next() -> None:
    """It may have damaged them in a way that is not seen."""
    screen, _ = jobs(wrong_numbers.too_large, "float32", "mm")
    assert screened(screen).status == "wrong"
    problem = bench._kept[screen.problem_id]  # pyright: ignore[reportPrivateUsage]
    assert problem.tensors == {}
    assert screened(jobs(wrong_numbers.exact, "float32", "mm")[0]).status == "ok"
