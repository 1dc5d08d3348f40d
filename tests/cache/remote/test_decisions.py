"""Decisions with a remote: what other machines have measured is not measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.records import RemoteRecords
from inductor_plugin.cache.remote.tier import RemoteTier
from inductor_plugin.config import Config
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.runtime import Runtime
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.task import CppBuild
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.jobs import Outcome
from tests.support.fakes.selection import ENVIRONMENT, Rig, entries, offers, race, rig
from tests.support.fakes.tasks import cpp_build, entry, offer
from tests.support.remote.files import FaultyFiles, MemoryFiles

LIMIT_S = 5.0


class Fleet:
    """Machines with a cache each, and one remote."""

    def __init__(self, folder: Path) -> None:
        self.files = FaultyFiles(MemoryFiles())
        self._folder = folder
        self._tiers: list[RemoteTier] = []

    def machine(self, name: str, policy: str = "tune", limit_s: float = LIMIT_S) -> Rig:
        store, counters = open_store(self._folder / name), Counters()
        config = Config.load({"cache_dir": str(store.root), "policy": policy}, environ={})
        options = RemoteOptions("memory://shared", LIMIT_S)
        tier = RemoteTier(store, options, lambda _url: self.files)
        self._tiers.append(tier)
        records = RemoteRecords(tier, ENVIRONMENT, limit_s, measures=policy == "tune")
        selection = Selection(
            config, store, ENVIRONMENT, lambda: {"host": name}, counters, remote=records
        )
        return Rig(selection, store, counters)

    def sent(self) -> None:
        for tier in self._tiers:
            tier.drain()

    def close(self) -> None:
        for tier in self._tiers:
            tier.close()


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr("inductor_plugin.cache.remote.health.PAUSES_S", (0.05, 0.05))
    started = Fleet(tmp_path)
    yield started
    started.close()


def settled(bench: Rig, *names: str) -> TuningTicket:
    """Plan a problem with a library kernel and templates, and wait for the remote."""
    ticket = bench.plan(offers(*names))
    bench.selection.settle(ticket)
    return ticket


def test_what_one_machine_has_measured_is_a_hit_on_the_next(fleet: Fleet) -> None:
    first, second = fleet.machine("first"), fleet.machine("second")
    ticket = settled(first, "a")
    assert entries(ticket) == ["library", "a"]
    race(ticket, {"library": 2.0, "a": 1.0})
    fleet.sent()
    again = second.plan(offers("a"))
    assert not again.planned  # nothing is compiled before there is an answer
    assert again.task is None
    second.selection.settle(again)
    assert again.hit
    assert again.task is None
    assert second.selection.decide(again).winner == "a"
    stats = second.counters.snapshot()
    assert (stats.problems, stats.record_hits, stats.record_misses) == (1, 1, 0)
    known = fleet.machine("second").plan(offers("a"))
    assert known.planned
    assert known.lookup is None  # it is in the cache now, nothing is asked


def test_two_machines_with_different_templates_measure_each_once(fleet: Fleet) -> None:
    first, second = fleet.machine("first"), fleet.machine("second")
    race(settled(first, "a"), {"library": 2.0, "a": 1.0})
    fleet.sent()
    ticket = settled(second, "a", "b")
    assert entries(ticket) == ["library", "b"]
    race(ticket, {"library": 2.0, "b": 0.5})
    fleet.sent()
    third = settled(fleet.machine("third"), "a", "b")
    assert third.hit
    assert set(third.measured) == {"library", "a", "b"}


def test_without_an_answer_in_time_the_problem_is_measured_and_the_answer_is_news(
    fleet: Fleet,
) -> None:
    first, second = fleet.machine("first"), fleet.machine("second", limit_s=0.05)
    race(settled(first, "a"), {"library": 2.0, "a": 1.0})
    fleet.sent()
    fleet.files.delay_s = 0.4
    ticket = settled(second, "a")
    assert ticket.planned
    assert entries(ticket) == ["library", "a"]
    assert ticket.task is not None
    assert ticket.task.news.wait(5.0)
    assert ticket.task.refresh(ticket.task) == 2
    assert entries(ticket) == []


def test_a_store_that_fails_leaves_the_local_cache(fleet: Fleet) -> None:
    fleet.files.failing = -1
    here = fleet.machine("first")
    ticket = settled(here, "a")
    race(ticket, {"library": 2.0, "a": 1.0})
    assert here.selection.decide(ticket).winner == "a"
    assert here.plan(offers("a")).hit


def test_with_policy_cached_nothing_is_measured_and_what_the_remote_has_is_used(
    fleet: Fleet,
) -> None:
    race(settled(fleet.machine("first"), "a"), {"library": 2.0, "a": 1.0})
    fleet.sent()
    cached = fleet.machine("second", policy="cached")
    ticket = settled(cached, "a")
    assert ticket.hit
    assert cached.selection.decide(ticket).winner == "a"


def test_what_this_machine_has_seen_fail_does_not_run_because_another_has_not(
    fleet: Fleet, tmp_path: Path
) -> None:
    race(rig(tmp_path / "second").plan(offers("a")), {"library": 2.0}, {"a": "wrong"})
    race(settled(fleet.machine("first"), "a"), {"library": 2.0, "a": 1.0})
    fleet.sent()
    again = fleet.machine("second")
    ticket = settled(again, "a", "b")
    assert ticket.measured["a"].status == "wrong"
    assert entries(ticket) == ["library", "b"]


def test_a_candidate_in_quarantine_is_counted_once_though_the_record_is_read_twice(
    fleet: Fleet,
) -> None:
    here = fleet.machine("first")
    race(settled(here, "a"), {"library": 2.0}, {"a": "wrong"})
    fleet.files.failing = -1
    store = here.store
    for record in list(store.iter_records()):
        store.remove_record(record.environment, record.op, record.digest)
    again = fleet.machine("first")
    settled(again, "a")
    assert again.counters.snapshot().quarantined == 1


@pytest.mark.parametrize(
    "options", [{"cache": "off", "remote_url": "memory://x"}, {"remote_url": ""}]
)
def test_without_a_cache_or_a_url_there_is_no_remote(options: dict[str, str]) -> None:
    assert Runtime().remote(Config.load(options, environ={})) is None


def compiled_offers(library: Callable[[], CppBuild]) -> list[CandidateOffer]:
    """Return a library kernel and a template whose library has to be compiled."""
    identity = CandidateId("a", "a", "template", "", library=False)
    return [
        offer("library", library=True),
        CandidateOffer(identity, lambda own: entry(own.candidate_id, build=library())),
    ]


def test_a_winner_that_came_without_its_kernel_is_built_and_not_measured(fleet: Fleet) -> None:
    offered = compiled_offers(lambda: cpp_build("a"))
    first = fleet.machine("first")
    ticket = first.plan(offered)
    first.selection.settle(ticket)
    race(ticket, {"library": 2.0, "a": 1.0})
    fleet.sent()
    second = fleet.machine("second")
    ticket = second.plan(offered)
    second.selection.settle(ticket)
    assert ticket.hit
    assert ticket.task is not None
    assert not ticket.task.measured
    assert entries(ticket) == ["a"]
    ticket.task.entries[0].outcome = Outcome("a", "skipped", "compiled, not measured")
    ticket.task.finish(ticket.task)
    assert second.selection.decide(ticket).winner == "a"
    second.store.put_kernel(cpp_build("a").key, {"kernel.so": b"library"})
    assert fleet.machine("second").plan(offered).task is None
