"""Which compile jobs nodes of a farm on this machine have begun and ended, so that a test kills one that runs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from inductor_plugin.worker.farm.connection import node_here
from inductor_plugin.worker.farm.node import compile_parcel
from inductor_plugin.worker.farm.parcel import Delivery, Parcel
from inductor_plugin.worker.jobs import WorkerSettings
from tests.support.ray_cluster import kill


class Attempt(NamedTuple):
    """A job that a node has begun.

    Attributes:
        key: The job's, as of `Parcel`: the same if it is done again.
        pid: The process on the node.
        node: What the cluster calls that.
    """

    key: str
    pid: int
    node: str


class NotedJobs:
    """The compile jobs that nodes of this machine have begun and ended, as they note it themselves in a file.

    None goes on before it is told to: so there are jobs left for a node that comes late, however quick the others are.
    """

    def __init__(self, file: Path) -> None:
        """Begin an empty file."""
        self._file, self._gate = file, file.with_name(f"{file.name}.gate")
        file.touch()

    def open(self) -> None:
        """Let all jobs go on."""
        self._gate.touch()

    def noting(self) -> Callable[[Parcel, WorkerSettings, float], Delivery]:
        """Return what takes the place of `compile_parcel` in `worker.farm.cluster`; Ray sends a function in a function as it is."""
        name, gate = str(self._file), str(self._gate)

        def compile_noted(parcel: Parcel, settings: WorkerSettings, limit_s: float) -> Delivery:
            def note(word: str) -> None:
                with open(name, "a", encoding="utf-8") as file:  # noqa: PTH123  no module but builtins
                    file.write(f"{json.dumps([word, parcel.key, os.getpid(), node_here()])}\n")

            note("begun")
            while not os.path.exists(gate):  # noqa: PTH110  the same
                time.sleep(0.05)
            delivery = compile_parcel(parcel, settings, limit_s)
            note("ended")
            return delivery

        return compile_noted

    def noted(self, word: str) -> list[Attempt]:
        """Return which jobs have ``begun`` or ``ended``, in this order."""
        lines = map(json.loads, self._file.read_text(encoding="utf-8").splitlines())
        return [Attempt(*rest) for what, *rest in lines if what == word]

    def kill_one(self, but_on: str) -> Attempt | None:
        """Kill the process of a job whose compile worker runs, and return that; None if none does now.

        Args:
            but_on: A node whose jobs are left alone.
        """
        ended = self.noted("ended")
        for attempt in self.noted("begun"):
            if attempt in ended or attempt.node == but_on or not _has_child(attempt.pid):
                continue
            os.kill(attempt.pid, signal.SIGSTOP)  # what has not ended now never does
            if attempt in self.noted("ended"):
                os.kill(attempt.pid, signal.SIGCONT)
                continue
            kill(attempt.pid)
            return attempt
        return None


def _has_child(pid: int) -> bool:
    listings = Path(f"/proc/{pid}/task").glob("*/children")
    return any(listing.read_text(encoding="ascii") for listing in listings)
