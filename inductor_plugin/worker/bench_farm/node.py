"""What runs on a node that measures: a local benchmark worker, in a process of its own, and copies of the files of its jobs.

A candidate that crashes, hangs or breaks the device ends that process, as it does on the machine that sends the jobs.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inductor_plugin.errors import WorkerError
from inductor_plugin.kernels import triton_files
from inductor_plugin.version import __version__
from inductor_plugin.worker.bench_farm.fit import NodeFacts
from inductor_plugin.worker.bench_farm.parcel import BenchParcel, addressed, place_of
from inductor_plugin.worker.bench_worker import SETUP_S, BenchWorker
from inductor_plugin.worker.failure import one_line
from inductor_plugin.worker.farm.folder import NodeFolder
from inductor_plugin.worker.farm.places import settings_here
from inductor_plugin.worker.jobs import CallJob, FinalJob, JobFailed, Outcome, WorkerSettings

logger = logging.getLogger(__name__)

_FACTS = "inductor_plugin.tuning.environment"
"""What describes the process that measures, there."""


@dataclass(frozen=True)
class NodeAnswer:
    """What a node answers.

    Attributes:
        result: The result.
        error: Why there is none: no worker starts there.
    """

    result: Any = None
    error: str = ""


class BenchNode:
    """Measures on one device of this machine."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Start nothing yet.

        Args:
            settings: The sender's, of its benchmark worker.
        """
        # Ray's processes have a nice value of 15: on busy cores a launch would wait for one. Only root may take it back.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, min(0, os.getpriority(os.PRIO_PROCESS, 0)))
        self._own = NodeFolder("node")
        self._folder = self._own.path
        self._contents: dict[str, Path] = {}
        self._worker = BenchWorker(settings_here(settings))

    def facts(self) -> NodeAnswer:
        """Return the `NodeFacts` of the process that measures; it is started for that."""
        job = CallJob(_FACTS, "environment", (self._worker.settings.device,))
        answer = self.call(job, SETUP_S)
        if isinstance(answer.result, JobFailed):
            return NodeAnswer(error=answer.result.reason)
        if answer.error:
            return answer
        return NodeAnswer(NodeFacts(platform.node(), __version__, answer.result))

    def keep(self, digest: str, content: bytes) -> None:
        """Keep a content that jobs refer to, until this node is released.

        Raises:
            OSError: The disk is full.
        """
        path = self._folder / "contents" / digest
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        self._contents[digest] = path

    def measure(self, parcel: BenchParcel) -> NodeAnswer:
        """Screen or race the candidates of a job; the result is that of `BenchWorker`.

        Raises:
            OSError: The disk is full.
            KeyError: A content has not been sent.
        """
        self._place(parcel)
        job = addressed(parcel, self._folder)
        try:
            if isinstance(job, FinalJob):
                outcomes = self._worker.final(job)
                return NodeAnswer(self._with_provenance(*outcomes))
            return NodeAnswer(self._with_provenance(self._worker.screen(job))[0])
        except WorkerError as error:
            return NodeAnswer(error=one_line(str(error)))

    def call(self, job: CallJob, limit_s: float) -> NodeAnswer:
        """Run a function in the process that measures."""
        try:
            return NodeAnswer(self._worker.call(job, limit_s))
        except WorkerError as error:
            return NodeAnswer(error=one_line(str(error)))

    def why_not_available(self) -> NodeAnswer:
        """Return why no worker can be started on the device, None if one runs."""
        return NodeAnswer(self._worker.why_not_available())

    def pid(self) -> NodeAnswer:
        """Return the number of the process that measures, None if it does not run."""
        return NodeAnswer(self._worker.pid)

    def release(self) -> NodeAnswer:
        """Let the worker give the device's memory back."""
        self._worker.release()
        return NodeAnswer()

    def close(self) -> NodeAnswer:
        """End the worker, and remove its files."""
        self._worker.close()
        self._own.remove()
        return NodeAnswer()

    def _with_provenance(self, *outcomes: Outcome) -> tuple[Outcome, ...]:
        """Return outcomes that say of which machine they are, and how its device is: their records name the sender's else."""
        if all(outcome.status != "ok" for outcome in outcomes):
            return outcomes
        device = self._worker.settings.device
        answer = self._worker.call(CallJob(_FACTS, "provenance", (device,)), SETUP_S)
        facts: Mapping[str, object] = {"host": platform.node()}
        if not isinstance(answer, JobFailed):
            facts = answer
        return tuple(
            replace(each, conditions=(*facts.items(), *each.conditions))
            if each.status == "ok"
            else each
            for each in outcomes
        )

    def _place(self, parcel: BenchParcel) -> None:
        """Put the contents that a job refers to where it will look for them."""
        for path, digest in parcel.files.items():
            place = place_of(self._folder, path, digest)
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.hardlink_to(self._contents[digest])
        kernels: Mapping[str, Path] = {n: self._contents[d] for n, d in parcel.kernels.items()}
        triton_files.place(kernels, self._folder / "triton")
