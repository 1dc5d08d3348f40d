"""What a remote may cost a process that goes wrong for one record: warnings, attempts, memory."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Record, Store, open_store
from inductor_plugin.cache.remote.files import Files
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.tier import RemoteTier
from inductor_plugin.errors import CacheError
from tests.support.cache.records import measured, record
from tests.support.fakes.waiting import until
from tests.support.remote.files import FaultyFiles, MemoryFiles
from tests.support.remote.tiers import PLACE, Open, ask, filled, opened

__all__ = ["opened"]  # the fixture


def test_damaged_objects_are_one_warning(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    files = MemoryFiles()
    places = filled(files, 3)
    for name in [name for name in files.objects if "/records/" in name]:
        files.objects[name] = b"damaged"
    tier, store = opened(files)
    for place in places:
        assert ask(tier, place) is False
    tier.close()
    said = [each.levelname for each in caplog.records if "damaged object" in each.message]
    assert (said.count("WARNING"), said.count("INFO")) == (1, 3)
    # Its thread counts after it has answered.
    until(lambda: store.counters().get("remote_corrupt") == 3)


class Picky(MemoryFiles):
    """A store that refuses one record, whoever writes it."""

    refused = ""

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        if self.refused in name:
            self.requests["refused"] += 1
            raise OSError(22, "400 Bad Request")
        super().create(name, data, timeout_s)


def test_a_record_that_the_store_never_takes_is_left_while_others_are_written(
    opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.health.PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr("inductor_plugin.cache.remote.tier._TRIES", 2)
    files, begun = Picky(), threading.Event()
    tier, store = opened(FaultyFiles(files, held=begun), timeout_s=5.0)
    stored = [store.put_record(record(measured("a"), problem=number)) for number in range(5)]
    files.refused = f"{stored[0].digest}/"
    for each in stored:
        tier.send(each.environment, each.op, each.digest)
    begun.set()
    tier.drain()
    assert files.requests["refused"] == 2
    assert sum("/records/" in name for name in files.objects) == 4
    assert "takes other records, and not mm/" in caplog.text
    assert "only the local cache" not in caplog.text
    tier.close()
    until(lambda: store.counters().get("remote_unsent") == 1)


class Down(MemoryFiles):
    """A store that takes nothing for its first writes."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "503 Slow Down")
        super().create(name, data, timeout_s)


def test_a_record_waits_while_the_store_takes_nothing_from_anybody(
    opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.health.PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr("inductor_plugin.cache.remote.health.LOCAL_ONLY_S", 0.01)
    monkeypatch.setattr("inductor_plugin.cache.remote.tier._TRIES", 2)
    files = Down(failures=5)
    tier, store = opened(files, timeout_s=5.0)
    stored = store.put_record(record(measured("a")))
    tier.send(stored.environment, stored.op, stored.digest)
    until(lambda: any("/records/" in name for name in files.objects))
    tier.close()
    assert "takes other records" not in caplog.text
    assert "remote_unsent" not in store.counters()


def test_what_was_read_is_kept_for_a_few_records_only(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.chain._MOST_KNOWN", 2)
    files = MemoryFiles()
    places = filled(files, 5)
    tier, _ = opened(files, timeout_s=30.0)  # writing may stall for a second on a busy disk
    for place in places:
        assert ask(tier, place, 30.0) is True
    untyped: Any = tier
    assert untyped._chains.places == places[-2:]


class Unreadable(MemoryFiles):
    """A store that fails for one record."""

    digest = "none"

    def read(
        self, names: Sequence[str], limits: Sequence[int], timeout_s: float
    ) -> list[bytes | OSError]:
        contents = super().read(names, limits, timeout_s)
        failure = OSError(5, "500 Internal Server Error")
        return [failure if self.digest in n else c for n, c in zip(names, contents, strict=True)]


@pytest.mark.parametrize("tries", [2, 3])
def test_a_record_that_could_not_be_read_is_asked_for_again_while_others_are_answered(
    opened: Open, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.questions._TRIES", tries)
    files = Unreadable()
    bad, *others = filled(files, 3)
    tier, _ = opened(files, timeout_s=5.0)
    files.digest = bad.digest
    untyped: Any = tier
    for other in others:
        with untyped._changed:  # asked for together
            lookups = [tier.look_up(*bad), tier.look_up(*other)]
        assert [each and tier.wait(each, 5.0) and each.hit for each in lookups] == [False, True]
    files.digest = "none"
    assert ask(tier, bad) is (True if tries == 3 else None)


def test_a_fault_of_this_cache_is_none_of_the_remote(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.health.PAUSES_S", (0.0, 0.0))

    def full(self: Store, kept: Record) -> None:
        raise OSError(28, "No space left on device")

    files = MemoryFiles()
    places = filled(files, 4)
    tier, _ = opened(files, timeout_s=5.0)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "add_record", full)
        assert [ask(tier, place) for place in places] == [False] * 4
    assert "only the local cache" not in caplog.text
    assert ask(tier, places[0]) is True


def test_a_remote_that_is_closed_is_neither_asked_nor_written_to(opened: Open) -> None:
    files = MemoryFiles()
    tier, store = opened(files)
    tier.close()
    stored = store.put_record(record(measured("a")))
    tier.send(stored.environment, stored.op, stored.digest)
    assert tier.look_up(stored.environment, stored.op, stored.digest) is None
    untyped: Any = tier
    assert (untyped._thread, files.requests) == (None, {})


def test_waiting_for_answers_is_counted(opened: Open) -> None:
    tier, store = opened(FaultyFiles(MemoryFiles(), delay_s=0.02), timeout_s=5.0)
    assert ask(tier) is False
    tier.close()
    until(lambda: store.counters().get("remote_waited_ms", 0) >= 20)
    assert store.counters()["remote_waited_ms"] < 5000


def test_what_is_sent_after_everything_was_written_is_waited_for_too(opened: Open) -> None:
    files = MemoryFiles()
    tier, store = opened(FaultyFiles(files, delay_s=0.02), timeout_s=60.0)
    for number in (1, 2):
        stored = store.put_record(record(measured("a"), problem=number))
        tier.send(stored.environment, stored.op, stored.digest)
        tier.drain()
        assert sum("/records/" in name for name in files.objects) == number


def test_several_remotes_share_the_time_at_the_end_of_a_process(opened: Open) -> None:
    held = threading.Event()
    tier, store = opened(FaultyFiles(MemoryFiles(), held=held), timeout_s=20.0)
    stored = store.put_record(record(measured("a")))
    tier.send(stored.environment, stored.op, stored.digest)
    started = time.monotonic()
    tier.drain(20.0)  # the one before has taken all of it
    assert time.monotonic() - started < 15.0
    held.set()


class OnlyRead(MemoryFiles):
    """A store whose file system cannot write."""

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        raise OSError(errno.EROFS, "its file system cannot write")


def test_a_file_system_that_cannot_write_is_only_read_and_all_that_waits_is_counted(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()
    tier, store = opened(FaultyFiles(OnlyRead(), held=begun), timeout_s=20.0)
    for number in range(3):
        stored = store.put_record(record(measured("a"), problem=number))
        tier.send(stored.environment, stored.op, stored.digest)
    begun.set()
    tier.drain()
    assert caplog.text.count("is only read from now on") == 1
    tier.close()
    until(lambda: store.counters().get("remote_unsent") == 3)


def test_failures_are_counted_and_an_answer_forgets_them(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.health.PAUSES_S", (0.0, 0.0))
    files = MemoryFiles()
    places, faulty = filled(files, 2), FaultyFiles(files)
    tier, store = opened(faulty, timeout_s=5.0)
    for place in places:
        for _ in range(2):
            faulty.failing = 1
            assert ask(tier, place) is False
        assert ask(tier, place) is True
    assert "only the local cache" not in caplog.text
    tier.close()
    until(lambda: store.counters().get("remote_failures") == 4)


def test_a_remote_that_is_closed_answers_what_it_was_asked(opened: Open) -> None:
    held = threading.Event()
    tier, _ = opened(FaultyFiles(MemoryFiles(), held=held))
    question = tier.look_up(*PLACE)
    assert question is not None
    assert not question.done.is_set()
    tier.close()
    assert question.done.is_set()
    assert not question.hit
    held.set()


def test_without_a_thread_nothing_is_asked_and_what_is_to_be_written_waits_for_the_next_one(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's limit of threads may be reached for a moment."""
    files = MemoryFiles()
    place, *_ = filled(files)
    tier, store = opened(files, timeout_s=5.0)
    kept = store.put_record(record(measured("a"), problem=7))

    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", full)
        assert tier.look_up(*place) is None
        tier.send(kept.environment, kept.op, kept.digest)
    assert not any(kept.digest in name for name in files.objects)
    assert ask(tier, place) is True
    tier.drain()
    assert any(kept.digest in name for name in files.objects)


def test_records_for_a_remote_that_cannot_be_opened_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is being written as it turns out, what waits behind it, and what is decided later."""
    asked, may_answer = threading.Event(), threading.Event()

    def refuse(_url: str) -> Files:
        asked.set()
        may_answer.wait(30.0)
        raise CacheError("s3://x needs a package")

    store = open_store(tmp_path)
    tier = RemoteTier(store, RemoteOptions("s3://x", 30.0), refuse)
    stored = [store.put_record(record(measured("a"), problem=number)) for number in range(3)]
    places = [(each.environment, each.op, each.digest) for each in stored]
    for place in places[:2]:
        tier.send(*place)
    assert asked.wait(30.0)
    may_answer.set()
    until(lambda: "the remote cache is not used" in caplog.text)
    tier.send(*places[2])
    started = time.monotonic()
    tier.close()
    assert time.monotonic() - started < 15.0  # nothing is waited for
    line = "3 records are not in s3://x yet (s3://x needs a package); `inductor-plugin push` writes them"
    assert line in caplog.text
    assert len(caplog.records) == 2
    assert store.counters()["remote_unsent"] == 3


def test_a_record_that_is_decided_after_the_end_is_counted_and_named(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    tier, store = opened(MemoryFiles())
    tier.close()
    for _ in range(2):
        tier.send(*PLACE)
    assert store.counters()["remote_unsent"] == 2
    (said,) = caplog.records
    assert "1 record is not in memory://shared yet (decided after the end)" in said.message
    reader, other = opened(MemoryFiles(), "reader", writes=False)
    reader.close()
    reader.send(*PLACE)
    assert "remote_unsent" not in other.counters()
