"""A worker of a farm on nodes that tests steer, and its jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inductor_plugin.kernels.call import ExternKernel
from inductor_plugin.worker.bench_farm.finder import NodeLostError
from inductor_plugin.worker.bench_farm.node import NodeAnswer
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    CallJob,
    FinalJob,
    Outcome,
    Sampling,
    ScreenJob,
    WorkerSettings,
)
from tests.support.candidates.operands import tensor
from tests.support.fakes.nodes import (
    FakeBenchCluster,
    StubNode,
    bench_on,
)
from tests.support.repository import REPOSITORY

SETTINGS = WorkerSettings((str(REPOSITORY), *sys.path), "bench", threads=2)


ONCE = Sampling(1, 1, 0.05, 1.0, cold_cache=False)


A, C = tensor(4, 4), tensor(4, 4)


def candidate(name: str, file: str | None = None) -> BenchCandidate:
    inputs = (replace(A, file=file), A)
    return BenchCandidate(name, ExternKernel("mm"), inputs, C, 5.0)


def job(name: str = "mm", file: str | None = None) -> ScreenJob:
    return ScreenJob("problem", None, candidate(name, file), ONCE, None)


def final(*names: str) -> FinalJob:
    return FinalJob("problem", tuple(map(candidate, names)), 2, ONCE)


def measured(what: Any) -> NodeAnswer:
    """Answer as a node that measures would."""
    if isinstance(what, CallJob):
        return NodeAnswer(f"{what.module}.{what.function}")
    if isinstance(what.job, FinalJob):
        return NodeAnswer(tuple(Outcome(c.candidate_id, "ok") for c in what.job.candidates))
    return NodeAnswer(Outcome(what.job.candidate.candidate_id, "ok", samples_ms=(1.0,)))


class Rig:
    """A worker on nodes without processes."""

    def __init__(self, *names: str, idle_s: float = 60.0) -> None:
        self.answer: Callable[[Any], NodeAnswer] = measured
        self.cluster = FakeBenchCluster(*names, make=self._node)
        self.bench = bench_on(self.cluster, replace(SETTINGS, idle_s=idle_s))

    def _node(self, settings: WorkerSettings) -> StubNode:
        return StubNode(settings, lambda what: self.answer(what))

    def lose_at(self, *numbers: int) -> None:
        """Lose the nodes of these numbers, counted from 0, while they measure."""

        def lost(what: Any) -> NodeAnswer:
            if len(self.cluster.nodes) - 1 in numbers:
                raise NodeLostError("the machine is gone")
            return measured(what)

        self.answer = lost
