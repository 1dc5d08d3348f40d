"""What runs on a node: a worker with the sender's settings, as far as they hold there."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inductor_plugin.kernels.call import ExternKernel
from inductor_plugin.worker.bench_farm.node import BenchNode
from inductor_plugin.worker.bench_farm.parcel import BenchParcel
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    CallJob,
    Outcome,
    Sampling,
    ScreenJob,
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
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.jobs: list[ScreenJob] = []
        self.files: list[bytes] = []

    def screen(self, job: ScreenJob) -> Outcome:
        self.jobs.append(job)
        files = [spec.file for spec in job.candidate.inputs if spec.file]
        self.files += [Path(file).read_bytes() for file in files]
        return Outcome(job.candidate.candidate_id, "ok", conditions=(("sm_clock_mhz", 1500),))

    def call(self, job: CallJob, limit_s: float) -> object:
        assert job.function == "provenance"
        return {"host": "node", "sm_clock_mhz": 1980}

    def close(self) -> None: ...


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
