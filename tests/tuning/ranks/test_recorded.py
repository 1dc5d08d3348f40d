"""Ranks that record to the same pin file."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import inductor_plugin
from inductor_plugin import activation
from inductor_plugin.cache.transfer.draft import exclusive
from inductor_plugin.tuning.pins.document import dump, read_file
from inductor_plugin.tuning.pins.pin import Pin, PinFile
from inductor_plugin.tuning.ranks import job as job_module
from inductor_plugin.tuning.ranks import recorded as recorded_module
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.recorded import begin, write_recorded
from tests.support.ranks.simulated import MemoryStore


def pins(*digests: str) -> PinFile:
    rows = [Pin("e", "mm", digest, f"mm({digest})", "winner") for digest in digests]
    return PinFile({pin.place: pin for pin in rows})


def digests(file: Path) -> set[str]:
    return {pin.digest for pin in read_file(file).pins.values()}


def write(file: Path, job: Job, *names: str) -> None:
    write_recorded(begin(file, job), pins(*names), job.rank)


def jobs() -> list[Job]:
    """Return both ranks of a job."""
    store = MemoryStore()
    return [Job(rank, 2, store) for rank in range(2)]


def test_ranks_that_record_to_one_file_write_it_together(tmp_path: Path) -> None:
    file, ranks = tmp_path / "pins.json", jobs()
    file.write_text(dump(pins("of an earlier job")))
    write(file, ranks[0], "stage 0", "both")
    assert digests(file) == {"stage 0", "both"}
    write(file, ranks[1], "stage 1", "both")
    assert digests(file) == {"stage 0", "stage 1", "both"}
    assert [path.name for path in tmp_path.iterdir()] == ["pins.json"]


Record = Callable[[Job, str], AbstractContextManager[Any]]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Return what makes this process a rank, and opens a block that records one decision to ``pins.json``."""

    def opened(job: Job, name: str) -> AbstractContextManager[Any]:
        kept = SimpleNamespace(graphs=1, file=functools.partial(pins, name))
        hooks = SimpleNamespace(recorded=functools.partial(nullcontext, kept))
        monkeypatch.setattr(activation, "_hooks", Mock(return_value=hooks))
        monkeypatch.setattr(job_module, "joined", Mock(return_value=job))
        return inductor_plugin.record(tmp_path / "pins.json")

    return opened


def test_record_writes_the_file_of_all_ranks(tmp_path: Path, record: Record) -> None:
    for job in jobs():
        with record(job, f"{job.rank}"):
            pass
    assert digests(tmp_path / "pins.json") == {"0", "1"}


@pytest.mark.parametrize("late", [False, True], ids=["at once", "in its first block"])
def test_a_rank_whose_block_raises_records_the_next_one_with_the_others(
    late: bool, tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted when blocks end, its second block was its first, and joined what the others had recorded in theirs."""
    file, (other, failing) = tmp_path / "pins.json", jobs()
    with record(other, "first 0"):
        pass
    block = record(failing, "first 1")
    asked = [None if late else failing, failing]  # when the block begins, and when it ends
    monkeypatch.setattr(job_module, "joined", Mock(side_effect=asked))
    with pytest.raises(ZeroDivisionError), block:
        raise ZeroDivisionError
    assert digests(file) == {"first 0"}
    for job in (failing, other):
        with record(job, f"second {job.rank}"):
            pass
    assert digests(file) == {"second 0", "second 1"}


def test_a_second_recording_of_ranks_replaces_the_first(tmp_path: Path) -> None:
    file, ranks = tmp_path / "pins.json", jobs()
    for name in ("first", "second"):
        for job in ranks:
            write(file, job, f"{name} {job.rank}")
    assert digests(file) == {"second 0", "second 1"}


def test_two_files_of_one_block_with_the_same_text_are_two_recordings(tmp_path: Path) -> None:
    """As of each epoch and of the latest one: the second recording to one file is the first to the other."""
    ranks = jobs()
    for epoch in ("1", "2"):
        files = [tmp_path / "latest.json", tmp_path / f"epoch{epoch}.json"]
        for job in ranks:
            blocks = [begin(file, job) for file in files]
            for begun in blocks:
                write_recorded(begun, pins(f"{epoch} {job.rank}"), job.rank)
        for file in files:
            assert digests(file) == {f"{epoch} 0", f"{epoch} 1"}


def test_two_files_of_one_name_in_two_folders_lose_nothing(tmp_path: Path) -> None:
    """Folders are not compared, since each machine may have another one: more may stay in a file, and never less."""
    ranks = jobs()
    for block in ("1", "2"):
        files = [tmp_path / name / "pins.json" for name in ("latest", block)]
        for job in ranks:
            for file in files:
                file.parent.mkdir(exist_ok=True)
            for begun in [begin(file, job) for file in files]:
                write_recorded(begun, pins(f"{block} {job.rank}"), job.rank)
        for file in files:
            assert digests(file) >= {f"{block} 0", f"{block} 1"}


def test_ranks_with_a_disk_of_their_own_replace_what_is_there(tmp_path: Path) -> None:
    for job in jobs():
        file = tmp_path / f"node{job.rank}.json"
        file.write_bytes(b"\xff" if job.rank else b"{}")
        write(file, job, f"{job.rank}")
        assert digests(file) == {f"{job.rank}"}


def test_ranks_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock both read what was there before, and the later one writes its own alone."""
    file = tmp_path / "pins.json"
    both, replace = threading.Barrier(2), recorded_module._replace  # pyright: ignore[reportPrivateUsage]

    def late(path: Path, text: str) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # for the other one, which has read by then: never, under the lock
        replace(path, text)

    monkeypatch.setattr(recorded_module, "_replace", late)
    threads = [threading.Thread(target=write, args=(file, job, f"{job.rank}")) for job in jobs()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert digests(file) == {"0", "1"}


@pytest.mark.parametrize("lost", [True, False], ids=["its store is lost", "no process group"])
def test_a_rank_that_cannot_ask_the_store_writes_beside_the_file_of_the_job(
    lost: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A later rank finds what the others have written, and adds to it."""
    file, store = tmp_path / "pins.json", MemoryStore()
    ranks = [Job(rank, 3, store) for rank in range(3)]
    write(file, ranks[0], "stage 0")
    gone = Job(1, 3, MemoryStore(lost="it is gone")) if lost else None
    write_recorded(begin(file, gone), pins("stage 1"), 1)
    assert digests(file) == {"stage 0"}
    write(file, ranks[2], "stage 2")
    assert digests(file) == {"stage 0", "stage 2"}
    assert digests(tmp_path / "pins.rank1.json") == {"stage 1"}
    (warning,) = caplog.messages
    assert warning.startswith(f"inductor-plugin: {tmp_path / 'pins.rank1.json'} has the decisions")
    assert ("it is gone" in warning) == lost


def test_a_rank_whose_turn_does_not_come_writes_beside_the_file_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, ranks = tmp_path / "pins.json", jobs()
    write(file, ranks[0], "first 0")
    with monkeypatch.context() as patch, exclusive(file):  # which this thread may enter again
        patch.setattr(recorded_module, "_LEAST_S", 0.0)
        patch.setattr(recorded_module, "_EACH_S", 0.0)
        thread = threading.Thread(target=write, args=(file, ranks[1], "first 1"))
        thread.start()
        thread.join(10.0)
    assert digests(file) == {"first 0"}
    assert digests(tmp_path / "pins.rank1.json") == {"first 1"}
    assert "others were writing that for 0 s" in caplog.text
    # It has recorded once nevertheless: what it writes next is of the second recording.
    for job in reversed(ranks):
        write(file, job, f"second {job.rank}")
    assert digests(file) == {"second 0", "second 1"}


def test_ranks_of_a_large_job_wait_longer_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def waits(file: Path, limit_s: float) -> AbstractContextManager[None]:
        limits.append(limit_s)
        return exclusive(file, limit_s)

    monkeypatch.setattr(recorded_module, "exclusive", waits)
    for world in (2, 1000):
        write(tmp_path / "pins.json", Job(0, world, MemoryStore()), "own")
    assert limits[0] == 60.0
    assert limits[1] >= 1000 * 0.174  # the seconds that a rank with 500 pins takes


def test_a_process_without_ranks_replaces_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "pins.json"
    for name in ("first", "second"):
        write_recorded(begin(file, None), pins(name), None)
    assert digests(file) == {"second"}
    assert not caplog.records


@pytest.mark.parametrize(
    ("has_no_store", "why"),
    [(True, "(the process group has no store)"), (False, "(there is no process group when")],
)
def test_a_rank_without_a_job_says_what_is_missing(
    has_no_store: bool,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(recorded_module, "has_no_store", lambda: has_no_store)
    write_recorded(begin(tmp_path / "pins.json", None), pins("own"), 3)
    assert digests(tmp_path / "pins.rank3.json") == {"own"}
    assert why in caplog.text
