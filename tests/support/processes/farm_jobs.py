"""Which compile jobs nodes of a farm on this machine have begun and ended, so that a test kills one that runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from inductor_plugin.worker.farm.node import compile_parcel
from inductor_plugin.worker.farm.parcel import Delivery, Parcel
from inductor_plugin.worker.jobs import WorkerSettings
from tests.support.ray_cluster import kill


class Attempt(NamedTuple):
    """A job that a node has begun.

    Attributes:
        key: The job's, as of `Parcel`: the same if it is done again.
        pid: The process on the node.
    """

    key: str
    pid: int


class NotedJobs:
    """The compile jobs that nodes of this machine have begun and ended, as they note it themselves in a file."""

    def __init__(self, file: Path) -> None:
        """Begin an empty file."""
        self._file = file
        file.touch()

    def noting(self) -> Callable[[Parcel, WorkerSettings, float], Delivery]:
        """Return what takes the place of `compile_parcel` in `worker.farm.cluster`; Ray sends a function in a function as it is."""
        name = str(self._file)

        def compile_noted(parcel: Parcel, settings: WorkerSettings, limit_s: float) -> Delivery:
            def note(word: str) -> None:
                with open(name, "a", encoding="utf-8") as file:  # noqa: PTH123  no module but builtins
                    file.write(f"{json.dumps([word, parcel.key, os.getpid()])}\n")

            note("begun")
            delivery = compile_parcel(parcel, settings, limit_s)
            note("ended")
            return delivery

        return compile_noted

    def noted(self, word: str) -> list[Attempt]:
        """Return which jobs have ``begun`` or ``ended``, in this order."""
        lines = map(json.loads, self._file.read_text(encoding="utf-8").splitlines())
        return [Attempt(key, pid) for what, key, pid in lines if what == word]

    def kill_one(self) -> Attempt | None:
        """Kill the process of a job that runs, and return that; None if none runs now."""
        ended = self.noted("ended")
        for attempt in self.noted("begun"):
            if attempt in ended:
                continue
            os.kill(attempt.pid, signal.SIGSTOP)  # what has not ended now never does
            if attempt in self.noted("ended"):
                os.kill(attempt.pid, signal.SIGCONT)
                continue
            kill(attempt.pid)
            return attempt
        return None
