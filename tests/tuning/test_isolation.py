"""Which candidates are kept out of a race, which are tried again, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache.quarantine import quarantine_name
from inductor_plugin.worker.jobs import Status
from tests.support.fakes.selection import ENVIRONMENT, Rig, entries, fail, offers, race, rig
from tests.support.fakes.tasks import problem


def test_quarantine_outlives_the_record(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("bad"))
    race(ticket, {"library": 1.0}, {"bad": "hung"})
    race(bench.plan(offers("bad")), {"library": 1.0}, {"bad": "hung"})
    bench.store.layout.record(ENVIRONMENT, "mm", ticket.digest).unlink()
    again = rig(tmp_path)
    ticket = again.plan(offers("bad"))
    assert entries(ticket) == ["library"]
    assert (ticket.measured["bad"].status, ticket.measured["bad"].reason) == (
        "hung",
        "why (option compile_timeout_s or bench_timeout_s)",
    )
    assert again.counters.snapshot().quarantined == 1


def test_who_was_blamed_for_memory_that_others_held_is_released(tmp_path: Path) -> None:
    """Earlier versions condemned the candidates of all large problems while a model filled the GPU."""
    first = rig(tmp_path)
    ticket = first.plan(offers("a", "b"))
    for name, status, reason in (
        ("a", "out_of_memory", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("b", "out_of_memory", "benchmark worker of cuda:0 was killed by SIGKILL"),
    ):
        for _ in range(2):
            fields = {"candidate": name, "status": status, "reason": reason}
            first.store.quarantine(ENVIRONMENT, quarantine_name(name, ticket.digest), fields)
    again = rig(tmp_path)
    ticket = again.plan(offers("a", "b"))
    assert [each.candidate for each in again.store.iter_quarantine()] == [
        quarantine_name("b", ticket.digest)
    ]
    assert ticket.task is not None
    assert {each.candidate_id for each in ticket.task.entries} == {"library", "a"}


def test_quarantine_is_for_one_problem(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    race(bench.plan(offers("bad")), {"library": 1.0}, {"bad": "hung"})
    assert entries(bench.plan(offers("bad"), product=problem(rows=4096))) == ["library", "bad"]
    assert quarantine_name("bad", "a" * 64) != quarantine_name("bad", "b" * 64)


@pytest.mark.parametrize("status", ["hung", "out_of_memory"])
def test_a_candidate_ended_by_the_users_limit_comes_back_with_a_higher_one(
    tmp_path: Path, status: Status
) -> None:
    low: dict[str, Any] = {"bench_timeout_s": 1, "worker_memory_bytes": 1 << 20}
    for _ in range(2):
        fail(rig(tmp_path, **low).plan(offers("a")), "a", status)
    assert rig(tmp_path, **low).plan(offers("a")).task is None
    again = rig(tmp_path, worker_memory_bytes=0).plan(offers("a"))
    assert "a" in entries(again)
    # What happened under the low limit does not count: one failure under the default is the first.
    fail(again, "a", status)
    assert "a" in entries(rig(tmp_path).plan(offers("a")))


@pytest.mark.parametrize("status", ["hung", "crashed", "out_of_memory", "sticky_error"])
def test_a_mishap_condemns_at_the_second_time(
    tmp_path: Path, status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    fail(rig(tmp_path).plan(offers("a")), "a", status)
    assert "the next process tries it once more" in caplog.text
    again = rig(tmp_path).plan(offers("a"))
    assert entries(again) == ["library", "a"]
    caplog.clear()
    fail(again, "a", status)
    assert "is not used" in caplog.text
    assert "once more" not in caplog.text
    known = rig(tmp_path).plan(offers("a"))
    assert known.hit
    assert known.measured["a"].status == status


@pytest.mark.parametrize("status", ["wrong", "red_zone", "raised", "compile_failed"])
def test_what_a_candidate_did_itself_condemns_at_once(tmp_path: Path, status: Status) -> None:
    fail(rig(tmp_path).plan(offers("a")), "a", status)
    known = rig(tmp_path).plan(offers("a"))
    assert known.hit
    assert known.measured["a"].status == status


def test_a_mishap_that_went_well_the_second_time_is_forgotten(tmp_path: Path) -> None:
    fail(rig(tmp_path).plan(offers("a")), "a", "crashed")
    race(rig(tmp_path).plan(offers("a")), {"library": 1.0, "a": 0.5})
    bench = rig(tmp_path)
    assert list(bench.store.iter_quarantine()) == []
    known = bench.plan(offers("a"))
    assert known.hit
    assert bench.selection.decide(known).winner == "a"


def test_a_library_kernel_is_never_put_into_quarantine(tmp_path: Path) -> None:
    bench: Rig = rig(tmp_path, bench_timeout_s=1)
    fail(bench.plan(offers("a")), "library", "hung")
    assert list(bench.store.iter_quarantine()) == []
    assert "library" in entries(rig(tmp_path, bench_timeout_s=1).plan(offers("a")))
