"""A remote behind a cache: asked in the background, and never waited for beyond its limit."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.remote.edition import edition_of
from inductor_plugin.cache.remote.exchange import Exchange
from inductor_plugin.cache.remote.files import Files
from inductor_plugin.cache.remote.name import Place, edition_name
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.records import HEAD_START_S, RemoteRecords
from inductor_plugin.cache.remote.tier import RemoteTier
from inductor_plugin.errors import CacheError
from tests.support.cache.records import measured, record
from tests.support.fakes.waiting import until
from tests.support.remote.files import FaultyFiles, MemoryFiles
from tests.support.remote.tiers import LIMIT_S, PLACE, Open, ask, filled, opened

__all__ = ["opened"]  # the fixture


def test_what_the_remote_knows_is_in_the_cache_when_the_question_is_answered(opened: Open) -> None:
    files = MemoryFiles()
    places = filled(files, 3)
    tier, store = opened(files)
    lookups = [tier.look_up(*place) for place in places]
    for lookup in lookups:
        assert lookup is not None
        assert tier.wait(lookup, 5.0)
        assert lookup.hit
    assert all(store.record(*place) is not None for place in places)
    assert ask(tier, places[0]) is None  # a process asks once
    tier.close()
    counters = store.counters()
    assert counters["remote_asked"] == 3
    assert counters["remote_hits"] == 3
    assert counters["remote_saved_ms"] == pytest.approx(3 * 1502.5, abs=3)
    assert counters["remote_bytes_read"] > 1000


def test_what_is_counted_behind_an_answer_is_in_the_cache_when_the_remote_is_closed(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    filled(files)
    tier, store = opened(files, timeout_s=60.0)
    add_counts = store.add_counts

    def add_late(**counts: int) -> None:
        time.sleep(0.1 * ("remote_asked" in counts))
        add_counts(**counts)

    monkeypatch.setattr(store, "add_counts", add_late)
    assert ask(tier) is True
    tier.close()
    assert store.counters()["remote_asked"] == 1


def test_records_are_asked_for_together_while_another_answer_is_awaited(opened: Open) -> None:
    files = MemoryFiles()
    places = filled(files, 40)
    files.requests.clear()
    slow = FaultyFiles(files, delay_s=0.1)
    tier, _ = opened(slow, timeout_s=5.0)
    started = time.monotonic()
    lookups = [tier.look_up(*place) for place in places]
    assert all(lookup is not None and tier.wait(lookup, 5.0) for lookup in lookups)
    assert time.monotonic() - started < 2.0  # one by one they take 4 s


def test_a_record_is_written_behind_its_decision_and_the_process_ends_when_it_is_written(
    opened: Open,
) -> None:
    files = MemoryFiles()
    tier, store = opened(FaultyFiles(files, delay_s=0.05))
    assert ask(tier) is False
    store.put_record(record(measured("a")))
    started = time.monotonic()
    tier.send(*PLACE)
    assert time.monotonic() - started < 0.05
    tier.drain()
    other, cache = opened(files, "there")
    assert ask(other) is True
    assert cache.record(*PLACE) is not None
    tier.close()
    assert store.counters()["remote_sent"] == 1


def test_what_another_machine_has_replaced_is_written_again_before_the_process_ends(
    opened: Open,
) -> None:
    """In a store that does not compare before it writes."""
    files = MemoryFiles()
    tier, store = opened(FaultyFiles(files, overwrites=True), timeout_s=60.0)
    store.put_record(record(measured("a")))
    tier.send(*PLACE)
    name = edition_name(PLACE, 0)
    until(lambda: name in files.objects and store.counters().get("remote_sent") == 1)
    files.objects[name] = edition_of(record(measured("b"))).dump()
    tier.drain()
    other, cache = opened(files, "there", timeout_s=60.0)
    assert ask(other, limit_s=60.0) is True
    both = cache.record(*PLACE)
    assert both is not None
    assert set(both.candidates) == {"a", "b"}


def test_a_remote_that_is_only_read_gets_nothing(opened: Open) -> None:
    files = MemoryFiles()
    tier, store = opened(files, writes=False)
    store.put_record(record(measured("a")))
    tier.send(*PLACE)
    tier.close()
    assert not files.objects
    assert files.requests["create"] == 0


def test_without_the_right_to_write_a_remote_is_still_read(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    places = filled(files, 2)
    tier, store = opened(FaultyFiles(files, refuses=True))
    for number in (7, 8):
        stored = store.put_record(record(measured("a"), problem=number))
        tier.send(stored.environment, stored.op, stored.digest)
        tier.drain()
    assert ask(tier, places[1]) is True
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "is only read from now on" in warnings[0]
    tier.close()
    assert store.counters()["remote_unsent"] == 1  # what waited then


def test_a_store_that_hides_what_is_missing_is_not_taken_for_one_that_is_only_read(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    tier, store = opened(FaultyFiles(MemoryFiles(), hides=True))
    for number in range(4):
        stored = store.put_record(record(measured("a"), problem=number))
        tier.send(stored.environment, stored.op, stored.digest)
    tier.drain()
    tier.close()
    assert "only read" not in caplog.text
    assert "without the right to list the bucket (s3:ListBucket)" in caplog.text


def test_a_slow_remote_is_not_waited_for_and_its_answer_is_used_when_it_comes(opened: Open) -> None:
    files = MemoryFiles()
    filled(files)
    tier, store = opened(FaultyFiles(files, delay_s=0.5), timeout_s=3.0)
    lookup = tier.look_up(*PLACE)
    assert lookup is not None
    arrived = threading.Event()
    lookup.when_done(arrived.set)
    started = time.monotonic()
    assert not tier.wait(lookup, 0.05)
    assert time.monotonic() - started < 0.4
    assert store.record(*PLACE) is None
    assert arrived.wait(5.0)
    assert store.record(*PLACE) is not None


def test_after_three_failures_only_the_local_cache_is_used_with_one_warning(
    opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.health.PAUSES_S", (0.01, 0.01))
    files = FaultyFiles(MemoryFiles(), failing=-1)
    tier, store = opened(files)
    for number in range(20):
        assert not ask(tier, Place(*PLACE[:2], f"{number:064d}"))
        time.sleep(0.02)
    assert files.failing == -4  # asked three times
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "only the local cache is used" in warnings[0]
    assert "500" in warnings[0]
    stored = store.put_record(record(measured("a")))
    tier.send(stored.environment, stored.op, stored.digest)
    started = time.monotonic()
    tier.close()
    assert time.monotonic() - started < LIMIT_S / 2
    assert "1 record is not in memory://shared yet" in caplog.records[-1].message
    assert store.record(*PLACE) is not None
    assert store.counters()["remote_unsent"] == 1


def test_a_record_that_is_not_worth_sending_is_no_answer_of_the_remote(
    opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.health.PAUSES_S", (0.01, 0.01))
    tier, store = opened(FaultyFiles(MemoryFiles(), failing=-1))
    for number in range(3):
        stored = store.put_record(record(measured("a", status="raised"), problem=number))
        tier.send(stored.environment, stored.op, stored.digest)
        tier.drain()
        assert not ask(tier, Place(*PLACE[:2], f"{number:064d}"))
        time.sleep(0.02)
    assert "only the local cache is used" in caplog.text


def test_a_failure_that_passes_costs_no_record(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.health.PAUSES_S", (0.01, 0.01))
    files = MemoryFiles()
    filled(files)
    faulty = FaultyFiles(files, failing=1)
    tier, _ = opened(faulty)
    assert ask(tier) is False
    time.sleep(0.05)
    assert ask(tier) is True
    other, store = opened(FaultyFiles(files, failing=2), "there", timeout_s=5.0)
    stored = store.put_record(record(measured("b"), problem=9))
    other.send(stored.environment, stored.op, stored.digest)
    other.drain()
    assert sum("/records/" in name for name in files.objects) == 2


def test_a_client_that_hangs_keeps_neither_a_compile_nor_the_end_of_the_process(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.tier._READ_STEPS", 0)
    monkeypatch.setattr("inductor_plugin.cache.remote.tier._SLACK_S", 0.1)
    files = FaultyFiles(MemoryFiles(), held=threading.Event())
    tier, _ = opened(files)
    started = time.monotonic()
    assert ask(tier) is None
    time.sleep(0.2)
    assert tier.look_up(*PLACE[:2], "0" * 64) is None
    assert "cannot be interrupted" in caplog.text
    tier.close()
    assert time.monotonic() - started < 0.3 + 3 * LIMIT_S
    assert files.held is not None
    files.held.set()


def test_a_client_that_goes_on_hanging_is_not_waited_for_again_and_asked_when_it_answers(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.tier._READ_STEPS", 0)
    monkeypatch.setattr("inductor_plugin.cache.remote.tier._SLACK_S", 0.1)
    monkeypatch.setattr("inductor_plugin.cache.remote.health.LOCAL_ONLY_S", 0.1)
    held = threading.Event()
    tier, _ = opened(FaultyFiles(MemoryFiles(), held=held))
    try:
        assert ask(tier) is None
        time.sleep(0.2)
        for number in range(3):  # after each pause, too
            assert tier.look_up(*PLACE[:2], f"{number:064d}") is None
            time.sleep(0.15)
    finally:
        held.set()
    until(lambda: tier.look_up(*PLACE[:2], "f" * 64) is not None)


def test_editions_that_have_expired_since_they_were_read_do_not_hide_the_next_one(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inductor_plugin.cache.remote.chain._KNOWN_S", 0.0)
    files, nowhere = MemoryFiles(), open_store("/nowhere", memory_only=True)
    for number in range(7):
        Exchange(files, nowhere, kernels=False).publish(record(measured(f"c{number}")), 1.0)
    tier, store = opened(files)
    assert ask(tier) is True
    files.objects.clear()  # the process has been running for weeks
    store.put_record(record(measured("a")))
    tier.send(*PLACE)
    tier.drain()
    other, _ = opened(files, "there")
    assert ask(other) is True


def test_all_waits_of_a_graph_together_take_the_limit_at_most(opened: Open) -> None:
    files = FaultyFiles(MemoryFiles(), delay_s=0.2)
    tier, _ = opened(files, timeout_s=5.0)
    records = RemoteRecords(tier, PLACE.environment, 0.3, measures=False)
    started = time.monotonic()
    for number in range(5):
        lookup = records.ask("mm", f"{number:064d}")
        assert lookup is not None
        records.wait(lookup)
    assert 0.25 < time.monotonic() - started < 0.6
    assert HEAD_START_S < 5.0


def test_a_remote_that_cannot_be_opened_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_url: str) -> Files:
        raise CacheError('s3://x needs a package: pip install "inductor-plugin[s3]"')

    tier = RemoteTier(open_store(tmp_path), RemoteOptions("s3://x", LIMIT_S), refuse)
    assert ask(tier) is False
    assert tier.look_up(*PLACE) is None
    tier.close()
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert 'pip install "inductor-plugin[s3]"' in caplog.text


def test_a_forked_child_asks_by_itself(opened: Open) -> None:
    files = MemoryFiles()
    first, second = filled(files, 2)
    tier, store = opened(files)
    assert ask(tier, first) is True
    pid = os.fork()
    if pid == 0:
        known = ask(tier, second) is True and store.record(*second) is not None
        os._exit(0 if known else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (
        ask(tier, second) is False
    )  # the parent's thread answers, too: the child has put it into the cache


_PROGRAM = """
import sys, time
from inductor_plugin.cache import open_store
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.tier import RemoteTier
from tests.support.cache.records import measured, record
from tests.support.remote.files import FaultyFiles, MemoryFiles
from inductor_plugin.cache.remote.files import open_files
delay_s, folder, url = float(sys.argv[1]), sys.argv[2], sys.argv[3]
tier = RemoteTier(open_store(folder), RemoteOptions(url, 1.0), lambda u: FaultyFiles(open_files(u), delay_s))
made = tier._store.put_record(record(measured("a")))
tier.send(made.environment, made.op, made.digest)
print("sent", flush=True)
"""


@pytest.mark.parametrize(("delay_s", "written"), [(0.02, True), (0.9, False)])
def test_a_process_ends_with_its_records_written_or_when_the_limit_is_over(
    delay_s: float, written: bool, tmp_path: Path
) -> None:
    arguments = [str(delay_s), str(tmp_path / "cache"), f"file://{tmp_path}/shared"]
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"sent\n"
    started = time.monotonic()
    assert process.wait(30) == 0
    process.stdout.close()
    if not written:
        assert time.monotonic() - started < 3.0
    assert len(list((tmp_path / "shared").rglob("0000.json"))) == int(written)


def test_ctrl_c_at_the_end_ends_the_waiting(tmp_path: Path) -> None:
    program = _PROGRAM.replace("1.0), lambda", "60.0), lambda")
    arguments = ["50", str(tmp_path / "cache"), f"file://{tmp_path}/shared"]
    # A job that a shell has started in the background ignores SIGINT.
    with_handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{with_handler}\n{program}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"sent\n"
        time.sleep(0.5)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert time.monotonic() - started < 10
    assert b"Traceback" not in errors


def test_a_child_has_nothing_open_and_closes_nothing_of_its_parents(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    first, second = filled(files, 2)
    tier, _ = opened(files)
    assert not tier.is_open
    assert ask(tier, first) is True
    assert tier.is_open
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        assert not tier.is_open
        tier.close()
    assert ask(tier, second) is True
