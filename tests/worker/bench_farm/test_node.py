"""What runs on a node: a worker with the sender's settings, as far as they hold there."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.kernels.call import ExternKernel
from inductor_plugin.version import __version__
from inductor_plugin.worker.bench_farm.fit import NodeFacts
from inductor_plugin.worker.bench_farm.node import BenchNode, NodeAnswer
from inductor_plugin.worker.bench_farm.parcel import BenchParcel
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    CallJob,
    FinalJob,
    JobFailed,
    Outcome,
    Sampling,
    ScreenJob,
    Status,
    WorkerSettings,
)
from tests.support.candidates.operands import tensor

ONCE = Sampling(1, 1, 0.05, 1.0, cold_cache=False)
CONTENT = b"values"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Worker:
    """A worker that starts no process.

    Attributes:
        settings: Its settings.
        jobs: What it was to measure.
        files: The content of each file that they name, when they came.
        status: The status of what it screens.
        results: What its functions return, by their names.
        called: The functions that were called.
        error: Raised by every job.
        closed: True once it was ended.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.jobs: list[ScreenJob] = []
        self.files: list[bytes] = []
        self.status: Status = "ok"
        self.results: dict[str, object] = {"provenance": {"host": "node", "sm_clock_mhz": 1980}}
        self.called: list[str] = []
        self.error: Exception | None = None
        self.closed = False

    def screen(self, job: ScreenJob) -> Outcome:
        self.jobs.append(job)
        files = [spec.file for spec in job.candidate.inputs if spec.file]
        self.files += [Path(file).read_bytes() for file in files]
        if self.error is not None:
            raise self.error
        name = job.candidate.candidate_id
        return Outcome(name, self.status, conditions=(("sm_clock_mhz", 1500),))

    def final(self, job: FinalJob) -> tuple[Outcome, ...]:
        statuses: tuple[Status, ...] = ("ok", "crashed")
        names = [candidate.candidate_id for candidate in job.candidates]
        return tuple(map(Outcome, names, statuses))

    def call(self, job: CallJob, limit_s: float) -> object:
        if self.error is not None:
            raise self.error
        assert job.args == (self.settings.device,)
        self.called.append(job.function)
        return self.results[job.function]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[BenchNode, Worker]]:
    workers: list[Worker] = []

    def worker(settings: WorkerSettings) -> Worker:
        workers.append(Worker(settings))
        return workers[-1]

    monkeypatch.setattr("inductor_plugin.worker.bench_farm.node.BenchWorker", worker)
    paths = (str(tmp_path), "/only/at/the/sender")
    node = BenchNode(WorkerSettings(paths, "bench", kernel_folder="/only/at/the/sender"))
    yield node, workers[0]
    node.close()


def test_modules_are_searched_where_they_are_on_the_node(
    node: tuple[BenchNode, Worker], tmp_path: Path
) -> None:
    settings = node[1].settings
    assert settings.sys_path[0] == str(tmp_path)
    assert "/only/at/the/sender" not in settings.sys_path
    assert set(sys.path) - {""} <= set(settings.sys_path)
    assert settings.kernel_folder == ""


def test_a_job_reads_the_copies_of_its_files(node: tuple[BenchNode, Worker]) -> None:
    own, worker = node
    there = "/only/at/the/sender/weight.bin"
    inputs = (tensor(4, 4, file=there), tensor(4, 4))
    candidate = BenchCandidate("mm", ExternKernel("mm"), inputs, tensor(4, 4), 1.0)
    parcel = BenchParcel(ScreenJob("problem", None, candidate, ONCE, None), {there: DIGEST})
    with pytest.raises(KeyError):
        own.measure(parcel)  # its content has not come
    own.keep(DIGEST, CONTENT)
    for _ in range(2):
        outcome = own.measure(parcel).result
        assert outcome.status == "ok"
        # Of this machine, whatever the sender's says; what was read while it ran counts.
        assert dict(outcome.conditions) == {"host": "node", "sm_clock_mhz": 1500}
    assert worker.files == [CONTENT, CONTENT]
    file = worker.jobs[0].candidate.inputs[0].file
    assert file is not None
    assert Path(file).name == "weight.bin"
    (folder,) = (each for each in Path(file).parents if each.name.startswith("inductor-plugin-"))
    own.close()
    assert not folder.exists()
    assert worker.closed


def mm(name: str = "mm") -> BenchCandidate:
    return BenchCandidate(name, ExternKernel("mm"), (tensor(4, 4),) * 2, tensor(4, 4), 1.0)


SCREENED = BenchParcel(ScreenJob("problem", None, mm(), ONCE, None))
RACED = BenchParcel(FinalJob("problem", (mm("a"), mm("b")), 2, ONCE))


def test_a_node_says_what_its_worker_is(node: tuple[BenchNode, Worker]) -> None:
    own, worker = node
    worker.results["environment"] = {"device": {"name": "a GPU"}}
    facts = NodeFacts(platform.node(), __version__, {"device": {"name": "a GPU"}})
    assert own.facts() == NodeAnswer(facts)
    worker.results["environment"] = JobFailed("raised", "no driver")
    assert own.facts() == NodeAnswer(error="no driver")
    worker.error = WorkerError("it does not start\nat all")
    assert own.facts() == NodeAnswer(error="it does not start")
    assert own.measure(SCREENED) == NodeAnswer(error="it does not start")


def test_what_was_measured_says_where_and_the_rest_asks_nothing(
    node: tuple[BenchNode, Worker],
) -> None:
    own, worker = node
    first, second = own.measure(RACED).result
    assert (first.candidate_id, dict(first.conditions)["host"]) == ("a", "node")
    assert (second.candidate_id, second.conditions) == ("b", ())
    worker.status = "wrong"
    assert own.measure(SCREENED).result.conditions == (("sm_clock_mhz", 1500),)
    assert worker.called == ["provenance"]
    worker.status, worker.results["provenance"] = "ok", JobFailed("raised", "no driver")
    conditions = own.measure(SCREENED).result.conditions
    assert conditions == (("host", platform.node()), ("sm_clock_mhz", 1500))


def test_binaries_of_triton_kernels_lie_where_triton_looks_for_them(
    node: tuple[BenchNode, Worker],
) -> None:
    own, _ = node
    own.keep(DIGEST, CONTENT)
    own.measure(BenchParcel(SCREENED.job, kernels={"HASH--k.cubin": DIGEST}))
    (file,) = own._folder.glob("triton/**/k.cubin")  # pyright: ignore[reportPrivateUsage]
    assert file.read_bytes() == CONTENT
