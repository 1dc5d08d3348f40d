"""A builder on fake workers and a real cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Store, open_store
from inductor_plugin.problem.target import Target
from inductor_plugin.tuning.budget import Budget
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.worker.jobs import CppCompileJob
from tests.support.fakes.tasks import cpp_build, entry, task
from tests.support.fakes.waiting import LIMIT_S, until
from tests.support.fakes.workers import FakePool


@dataclass
class Rig:
    """A builder on fake workers and a real cache."""

    builder: Builder
    pool: FakePool
    store: Store
    counters: Counters
    trace: SpanTrace
    target: Target | None = None
    op: str = "mm"

    def build(self, entries: Sequence[TaskCandidate], limit: Budget | None = None) -> None:
        """Build entries and wait until each has an answer and nothing runs."""
        pending = task(entries, budget=limit)
        pending.problem = replace(pending.problem, target=self.target, op=self.op)
        for each in entries:
            self.builder.add(pending, each, lambda: None)
        self.builder.flush()
        until(lambda: all(e.ready or e.outcome is not None for e in entries))
        until(lambda: not self.builder.busy())

    def batches(self) -> list[int]:
        return [len(job.sources) for job in self.pool.jobs if isinstance(job, CppCompileJob)]


def rig(path: Path, *, timeout_s: float = LIMIT_S) -> Rig:
    pool, counters, trace, store = FakePool(), Counters(), SpanTrace("trace.json"), open_store(path)
    workers: Any = pool
    builder = Builder(store, workers, counters, trace, timeout_s)
    return Rig(builder, pool, store, counters, trace)


def cpp_entries(*names: str) -> list[TaskCandidate]:
    return [entry(name, build=cpp_build(name)) for name in names]


def status(candidate: TaskCandidate) -> str:
    return "ready" if candidate.ready else candidate.outcome.status if candidate.outcome else "open"


def keep_no_triton_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file of a Triton kernel be kept in the cache."""

    def none(_folder: Path) -> dict[str, bytes]:
        return {}

    monkeypatch.setattr("inductor_plugin.kernels.triton_files.collect", none)
