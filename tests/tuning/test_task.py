"""A task knows who is left, who is the reference, and when its time is over."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.problem import Operand
from inductor_plugin.problem.attention import FORWARD, Mask, arguments, attention_of
from inductor_plugin.tuning import budget as budget_module
from inductor_plugin.tuning import race
from inductor_plugin.tuning.task import Agenda, TaskCandidate
from inductor_plugin.worker.devices.cpu import CPU
from inductor_plugin.worker.jobs import Outcome, Status
from tests.support.fakes.tasks import bench_candidate, budget, cpp_build, entry, task
from tests.support.fakes.waiting import FakeClock

SAMPLING = race.screening(CPU)


def fared(candidate: TaskCandidate, status: Status) -> TaskCandidate:
    candidate.outcome = Outcome(candidate.candidate_id, status)
    return candidate


def test_only_what_ran_and_is_right_is_alive() -> None:
    assert fared(entry("a"), "ok").alive
    assert not fared(entry("a"), "skipped").alive
    assert not fared(entry("a"), "wrong").alive
    assert not entry("a").alive


def test_builds_are_those_that_were_tried_and_not_those_that_need_none() -> None:
    built, slow, large, failed, killed, late, pending = (
        entry(name, build=cpp_build(name)) for name in "abcdefg"
    )
    for candidate in (built, fared(slow, "wrong")):
        candidate.ready = True
    fared(large, "pruned")  # for want of registers, once it was compiled
    fared(failed, "raised")
    fared(killed, "hung")
    fared(late, "skipped")
    library = entry("library", library=True)
    library.ready = True
    assert task([library, built, slow, large, failed, killed, late, pending]).builds == (3, 2)
    assert task([library]).builds == (0, 0)


def test_the_reference_is_the_first_library_kernel_that_may_still_run() -> None:
    first, second = entry("first", library=True), entry("second", library=True)
    pending = task([entry("a"), first, second])
    assert pending.reference is first
    fared(first, "raised")
    assert pending.reference is second
    fared(second, "ok")
    assert pending.reference is second
    fared(second, "skipped")
    assert pending.reference is None


def test_a_kernel_of_this_process_is_a_reference_only_where_no_other_is() -> None:
    here = entry("here", library=True, in_process=lambda: None)
    away = entry("away", library=True)
    assert task([here, away]).reference is away
    assert task([here]).reference is here


@pytest.mark.parametrize(
    ("exclusive", "library_may_win", "lead_ms"),
    [(True, True, 1.3), (True, False, 2.6), (False, True, math.inf)],
)
def test_who_cannot_win_on_a_cpu_is_known_by_the_times_of_those_that_can(
    lead_ms: float, *, exclusive: bool, library_may_win: bool
) -> None:
    library, rival, wrong, late = entry("library", library=True), entry("a"), entry("b"), entry("c")
    racing = task([library, rival, wrong, late], exclusive=exclusive)
    racing.library_may_win = library_may_win
    for candidate in (library, late):
        candidate.candidate = bench_candidate(candidate.candidate_id)
    assert racing.screening(late, library, SAMPLING).lead_ms == math.inf
    for candidate, ms in ((library, 1.0), (rival, 2.0), (wrong, 0.1)):
        fared(candidate, "wrong" if candidate is wrong else "ok").samples_ms = (ms,) * 5
    assert racing.screening(late, library, SAMPLING).lead_ms == pytest.approx(lead_ms)
    ends: Any = ("7 rows",)
    racing.ends = ends
    assert racing.lead_ms == math.inf


def test_an_entry_is_found_by_its_candidate() -> None:
    a, b = entry("a"), entry("b")
    assert task([a, b]).entry("b") is b
    with pytest.raises(KeyError, match="c"):
        task([a, b]).entry("c")


def test_who_has_an_outcome_is_screened() -> None:
    a, b = entry("a"), fared(entry("b"), "compile_failed")
    assert list(task([a, b]).unscreened()) == [a]


def test_who_has_a_least_time_waits_for_the_library_kernels() -> None:
    library, sure, other = entry("library", library=True), entry("sure"), entry("other")
    sure.least_ms = 1.0
    pending = task([library, sure, other])
    sure.ready = other.ready = True
    assert list(pending.screenable()) == [other]  # the library kernel still compiles
    library.ready = True
    assert list(pending.screenable()) == [library, other]
    fared(library, "ok")
    assert list(pending.screenable()) == [sure, other]
    pending.measured, library.outcome = False, None
    assert list(pending.screenable()) == [library, sure, other]


def test_a_task_is_late_once_its_budget_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(100.0)
    monkeypatch.setattr(budget_module, "time", clock)
    pending = task([], budget=budget(5.0))
    assert not pending.late
    clock.now = 105.1
    assert pending.late
    assert not task([]).late


def test_equal_tasks_are_two_tasks() -> None:
    assert task([]) != task([])
    assert entry("a") != entry("a")


def test_a_task_knows_the_attention_it_is_about() -> None:
    pending = task([entry("a", library=True)])
    assert pending.attention is None
    q = Operand((2, 4, 8, 16), (512, 128, 16, 1), "float32", "cuda")
    pending.problem = replace(pending.problem, op=FORWARD, inputs=(q, q, q), output=q)
    assert pending.attention is None  # no library kernel tells its scalars
    call_arguments = arguments(scale=0.25, mask=Mask(right=0), operands=("q", "k", "v"))
    texts = tuple((name, repr(value)) for name, value in call_arguments.items())
    pending.problem = replace(pending.problem, arguments=texts)
    assert pending.attention == attention_of(pending.problem)


def test_who_waits_for_a_compiler_is_passed_over_until_a_kernel_is_ready() -> None:
    agenda = Agenda()
    first, second = task([entry("a")], digest="first"), task([entry("b")], digest="second")
    agenda.add(first)
    agenda.add(second)
    agenda.rest(first)
    assert agenda.awake() == [second]
    agenda.wake(first)
    assert agenda.awake() == [first, second]
    assert list(agenda) == [first, second]
    agenda.remove(first)
    agenda.wake(first)
    assert agenda.awake() == [second]


def test_who_has_a_budget_or_awaits_news_is_looked_at_each_time() -> None:
    agenda = Agenda()
    limited, remote = task([entry("a")], budget=budget(60.0)), task([entry("b")])
    remote.awaits_news = True
    for each in (limited, remote):
        agenda.add(each)
        agenda.rest(each)
    assert set(agenda.awake()) == {limited, remote}
