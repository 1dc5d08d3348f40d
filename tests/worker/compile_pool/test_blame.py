"""Whose fault it is that a job failed, and how long it may take: in a thread of the local pool, and on a node. No process starts here."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker import compile_pool
from inductor_plugin.worker.child import compile as child_compile
from inductor_plugin.worker.compile_pool import SETUP_S, compile_all
from inductor_plugin.worker.farm import node as node_module
from inductor_plugin.worker.farm.folder import NodeFolder
from inductor_plugin.worker.farm.node import compile_parcel
from inductor_plugin.worker.farm.parcel import parcel_of
from inductor_plugin.worker.jobs import (
    OUT_OF_TIME,
    Compiled,
    CompileJob,
    CppCompileJob,
    Event,
    JobFailed,
    TritonCompileJob,
)
from tests.support.fakes.waiting import FakeClock
from tests.support.processes.compiling import GXX, SETTINGS, source


class Process:
    """A worker that answers as a test says.

    Attributes:
        jobs: What it was to compile.
        setups_s: For how long each job could wait for its compiler to start.
        limits_s: For how long each compiler could run.
        starts: Whether a job gets as far as its compiler.
    """

    def __init__(self, answer: Callable[[Any], Any], *, starts: bool = True) -> None:
        self._answer, self.starts = answer, starts
        self.jobs: list[CompileJob] = []
        self.setups_s: list[float] = []
        self.limits_s: list[float | None] = []

    def start(self) -> None:
        """Run already."""

    def attempt(self, job: CompileJob, timeout_s: float, on_event: Any) -> Any:
        self.jobs.append(job)
        self.setups_s.append(timeout_s)
        assert on_event(Event("accepted")) is None  # it has not begun
        if self.starts:
            self.limits_s.append(on_event(Event("start", "a")))
        return self._answer(job)


def batch(*keys: str, timeout_s: float = 60.0) -> CppCompileJob:
    return CppCompileJob(tuple(source(key, 2) for key in keys), GXX, "", timeout_s)


class Compiles(Protocol):
    """Compiles a job with a worker, until a time."""

    def __call__(
        self, process: Process, job: CompileJob, until: float = math.inf
    ) -> list[Compiled]: ...


def in_a_thread(process: Process, job: CompileJob, until: float = math.inf) -> list[Compiled]:
    untyped: Any = process
    return compile_all(untyped, job, until)


@pytest.fixture(name="compiled_by", params=["local", "farm"])
def compiled_here_or_there(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Compiles]:
    """What runs a job in a pool: a thread, or the function that Ray runs on a node."""
    folders = list[NodeFolder]()
    monkeypatch.setattr(node_module, "_FOLDERS", folders)
    monkeypatch.setattr(node_module, "node_here", lambda: "n1")  # Ray would start

    def on_a_node(process: Process, job: CompileJob, until: float = math.inf) -> list[Compiled]:
        monkeypatch.setattr(node_module, "_PROCESSES", {SETTINGS: process})
        limit_s = until - compile_pool.time.monotonic()
        delivery = compile_parcel(parcel_of(job), SETTINGS, limit_s)
        assert not delivery.refusal
        return list(delivery.compiled)

    yield on_a_node if request.param == "farm" else in_a_thread
    for folder in folders:
        folder.remove()


def done(job: Any) -> list[Compiled]:
    return [Compiled(key, "ok") for key in compile_pool.kernel_keys(job)]


def test_a_compiler_may_take_what_its_job_allows_and_no_longer_than_is_left(
    compiled_by: Compiles,
) -> None:
    process = Process(done)
    ends = time.monotonic() + 50.0
    for timeout_s, until in ((7.0, math.inf), (0.0, math.inf), (7.0, ends), (600.0, ends)):
        assert compiled_by(process, batch("a", timeout_s=timeout_s), until) == [Compiled("a", "ok")]
    own, no_limit, shorter, left = (limit or 0.0 for limit in process.limits_s)
    assert (own, no_limit, shorter) == (7.0, math.inf, 7.0)
    assert 20.0 < left <= 50.0
    assert process.setups_s[:2] == [SETUP_S] * 2
    assert all(20.0 < setup_s <= 50.0 for setup_s in process.setups_s[2:])


@pytest.mark.parametrize(
    ("failure", "starts", "status", "reason"),
    [
        (JobFailed("hung", "60 s"), True, "hung", "60 s"),
        (JobFailed("crashed", "SIGSEGV"), True, "crashed", "SIGSEGV"),
        (JobFailed("out_of_memory", "SIGKILL"), True, "out_of_memory", "SIGKILL"),
        (JobFailed("raised", "", "x\nerror: no"), True, "compile_failed", "error: no"),
        (JobFailed("sticky_error", "", "error: CUDA"), True, "compile_failed", "error: CUDA"),
        (JobFailed("hung", "60 s"), False, "skipped", "its worker: hung: 60 s"),
        (JobFailed("raised", "no torch"), False, "skipped", "its worker: raised: no torch"),
    ],
)
def test_a_kernel_is_blamed_for_its_compiler_alone(
    compiled_by: Compiles, failure: JobFailed, status: str, reason: str, *, starts: bool
) -> None:
    process = Process(lambda _: failure, starts=starts)
    (kernel,) = compiled_by(process, TritonCompileJob("k", "k", "", (), 60.0))
    assert (kernel.key, kernel.status, kernel.reason) == ("k", status, reason)
    assert len(process.jobs) == 1


def test_a_job_that_is_ended_at_its_time_blames_nobody(
    compiled_by: Compiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(100.0)
    for module in (compile_pool, node_module):
        monkeypatch.setattr(module, "time", clock)

    def late(_: CompileJob) -> JobFailed:
        clock.now += 10.0
        return JobFailed("hung", "5 s")

    for keys in ("a", "bc"):
        clock.now, process = 100.0, Process(late)
        answers = compiled_by(process, batch(*keys), 105.0)
        assert {(each.status, each.reason) for each in answers} == {("skipped", OUT_OF_TIME)}
        assert len(answers) == len(keys)
        assert process.limits_s == [5.0]
        assert compiled_by(process, batch("d"), 105.0)[0].reason == OUT_OF_TIME
        assert len(process.jobs) == 1  # neither those of a batch one by one nor the next


def test_kernels_of_a_batch_that_breaks_its_worker_are_compiled_one_by_one_in_the_same_time(
    compiled_by: Compiles,
) -> None:
    ends = time.monotonic() + 50.0

    def breaks(job: CppCompileJob) -> Any:
        keys = [each.key for each in job.sources]
        return JobFailed("crashed", "SIGSEGV") if "bad" in keys else done(job)

    process = Process(breaks)
    answers = compiled_by(process, batch("good", "bad", "fine"), ends)
    assert {each.key: each.status for each in answers} == {
        "good": "ok",
        "bad": "crashed",
        "fine": "ok",
    }
    assert len(process.jobs) == 4
    assert all((limit or 0.0) <= 50.0 for limit in process.limits_s)
    refused = Process(lambda _: JobFailed("raised", "", "error: no"))
    assert [each.status for each in compiled_by(refused, batch("a", "b"))] == ["compile_failed"] * 2
    assert len(refused.jobs) == 1  # the worker has tried each alone already


def test_a_worker_that_does_not_start_skips_its_job(
    compiled_by: Compiles, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: CompileJob) -> Any:
        raise WorkerError("it does not start\nat all")

    with caplog.at_level(logging.DEBUG):
        (kernel,) = compiled_by(Process(fails), batch("a"))
    assert (kernel.status, kernel.reason) == ("skipped", "it does not start")


def test_what_adds_flags_to_nvcc_is_not_in_a_compilers_environment(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key does not contain them."""
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_OTHER"):
        monkeypatch.setenv(name, "-G")
    variables = child_compile._environment(tmp_path)  # pyright: ignore[reportPrivateUsage]
    assert {name for name in variables if name.startswith("NVCC_")} == {"NVCC_OTHER"}
    assert variables["TMPDIR"] == str(tmp_path)
