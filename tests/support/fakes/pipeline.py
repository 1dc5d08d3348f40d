"""A pipeline on fakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.pipeline import Pipeline
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import Task
from tests.support.fakes.waiting import LIMIT_S, FakeLocks
from tests.support.fakes.workers import FakeBench, FakeBuild, FakeMeasurement


@dataclass
class Rig:
    """A pipeline on fakes, and the fakes."""

    pipeline: Pipeline
    build: FakeBuild
    bench: FakeBench
    in_process: FakeMeasurement
    locks: FakeLocks
    measured: list[str]
    counters: Counters
    trace: SpanTrace

    def run(self, pending: Task, limit_s: float = LIMIT_S) -> bool:
        self.pipeline.submit(pending)
        return self.pipeline.wait(pending, limit_s)


@dataclass
class Rigs:
    """Makes rigs, and closes their pipelines at the end."""

    pipelines: list[Pipeline] = field(default_factory=list[Pipeline])

    def __call__(self, build: Builder | None = None, device: str = "cuda:0") -> Rig:
        fake, bench, in_process, locks = FakeBuild(), FakeBench(), FakeMeasurement(), FakeLocks()
        measured, counters, trace = list[str](), Counters(), SpanTrace("trace.json")
        builder: Any = build or fake
        worker: Any = bench
        held: Any = locks
        pipeline = Pipeline(
            device, builder, worker, in_process, counters, trace, 5.0, held, measured.append
        )
        self.pipelines.append(pipeline)
        return Rig(pipeline, fake, bench, in_process, locks, measured, counters, trace)


def spans(trace: SpanTrace, kind: str) -> list[tuple[float, float]]:
    events = trace._events  # pyright: ignore
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == kind]
