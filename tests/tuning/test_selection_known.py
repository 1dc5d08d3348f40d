"""What an earlier compile or another process has measured: taken over, and only the rest measured."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.cache import document
from inductor_plugin.cache.record import to_fields
from inductor_plugin.ops.native import source
from inductor_plugin.problem.number_check import REVISION
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.measurement import related_ms
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.tuning.ticket import BY_PYTHON, TuningTicket
from inductor_plugin.tuning.validity import NOT_CHECKED
from inductor_plugin.worker.jobs import COMPARED_ONCE
from tests.support.cache.records import measured
from tests.support.fakes.selection import (
    Rig,
    entries,
    offers,
    race,
    rig,
)
from tests.support.fakes.tasks import problem


def test_what_was_measured_once_is_known_to_the_next_process(tmp_path: Path) -> None:
    first = rig(tmp_path)
    ticket = first.plan(offers("a"))
    assert not ticket.hit
    race(ticket, {"library": 2.0, "a": 1.0})
    assert first.selection.decide(ticket).winner == "a"
    second = rig(tmp_path)
    again = second.plan(offers("a"))
    assert again.hit
    assert again.task is None
    assert second.selection.decide(again) == first.selection.decide(ticket)
    stats = second.counters.snapshot()
    assert (stats.problems, stats.record_hits, stats.record_misses, stats.candidates) == (
        1,
        1,
        0,
        2,
    )


def test_only_the_unseen_are_measured_beside_the_library_kernel(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    race(bench.plan(offers("a", "b")), {"library": 2.0, "a": 1.0, "b": 1.5})
    ticket = bench.plan(offers("a", "b", "c"))
    assert entries(ticket) == ["library", "c"]
    race(ticket, {"library": 2.2, "c": 0.5})
    assert bench.selection.decide(ticket).winner == "c"
    assert set(bench.record(ticket).candidates) == {"library", "a", "b", "c"}
    assert bench.record(ticket).candidates["library"].median_ms == pytest.approx(2.2)


def test_candidates_of_different_days_are_compared_by_the_library_kernel_of_their_race(
    tmp_path: Path,
) -> None:
    """On the second day all take 1.2x as long: the kernel that was measured on the first is no faster for that."""
    race(rig(tmp_path).plan(offers("a")), {"library": 1.0, "a": 0.8}, finalists=("library", "a"))
    ticket = rig(tmp_path).plan(offers("a", "b"))
    assert entries(ticket) == ["library", "b"]
    race(ticket, {"library": 1.2, "b": 0.85}, finalists=("library", "b"))
    for known in (ticket, rig(tmp_path).plan(offers("a", "b"))):
        verdict = known.selection.decide(known)
        assert verdict.winner == "b"
        assert verdict.speedup == pytest.approx(1.2 / 0.85, rel=1e-4)
    alone = rig(tmp_path).plan(offers("a"))
    assert alone.selection.decide(alone).speedup == pytest.approx(1.25, rel=1e-4)


@pytest.mark.parametrize(
    ("reference", "then", "expected"),
    [
        ("library", 1.0, 0.96),
        ("library", 1.20001, 0.8),  # written with six digits
        ("late", 1.0, None),
        ("gone", 1.0, None),
        (["library"], 1.0, None),
        ("library", "1.0", None),
        ("library", 0.0, None),
        ("library", 10**400, None),
        (None, None, None),
    ],
)
def test_a_time_is_related_to_a_calm_library_kernel(
    reference: object, then: object, expected: float | None
) -> None:
    provenance = {"reference": reference, "reference_ms": then}
    rows = {
        "library": measured("library", 1.2),
        "late": measured("late", 1.2, provenance={"disturbed": True}),
    }
    row = measured("a", 0.8, provenance=provenance)
    assert related_ms(row, rows) == (None if expected is None else pytest.approx(expected))


def test_finalists_of_an_earlier_version_are_measured_again_with_new_ones(tmp_path: Path) -> None:
    """Their records do not say how long the library kernel took in their race."""
    bench = rig(tmp_path)
    first = bench.plan(offers("a", "slow"))
    race(first, {"library": 2.0, "a": 1.0, "slow": 9.0}, finalists=("library", "a"))
    record = bench.record(first)
    rows = {
        name: replace(row, provenance={"race": row.provenance["race"], "check": REVISION})
        for name, row in record.candidates.items()
    }
    path = bench.store.layout.record(record.environment, record.op, record.digest)
    path.write_bytes(document.dump(to_fields(replace(record, candidates=rows))))
    assert rig(tmp_path).plan(offers("a", "slow")).hit
    again = rig(tmp_path).plan(offers("a", "slow", "b"))
    assert entries(again) == ["library", "a", "b"]
    race(again, {"library": 2.0, "a": 1.0, "b": 1.5}, finalists=("library", "a", "b"))
    assert entries(rig(tmp_path).plan(offers("a", "slow", "b", "c"))) == ["library", "c"]


def test_a_failed_candidate_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("bad"))
    race(ticket, {"library": 1.0}, {"bad": "raised"})
    assert "bad is not used" in caplog.text
    assert bench.counters.snapshot().failed == 1
    again = bench.plan(offers("bad"))
    assert again.hit
    assert again.task is None
    assert again.measured["bad"].status == "raised"


def test_what_python_has_launched_is_measured_again_once_there_are_call_sites(
    tmp_path: Path,
) -> None:
    first = rig(tmp_path)
    ticket = first.plan(offers("a", "b"))
    assert ticket.task is not None
    for each in ticket.task.entries:
        python = {"launched_by_python": True} if each.candidate_id == "a" else {}
        each.conditions = {"host_ms": 0.02} | python
    race(ticket, {"library": 0.010, "a": 0.006, "b": 0.008})
    assert first.selection.decide(ticket).winner in ("a", "b", "library")
    assert rig(tmp_path).plan(offers("a", "b")).hit
    first.store.put_kernel(source.key(), {"kernel.so": b"the library"})
    assert rig(tmp_path, policy="cached").plan(offers("a", "b")).hit
    again = rig(tmp_path).plan(offers("a", "b"))
    assert not again.hit
    assert again.void == {"a": BY_PYTHON}
    assert entries(again) == ["library", "a"]
    race(again, {"library": 0.010, "a": 0.006})  # by a call site now, or Python again: only once
    assert rig(tmp_path).plan(offers("a", "b")).hit


def test_a_skipped_candidate_is_tried_again_and_not_blamed(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    race(ticket, {"library": 1.0}, {"a": "skipped"})
    assert bench.counters.snapshot().failed == 0
    again = bench.plan(offers("a"))
    assert not again.hit
    assert entries(again) == ["library", "a"]


def test_policy_cached_measures_nothing_and_decides_from_what_is_known(tmp_path: Path) -> None:
    tuned = rig(tmp_path)
    race(tuned.plan(offers("a")), {"library": 2.0, "a": 1.0})
    bench = rig(tmp_path, policy="cached")
    ticket = bench.plan(offers("a", "unseen"))
    assert ticket.task is None
    assert bench.selection.decide(ticket).winner == "a"
    assert bench.counters.snapshot().record_misses == 1
    ticket = bench.plan(offers("a"), product=problem(rows=4096))
    assert bench.selection.decide(ticket).winner == "library"


def test_known_candidates_are_not_prepared(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    created: list[str] = []

    def counted(o: CandidateOffer) -> CandidateOffer:
        def prepare(own: CandidateId) -> TaskCandidate:
            created.append(own.name)
            return o.prepare(own)

        return replace(o, prepare=prepare)

    race(bench.plan(offers("a")), {"library": 2.0, "a": 1.0})
    bench.plan([counted(o) for o in offers("a")])
    assert created == []
    bench.plan([counted(o) for o in offers("a", "b")])
    assert created == ["library", "b"]


def test_what_another_process_measured_meanwhile_is_taken_over(tmp_path: Path) -> None:
    mine, theirs = rig(tmp_path), rig(tmp_path)
    ticket = mine.plan(offers("a", "b"))
    race(theirs.plan(offers("a", "b")), {"library": 2.0, "a": 1.0, "b": 1.5})
    task = ticket.task
    assert task is not None
    assert task.refresh(task) == 3
    assert task.entries == []
    task.finish(task)
    assert mine.selection.decide(ticket).winner == "a"


def test_what_another_process_left_out_is_still_measured(tmp_path: Path) -> None:
    mine, theirs = rig(tmp_path), rig(tmp_path)
    ticket = mine.plan(offers("a", "b"))
    race(theirs.plan(offers("a")), {"library": 2.0, "a": 1.0})
    task = ticket.task
    assert task is not None
    task.refresh(task)
    assert entries(ticket) == ["library", "b"]
    race(ticket, {"library": 2.0, "b": 0.5})
    assert mine.selection.decide(ticket).winner == "b"
    assert set(mine.record(ticket).candidates) == {"library", "a", "b"}


def planned_at_once(*rigs: Rig) -> list[TuningTicket]:
    """Plan the same problem in several processes that all measure it, as on a disk without locks."""
    tickets = [each.plan(offers("a")) for each in rigs]
    for ticket in tickets:
        assert ticket.task is not None
        ticket.task.refresh = lambda _task: 0
    return tickets


def test_all_processes_decide_from_the_same_timings(tmp_path: Path) -> None:
    mine, theirs = rig(tmp_path), rig(tmp_path)
    tickets = planned_at_once(mine, theirs)
    race(tickets[0], {"library": 2.0, "a": 1.0})
    race(tickets[1], {"library": 1.0, "a": 2.0})
    late = rig(tmp_path)
    last = late.selection.decide(late.plan(offers("a")))
    assert last.winner == theirs.selection.decide(tickets[1]).winner == "library"


@pytest.mark.parametrize("ahead_s", [0.0, 4e9])
def test_a_failure_seen_here_is_not_replaced_by_unchecked_numbers(
    tmp_path: Path, ahead_s: float
) -> None:
    """A clock that was ahead makes a measurement the newest for ever."""
    unchecked = rig(tmp_path, verify_numerics=False)
    first = unchecked.plan(offers("a"))
    race(first, {"library": 1.0, "a": 0.5})
    record = unchecked.record(first)
    later = {
        name: replace(measured, measured_at=measured.measured_at + ahead_s)
        for name, measured in record.candidates.items()
    }
    unchecked.store.put_record(replace(record, candidates=later))
    for _ in range(2):
        ticket = rig(tmp_path).plan(offers("a"))
        if ticket.task is not None:
            race(ticket, {"library": 1.0}, {"a": "wrong"})
        assert rig(tmp_path).selection.decide(ticket).winner == "library"
        assert ticket.measured["a"].status == "wrong"


def test_a_failure_seen_here_holds_beside_another_process_whose_clock_is_ahead(
    tmp_path: Path,
) -> None:
    here, there = rig(tmp_path), rig(tmp_path)
    tickets = planned_at_once(here, there)
    race(tickets[1], {"library": 1.0, "a": 0.5})
    record = there.record(tickets[1])
    ahead = replace(record.candidates["a"], measured_at=time.time() + 60)
    there.store.put_record(replace(record, candidates={**record.candidates, "a": ahead}))
    race(tickets[0], {"library": 1.0}, {"a": "wrong"})
    assert here.record(tickets[0]).candidates["a"].status == "ok"
    assert here.selection.decide(tickets[0]).winner == "library"


def test_what_one_graph_gives_up_is_the_winner_in_others(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    ticket.held = True
    race(ticket, {"library": 2.0, "a": 1.0})
    decision = bench.selection.record_of(ticket).decision  # what ranks publish
    assert decision is not None
    assert (decision.winner, bench.selection.chosen(ticket).winner) == ("a", "a")
    verdict = bench.selection.decide(ticket)
    assert (verdict.winner, verdict.given_up) == ("library", "a")
    assert ticket.verdict == verdict


def test_what_was_measured_still_has_to_be_compiled_where_that_is_asked_for(tmp_path: Path) -> None:
    race(rig(tmp_path).plan(offers("a")), {"library": 1.0, "a": 0.5})
    ticket = rig(tmp_path, policy="build").plan(offers("a"))
    assert entries(ticket) == ["library", "a"]
    assert ticket.task is not None
    assert not ticket.task.measured


def test_what_was_not_used_here_is_taken_over_once_another_process_has_measured_it_again(
    tmp_path: Path,
) -> None:
    race(rig(tmp_path, verify_numerics=False).plan(offers("a")), {"library": 1.0, "a": 0.5})
    mine, theirs = (rig(tmp_path).plan(offers("a")) for _ in range(2))
    assert mine.task is not None
    assert set(mine.void) == {"a"}
    assert mine.task.refresh(mine.task) == 0
    race(theirs, {"library": 1.0, "a": 0.4})
    mine.task.refresh(mine.task)
    assert mine.measured["a"].median_ms == pytest.approx(0.4)
    assert entries(mine) in ([], ["library"])


@pytest.mark.parametrize(
    ("once", "backends", "again", "winner"),
    [
        (("a", "b"), "", (), "library"),
        (("b",), "CPP", (), "a"),  # which is faster, and was compared wholly
        (("a", "b"), "CPP", ("a", "b"), "a"),
    ],
)
def test_who_was_compared_once_does_not_win_and_is_measured_again_where_it_may(
    tmp_path: Path, once: tuple[str, ...], backends: str, again: tuple[str, ...], winner: str
) -> None:
    times_ms = {"library": 1.0, "a": 2.0, "b": 3.0}
    ticket = rig(tmp_path).plan(offers("a", "b"))
    assert ticket.task is not None
    for name in once:
        ticket.task.entry(name).conditions = {COMPARED_ONCE: True}
    race(ticket, times_ms)
    known = rig(tmp_path, gemm_backends=backends)
    ticket = known.plan(offers("a", "b"))
    assert tuple(name for name in entries(ticket) if name != "library") == again
    assert set(ticket.void.values()) == ({NOT_CHECKED} if again else set())
    if ticket.task is not None:
        race(ticket, times_ms)
    assert known.selection.decide(ticket).winner == winner


def test_who_was_compared_once_does_not_win_by_the_failure_of_the_others(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a", "b"))
    assert ticket.task is not None
    ticket.task.entry("a").conditions = {COMPARED_ONCE: True}
    race(ticket, {"a": 2.0}, {"library": "raised", "b": "wrong"})
    assert bench.selection.decide(ticket).winner is None
