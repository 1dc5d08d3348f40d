"""A farm's pool on nodes that a test steers, without Ray: what is lost, refused or late."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin import errors
from inductor_plugin.errors import WorkerError
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.farm.parcel import Delivery, Parcel
from inductor_plugin.worker.farm.pool import FarmPool
from inductor_plugin.worker.farm.window import Load
from inductor_plugin.worker.jobs import Compiled, CppCompileJob
from tests.support.fakes.waiting import until
from tests.support.fakes.workers import FakePool


class FakeNodes:
    """A cluster whose tasks end when a test says how; the nodes ``names`` would take any."""

    def __init__(self, cpus: int) -> None:
        self.names = ["x"]
        self.without: list[set[str]] = []
        self.memory: list[int] = []
        self.limits_s: list[float] = []
        self._cpus, self.asked = cpus, 0
        self.running: dict[int, tuple[Parcel, Callable[[Delivery | str], None]]] = {}
        self.started: list[str] = []
        self.cancelled: list[int] = []
        self.closed = self.hurried = False
        self.sent = 0
        self.alive = True
        self.tried = 0
        self.begun = set[str]()
        self.questions = 0
        self.does: Load | None = None
        self.looks = 0
        self.senders = set[str]()
        self.error: Exception | None = None
        self.deaf: Exception | None = None

    @property
    def cpus(self) -> int:
        """CPUs of all nodes; ``asked`` counts how often somebody wants to know."""
        self.asked += 1
        return self._cpus

    @cpus.setter
    def cpus(self, cpus: int) -> None:
        self._cpus = cpus

    def put(self, parcel: Parcel) -> Parcel:
        self.sent += 1
        return parcel

    def has_other(self, without: Collection[str]) -> bool:
        return not set(self.names) <= set(without)

    def start(
        self, parcel: Parcel, limit_s: float, memory_bytes: int, without: Collection[str]
    ) -> tuple[int, Parcel]:
        self.tried += 1
        if not self.has_other(without):
            raise WorkerError("every node of the farm has refused such a job")
        self.without.append(set(without))
        self.memory.append(memory_bytes)
        self.limits_s.append(limit_s)
        if self.error is not None:
            raise self.error
        self.started.append(name_of(parcel))
        return len(self.started), parcel

    def has_begun(self, key: str) -> bool:
        self.questions += 1
        return key in self.begun

    def load(self, sender: str, keys: Collection[str]) -> Load | None:
        assert all(key.startswith(sender) for key in keys)
        self.senders.add(sender)
        self.looks += 1
        return self.does

    def when_done(self, task: tuple[int, Parcel], answer: Callable[[Delivery | str], None]) -> None:
        if self.deaf is not None:
            raise self.deaf
        self.running[task[0]] = (task[1], answer)

    def cancel(self, task: tuple[int, Parcel]) -> None:
        self.cancelled.append(task[0])

    def hurry(self) -> None:
        self.hurried = True

    def close(self) -> None:
        self.closed = True

    def end(self, number: int, answer: Delivery | str | None = None) -> None:
        """Let a task end: as it should, or with an answer."""
        until(lambda: number in self.running)
        parcel, done = self.running.pop(number)
        done(delivery(parcel, f"task {number}") if answer is None else answer)


class Local(FakePool):
    """The pool of this machine."""

    closed = False

    _active, idle = 0, 1

    def close(self) -> None:
        self.closed = True


class Rig:
    """A pool on fakes, and what it has answered."""

    def __init__(self, folder: Path, cpus: int = 2) -> None:
        self.nodes, self.local, self.folder = FakeNodes(cpus), Local(), folder
        local: Any = self.local
        self.again: list[FakeNodes] = []
        self.pool = FarmPool(self.nodes, local, 1 << 30, self._connect)
        self.answers: list[Compiled] = []

    def _connect(self) -> FakeNodes:
        if not self.again:
            raise WorkerError("no route")
        return self.again.pop()

    def submit(self, name: str, rank: float = 0.0, ends: Callable[[], float] | None = None) -> None:
        folder = self.folder / name
        folder.mkdir()
        job = CppCompileJob((CppSource(name, "", "kernel"),), ("cc",), str(folder), 60.0)
        self.pool.submit(job, self.answers.extend, None, rank, ends)

    def status(self) -> dict[str, tuple[str, str]]:
        return {each.key: (each.status, each.reason) for each in self.answers}


def name_of(parcel: Parcel) -> str:
    assert isinstance(parcel.job, CppCompileJob)
    return parcel.job.sources[0].key


def refused_by(node: str, *, passing: bool = False) -> Delivery:
    return Delivery((), {}, f"host of {node}", "torch is older there", node=node, passing=passing)


def delivery(parcel: Parcel, content: str, name: str = "unit.so") -> Delivery:
    compiled = Compiled(name_of(parcel), "ok", library=name, symbol="kernel")
    return Delivery((compiled,), {name: content.encode()}, "node", elapsed_s=0.1)


@pytest.fixture(name="rig")
def a_rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(errors, "_SAID", set[str]())
    rig = Rig(tmp_path)
    yield rig
    rig.pool.close()
