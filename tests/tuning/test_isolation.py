"""Which candidates are kept out of a race, which are tried again, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Store
from inductor_plugin.cache.quarantine import quarantine_name
from inductor_plugin.config import Config
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.isolation import Isolation
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


def condemned_by_hand(store: Store, name: str, digest: str, reason: str = "why") -> None:
    fields = {"candidate": name, "status": "raised", "reason": reason}
    store.quarantine(ENVIRONMENT, quarantine_name(name, digest), fields)


def test_entries_are_those_of_offered_candidates_on_this_problem(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a", "b"))
    for name, digest in (("a", ticket.digest), ("b", "f" * 64), ("stranger", ticket.digest)):
        condemned_by_hand(bench.store, name, digest)
    config = Config.load({}, environ={})
    here = Isolation(config, bench.store, ENVIRONMENT, Counters())
    entries_here = here.among(ticket.offers, ticket.digest)
    assert set(entries_here) == {"a"}
    assert here.condemned(entries_here["a"])
    assert not here.condemned(None)
    elsewhere = Isolation(config, bench.store, "o" * 16, Counters())
    assert elsewhere.among(ticket.offers, ticket.digest) == {}


def test_who_is_left_out_keeps_status_reason_and_time_and_who_is_tried_again_is_on_probation(
    tmp_path: Path,
) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a", "b", "c"))
    condemned_by_hand(bench.store, "a", ticket.digest, "it raised TypeError")
    mishap = {"candidate": "b", "status": "crashed", "reason": "SIGKILL"}
    bench.store.quarantine(ENVIRONMENT, quarantine_name("b", ticket.digest), mishap)
    isolation = Isolation(Config.load({}, environ={}), bench.store, ENVIRONMENT, Counters())
    quarantined = isolation.among(ticket.offers, ticket.digest)
    remaining = isolation.without(ticket, list(ticket.offers), quarantined)
    assert [offer.candidate_id for offer in remaining] == ["library", "b", "c"]
    assert ticket.on_probation == {"b"}
    row = ticket.measured["a"]
    assert (row.status, row.reason) == ("raised", "it raised TypeError")
    assert row.measured_at == quarantined["a"].created
    assert set(ticket.measured) == {"a"}


def test_a_failure_counts_for_the_process_and_for_its_problem(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a", "b"))
    assert ticket.task is not None
    fail(ticket, "a", "raised")
    for counters in (bench.counters, ticket.task.spent):
        stats = counters.snapshot()
        assert (stats.failed, stats.quarantined) == (1, 1)


def test_the_entry_says_what_failed_and_at_which_limits(tmp_path: Path) -> None:
    bench = rig(tmp_path, bench_timeout_s=7)
    ticket = bench.plan(offers("a"))
    fail(ticket, "a", "hung")
    (entry,) = bench.store.iter_quarantine()
    assert (entry.candidate, entry.status) == (quarantine_name("a", ticket.digest), "hung")
    assert entry.reason.startswith("ended")
    assert entry.fields["candidate"] == "a"
    assert entry.fields["problem"] == ticket.problem.describe()
    assert entry.fields["limits"]["bench_timeout_s"] == 7


def test_a_success_releases_only_who_was_on_probation(tmp_path: Path) -> None:
    """Another process may have condemned a candidate after this one had begun to measure it."""
    bench = rig(tmp_path)
    ticket = bench.plan(offers("a"))
    condemned_by_hand(bench.store, "a", ticket.digest)
    race(ticket, {"library": 1.0, "a": 0.5})
    assert [entry.status for entry in bench.store.iter_quarantine()] == ["raised"]
    assert entries(rig(tmp_path).plan(offers("a"), product=ticket.problem)) == []


def test_a_mishap_counts_only_under_the_limits_everybody_has(tmp_path: Path) -> None:
    """A limit of a second ends many a good kernel."""
    counted: dict[int, object] = {}
    for limit_s in (1, int(Config().bench_timeout_s)):
        bench = rig(tmp_path / str(limit_s), bench_timeout_s=limit_s)
        fail(bench.plan(offers("a")), "a", "hung")
        (entry,) = bench.store.iter_quarantine()
        counted[limit_s] = entry.mishaps
    assert list(counted.values()) == [0, 1]
