"""One process measures on a GPU at a time; the GPU is a name."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.config import Config
from inductor_plugin.errors import CacheError
from inductor_plugin.worker import turn as turn_module
from inductor_plugin.worker.bench_worker import SETUP_S
from inductor_plugin.worker.child import bench
from inductor_plugin.worker.jobs import Event, FinalJob, ScreenJob
from inductor_plugin.worker.turn import Turn, folder_in, taken_over_us, turn
from tests.support.fakes.waiting import until
from tests.support.repository import REPOSITORY
from tests.support.worker.benched import GOOD as MEASURED
from tests.support.worker.benched import ONCE

HOLD = """
import sys, time
from pathlib import Path
from inductor_plugin.worker.turn import turn
print("ready", flush=True)
with turn("gpu", 30.0, Path(sys.argv[1])) as alone:
    print(bool(alone), flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    folder_in.cache_clear()
    yield
    folder_in.cache_clear()


def holder(folder: Path, seconds: float, script: str = HOLD) -> subprocess.Popen[str]:
    """Start a process that is about to take its turn."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert first_line(process) == "ready"
    return process


def is_held(folder: Path, name: str) -> bool:
    """Return whether a process holds a lock of this user's."""
    file = folder / f"inductor-plugin-{os.geteuid()}" / f"{name}.lock"
    if not file.exists():
        return False
    with file.open("ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.claim
def test_the_next_process_goes_on_when_the_first_is_killed(tmp_path: Path) -> None:
    first = holder(tmp_path, 600)
    assert first_line(first) == "True"
    second = holder(tmp_path, 0)
    try:
        time.sleep(0.2)
        assert second.poll() is None  # it waits
        os.kill(first.pid, signal.SIGKILL)
        started = time.monotonic()
        assert first_line(second) == "True"
        assert time.monotonic() - started < 1.0
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


TUNE = """
import os, sys, time
from pathlib import Path
from inductor_plugin.kernels.call import OpKernel, TensorSpec
from inductor_plugin.worker import turn
from inductor_plugin.worker.child import bench
from inductor_plugin.worker.jobs import BenchCandidate, Outcome, Sampling, ScreenJob

def screened(job, emit):
    began = time.monotonic_ns()
    time.sleep(0.01)
    print(began, time.monotonic_ns(), flush=True)
    return Outcome("good", "ok", samples_ms=(1.0,))

turn._SHARED = Path(sys.argv[1])
bench.uuid_of, bench.screen = lambda device: "gpu", screened
output = TensorSpec((2,), (1,), "float32", "cuda:0")
candidate = BenchCandidate("good", OpKernel("aten::mm.out"), (), output, 5.0)
job = ScreenJob("problem", None, candidate, Sampling(0, 1, 0.0, 0.0, cold_cache=False), None)
child = os.fork()
for _ in range(int(sys.argv[2])):
    assert not bench.run(job, print).disturbed
if child:
    sys.exit(os.waitpid(child, 0)[1])
"""
"""The work of two benchmark workers, job after job, on a GPU that is a name; they share the import of torch, 2.5 s."""
JOBS = 20


@pytest.mark.claim
def test_two_processes_that_tune_on_a_gpu_never_measure_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TUNE, str(tmp_path), str(JOBS)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    spans = sorted(tuple(map(int, line.split())) for line in done.stdout.splitlines())
    assert len(spans) == 2 * JOBS
    assert all(end <= began for (_, end), (began, _) in pairwise(spans))


def test_who_has_waited_for_too_long_measures_anyway(tmp_path: Path) -> None:
    first = holder(tmp_path, 600)
    try:
        assert first_line(first) == "True"
        with turn("gpu", 0.05, tmp_path) as alone:
            assert not alone
        with turn("another gpu", 0.05, tmp_path) as alone:
            assert alone
    finally:
        first.kill()
        first.communicate()
    with turn("gpu", 5.0, tmp_path) as alone:
        assert alone


def test_a_process_that_measures_job_after_job_gives_others_their_turn(tmp_path: Path) -> None:
    with turn("gpu", 30.0, tmp_path):
        following = holder(tmp_path, 0)
        # It waits, and looks only every so often.
        until(lambda: is_held(tmp_path, "next-gpu"), 30.0)
    try:
        with turn("gpu", 30.0, tmp_path) as alone:
            assert alone
            assert following.stdout is not None
            assert select.select([following.stdout], [], [], 0)[0]  # it has had its turn
            assert first_line(following) == "True"
    finally:
        following.kill()
        following.communicate()


def test_a_turn_inside_a_turn_does_not_wait_for_who_is_next(tmp_path: Path) -> None:
    with turn("gpu", 30.0, tmp_path):
        following = holder(tmp_path, 0)
        try:
            until(lambda: is_held(tmp_path, "next-gpu"), 30.0)
            with turn("gpu", 5.0, tmp_path) as alone:
                assert alone
            assert following.poll() is None
        finally:
            following.kill()
            following.communicate()


def test_a_lock_ends_with_its_block_also_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as the test says"), turn("gpu", 0.0, tmp_path):
        raise ValueError("as the test says")
    other = holder(tmp_path, 0)
    assert first_line(other) == "True"
    other.communicate()


def test_without_a_name_nothing_is_held(tmp_path: Path) -> None:
    with turn("", 0.0, tmp_path) as alone:
        assert alone
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize("odd", ["link", "file", "open to others", "missing parent"])
def test_a_folder_of_another_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    parent = tmp_path / "missing" if odd == "missing parent" else tmp_path
    folder = parent / f"inductor-plugin-{os.geteuid()}"
    if odd == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif odd == "file":
        folder.touch()
    elif odd == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    with turn("gpu", 0.0, parent) as alone:
        assert alone
    assert ("GPUs are not locked" in caplog.text) is (odd != "missing parent")
    assert folder_in(parent) is None


def test_a_folder_is_its_user_s_own(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("alone", [True, False])
def test_what_was_measured_beside_another_process_is_provisional(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    asked: list[str] = []

    def taken(uuid: str, *_: Any, **__: Any) -> Any:
        asked.append(uuid)
        return nullcontext(Turn(alone))

    def screened(job: ScreenJob, emit: Any) -> Any:
        return bench.Outcome("good", "ok", samples_ms=(1.0,))

    def raced(job: FinalJob, emit: Any) -> Any:
        emit(Event("sample", "good", 1.0))
        return (bench.Outcome("good", "ok"),)

    monkeypatch.setattr(bench, "turn", taken)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(uuid=f"uuid of {device}"),  # pyright: ignore
    )
    monkeypatch.setattr(bench, "screen", screened)
    monkeypatch.setattr(bench, "final", raced)
    elsewhere = replace(MEASURED, output=replace(MEASURED.output, device="cuda:1"))
    events: list[Event] = []
    outcome: Any = bench.run(ScreenJob("problem", None, elsewhere, ONCE, None), events.append)
    assert outcome.disturbed is not alone
    bench.run(FinalJob("problem", (elsewhere,), 1, ONCE), events.append)
    assert [event.disturbed for event in events] == [not alone]
    bench.run(ScreenJob("problem", None, MEASURED, ONCE, None), events.append)
    assert asked == ["uuid of cuda:1", "uuid of cuda:1", ""]


def test_it_is_in_memory_where_there_is_a_folder_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(turn_module, "_SHARED", tmp_path)
    with turn("gpu", 0.0):
        assert list(tmp_path.glob("*/gpu-gpu.lock"))


def test_a_wait_is_longer_than_a_step_of_a_job_may_take() -> None:
    timeout_s = Config().bench_timeout_s
    assert SETUP_S + timeout_s < turn_module.WAIT_S


@pytest.mark.parametrize(("wait_s", "most_s"), [(5.0, 900.0), (900.0, 5.0)])
def test_the_second_lock_has_what_the_first_left_of_the_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wait_s: float, most_s: float
) -> None:
    clock = [1000.0]
    asked: list[float] = []

    class Busy(turn_module.HeldLock):
        def __enter__(self) -> None:
            asked.append(self._timeout_s)
            clock[0] += self._timeout_s
            if self._name.startswith("gpu") or len(asked) < 3:
                raise CacheError("held")

    monkeypatch.setattr(turn_module, "HeldLock", Busy)
    monkeypatch.setattr(turn_module, "_LOOK_S", 1.0)
    monkeypatch.setattr(
        turn_module, "time", SimpleNamespace(time=lambda: clock[0], time_ns=time.time_ns)
    )
    with turn("gpu", wait_s, tmp_path, most_s=most_s) as mine:
        assert not mine
    assert sum(asked) == pytest.approx(5.0)


def test_a_holder_that_shows_life_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(turn_module, "_LOOK_S", 0.05)
    first = holder(tmp_path, 0.8)
    assert first_line(first) == "True"
    folder = folder_in(tmp_path)
    assert folder is not None
    looks: list[float] = []

    def waiting() -> None:
        looks.append(time.monotonic())
        Turn(alive=folder / "alive-gpu").touch()

    try:
        with turn("gpu", 0.3, tmp_path, waiting) as mine:
            assert mine
        assert len(looks) > 4
    finally:
        first.kill()
        first.communicate()


def test_who_gives_up_disturbs_the_holder_while_it_measures_and_afterwards(tmp_path: Path) -> None:
    stop = threading.Event()
    entered = threading.Event()

    def intrude() -> None:
        with turn("gpu", 0.0, tmp_path) as other:
            assert not other
            entered.set()
            assert stop.wait(30.0)

    with turn("gpu", 5.0, tmp_path) as mine:
        assert mine
        intruder = threading.Thread(target=intrude)
        intruder.start()
        assert entered.wait(30.0)
        assert not mine
    with turn("gpu", 5.0, tmp_path) as following:
        assert not following  # it still measures
        stop.set()
        intruder.join()
        assert not following
    with turn("gpu", 5.0, tmp_path) as calm:
        assert calm


def test_without_lock_files_this_process_is_alone_as_far_as_it_knows(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    assert folder is not None
    (folder / "gpu-gpu.lock").mkdir()
    with turn("gpu", 1.0, tmp_path) as mine:
        assert mine


def test_who_waits_says_so_to_its_parent_and_who_holds_shows_life(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The parent ends a worker that says nothing for a minute."""
    alive, waits = tmp_path / "alive", list[float]()

    @contextmanager
    def taken(_uuid: str, wait_s: float, *, waiting: Any) -> Generator[Turn]:
        waits.append(wait_s)
        waiting()
        yield Turn(alive=alive)

    def screened(job: ScreenJob, emit: Any) -> Any:
        assert not alive.exists()
        emit(Event("start", "good"))
        assert alive.exists()
        return bench.Outcome("good", "ok", samples_ms=(1.0,))

    monkeypatch.setattr(bench, "turn", taken)
    monkeypatch.setattr(bench, "screen", screened)
    events: list[Event] = []
    slow = replace(MEASURED, timeout_s=500.0)
    bench.run(ScreenJob("problem", None, slow, ONCE, None), events.append)
    assert [event.what for event in events] == ["build", "start"]
    assert waits == [turn_module.WAIT_S + 500.0]


def test_a_gpu_is_taken_over_where_another_process_had_it_meanwhile(tmp_path: Path) -> None:
    assert taken_over_us("its own") is None
    seen: list[int | None] = []
    for _ in range(2):
        with turn("its own", 5.0, tmp_path) as mine:
            mine.touch()
            seen.append(taken_over_us("its own"))
    with turn("its own", 5.0, tmp_path) as mine:
        assert mine.alive is not None
        os.utime(mine.alive)  # as another process does in its turn
    with turn("its own", 5.0, tmp_path):
        seen.append(taken_over_us("its own"))
    first, second, third = (each or 0 for each in seen)
    assert 0 < first == second < third
