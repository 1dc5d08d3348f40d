"""Whole caches to a remote and back: what fails does not keep the rest, and is counted."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.cache import Record, Store, open_store
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.cache.remote import transfer
from inductor_plugin.cache.remote.answer import Answer
from inductor_plugin.cache.remote.edition import edition_of
from inductor_plugin.cache.remote.exchange import Exchange
from inductor_plugin.cache.remote.name import Place, edition_name
from inductor_plugin.cache.remote.transfer import TransferPart, pull, push
from inductor_plugin.errors import CacheError
from tests.support.cache.records import ENVIRONMENT, measured, record
from tests.support.remote.files import FaultyFiles, MemoryFiles

PART = TransferPart()


class PagedFiles(MemoryFiles):
    """A store that lists a few names an answer, each after a while; no time passes in this process.

    Attributes:
        answer_s: Seconds of an answer.
        dies_after: Answers after which there are no more.
        spent_s: Seconds that were waited for.
        listed: What was asked for.
    """

    def __init__(self, objects: dict[str, bytes], answer_s: float) -> None:
        super().__init__(objects)
        self.answer_s, self.dies_after, self.spent_s = answer_s, math.inf, 0.0
        self.listed: list[str] = []

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        return self._paged(folder, super().folders(folder, timeout_s), timeout_s)

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        return self._paged(prefix, super().names(prefix, timeout_s), timeout_s)

    def _paged(self, asked: str, inside: list[str], timeout_s: float) -> list[str]:
        self.listed.append(asked)
        answers = max(1, math.ceil(len(inside) / 4))
        self.dies_after -= answers
        took_s = answers * self.answer_s if self.dies_after >= 0 else math.inf
        self.spent_s += min(took_s, timeout_s)
        if took_s > timeout_s:
            raise TimeoutError("no answer in time")
        return inside


def filled(path: Path, count: int) -> Store:
    store = open_store(path)
    for number in range(1, count + 1):
        store.put_record(record(measured("a"), problem=number))
    return store


def test_a_record_that_cannot_be_written_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = Exchange.publish
    store = filled(tmp_path, 5)
    bad = next(iter(store.iter_records())).digest

    def publishing(self: Exchange, kept: Record, timeout_s: float) -> object:
        if kept.digest == bad:
            raise CacheError("its kernel is damaged")
        return publish(self, kept, timeout_s)

    monkeypatch.setattr(Exchange, "publish", publishing)
    files = MemoryFiles()
    done = push(store, files, PART, 1.0)
    assert (done.records, done.changed, done.failed) == (5, 4, 1)
    assert "its kernel is damaged" in done.reason


def test_a_cache_that_cannot_be_written_to_is_said_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    push(filled(tmp_path / "here", 3), files, PART, 1.0)

    def full(self: Store, kept: Record) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "add_record", full)
    done = pull(open_store(tmp_path / "there"), files, PART, 1.0)
    assert (done.records, done.failed) == (3, 3)
    assert "No space left" in done.reason


def test_what_a_full_disk_does_not_take_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    push(filled(tmp_path / "here", 3), files, PART, 1.0)
    there = open_store(tmp_path / "there")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("inductor_plugin.cache.atomic.write", full)
    done = pull(there, files, PART, 1.0)
    assert there.unwritten == done.failed >= 3
    assert "it cannot be written" in done.reason


def test_a_store_that_is_gone_is_not_asked_for_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_MOST_FAILURES", 4)
    monkeypatch.setattr(transfer, "_THREADS", 1)
    monkeypatch.setattr(transfer, "_BATCH", 2)
    files = MemoryFiles()
    store = filled(tmp_path / "here", 9)
    push(store, files, PART, 1.0)
    gone = FaultyFiles(files)
    names = gone.names

    def listed(prefix: str, timeout_s: float) -> list[str]:
        result = names(prefix, timeout_s)
        gone.failing = -1  # it dies behind the listing
        return result

    gone.names = listed  # type: ignore[method-assign]
    done = pull(open_store(tmp_path / "there"), gone, PART, 1.0)
    assert (done.records, done.failed) == (9, 9)
    assert "500" in done.reason
    asked = -1 - gone.failing
    assert asked <= 1 + 2 * 2  # the environment, two batches
    gone.failing = -1
    assert (push(store, gone, PART, 1.0).records, push(store, gone, PART, 1.0).failed) == (9, 9)
    assert -1 - gone.failing <= 2 * 4


def test_a_push_reads_only_a_few_records_before_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_THREADS", 1)
    monkeypatch.setattr(transfer, "_WAITING", 2, raising=False)
    counts = {"read": 0, "written": 0, "most": 0}
    publish, iterated = Exchange.publish, Store.iter_records

    def reading(self: Store) -> Iterator[Record]:
        for kept in iterated(self):
            counts["read"] += 1
            counts["most"] = max(counts["most"], counts["read"] - counts["written"])
            yield kept

    def publishing(self: Exchange, kept: Record, timeout_s: float) -> object:
        time.sleep(0.01)
        chain = publish(self, kept, timeout_s)
        counts["written"] += 1
        return chain

    monkeypatch.setattr(Store, "iter_records", reading)
    monkeypatch.setattr(Exchange, "publish", publishing)
    done = push(filled(tmp_path, 9), MemoryFiles(), PART, 1.0)
    assert (done.records, done.changed, done.failed) == (9, 9, 0)
    assert counts["most"] <= 3


def test_a_pull_keeps_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_BATCH", 2)
    files = MemoryFiles()
    push(filled(tmp_path / "here", 7), files, PART, 1.0)
    answers: list[weakref.ref[Answer]] = []
    fetch = Exchange.fetch

    def fetching(self: Exchange, places: Sequence[Place], timeout_s: float) -> dict[Place, Answer]:
        assert not any(answer() for answer in answers)
        fetched = fetch(self, places, timeout_s)
        answers.extend(map(weakref.ref, fetched.values()))
        return fetched

    monkeypatch.setattr(Exchange, "fetch", fetching)
    done = pull(open_store(tmp_path / "there"), files, PART, 1.0)
    assert (done.records, done.changed, done.failed) == (7, 7, 0)


def test_a_good_record_ends_a_row_of_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_MOST_FAILURES", 2)
    monkeypatch.setattr(transfer, "_THREADS", 1)
    publish, tried = Exchange.publish, list[str]()

    def publishing(self: Exchange, kept: Record, timeout_s: float) -> object:
        tried.append(kept.digest)
        if len(tried) % 2:
            raise OSError(5, "500 Internal Server Error")
        return publish(self, kept, timeout_s)

    monkeypatch.setattr(Exchange, "publish", publishing)
    done = push(filled(tmp_path, 6), MemoryFiles(), PART, 1.0)
    assert (len(tried), done.changed, done.failed) == (6, 3, 3)


def test_of_other_environments_not_even_the_fields_are_taken_over(tmp_path: Path) -> None:
    files, store = MemoryFiles(), filled(tmp_path / "here", 1)
    environment = store.put_environment(ENVIRONMENT)
    push(store, files, PART, 1.0)
    there = open_store(tmp_path / "there")
    assert pull(there, files, TransferPart(environment="zz"), 1.0).records == 0
    assert there.environment(environment) is None
    assert pull(there, files, TransferPart(environment=environment[:8]), 1.0).records == 1
    assert there.environment(environment) == ENVIRONMENT


def test_records_of_whole_graphs_are_neither_pushed_nor_pulled(tmp_path: Path) -> None:
    """An earlier version has pushed them; where a graph is compared with library kernels is a matter of each machine."""
    files, store = MemoryFiles(), filled(tmp_path / "here", 1)
    graph = record(measured("tuned"), problem=2, op=GRAPH)
    store.put_record(graph)
    assert push(store, files, PART, 1.0).records == 1
    assert not any(f"/{GRAPH}/" in name for name in files.objects)
    Exchange(files, store, kernels=False).publish(graph, 1.0)
    assert any(f"/{GRAPH}/" in name for name in files.objects)
    there = open_store(tmp_path / "there")
    assert pull(there, files, PART, 1.0).records == 1
    assert [kept.op for kept in there.iter_records()] == ["mm"]


def test_what_another_machine_has_replaced_is_pushed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwritten, asked = Exchange.overwritten, list[int]()
    files, store = MemoryFiles(), filled(tmp_path, 2)
    kept = next(iter(store.iter_records()))
    place = Place(kept.environment, kept.op, kept.digest)

    def replaced(self: Exchange, timeout_s: float) -> list[Place]:
        asked.append(1)
        files.objects[edition_name(place, 0)] = edition_of(
            replace(kept, candidates={"b": measured("b")})
        ).dump()
        return overwritten(self, timeout_s)

    monkeypatch.setattr(Exchange, "overwritten", replaced)
    done = push(store, files, PART, 1.0)
    assert (asked, done.records, done.failed, done.amounts.sent) == ([1], 2, 0, 3)
    assert edition_name(place, 1) in files.objects


def test_a_remote_that_is_listed_for_longer_than_the_limit_is_pulled(tmp_path: Path) -> None:
    """A bucket of a fleet: each of its answers comes in time, and there are many."""
    files = MemoryFiles()
    push(filled(tmp_path / "here", 60), files, PART, 1.0)
    paged = PagedFiles(files.objects, answer_s=0.3)
    there = open_store(tmp_path / "there")
    done = pull(there, paged, PART, 1.0)
    assert (done.records, done.changed, done.failed) == (60, 60, 0)
    assert len(list(there.iter_records())) == 60
    assert paged.spent_s > 60 / 4 * paged.answer_s > 1.0


@pytest.mark.parametrize(("answers", "limits"), [(0, 1), (1, 1), (2, 3)])
def test_a_remote_that_does_not_answer_when_it_is_listed_is_given_up(
    answers: int, limits: int, tmp_path: Path
) -> None:
    """One that dies within a folder may be a large one: fewer names are asked for, twice."""
    files = MemoryFiles()
    push(filled(tmp_path / "here", 3), files, PART, 1.0)
    silent = PagedFiles(files.objects, answer_s=0.01)
    silent.dies_after = answers
    with pytest.raises(CacheError, match="cannot be listed: TimeoutError: no answer in time"):
        pull(open_store(tmp_path / "there"), silent, PART, 1.0)
    assert silent.spent_s <= limits + answers * silent.answer_s


def test_only_the_part_that_is_pulled_is_listed(tmp_path: Path) -> None:
    files, store = MemoryFiles(), filled(tmp_path / "here", 2)
    store.put_record(record(measured("a"), problem=3, op="addmm"))
    store.put_record(record(measured("a"), problem=4, environment="e" * 64))
    push(store, files, PART, 1.0)
    here = next(each.environment for each in store.iter_records() if each.environment != "e" * 64)
    part = TransferPart(environment=here[:8], op="mm")
    paged = PagedFiles(files.objects, answer_s=0.0)
    assert pull(open_store(tmp_path / "there"), paged, part, 1.0).records == 2
    assert paged.listed == ["v1/", f"v1/{here}/records/mm/"]
    paged = PagedFiles(files.objects, answer_s=0.0)
    assert pull(open_store(tmp_path / "whole"), paged, PART, 1.0).records == 4
    assert not any("/files/" in each for each in paged.listed)
