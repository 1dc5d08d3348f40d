"""This process as one rank of a job after the other, on a store of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inductor_plugin.config import Config
from inductor_plugin.inductor.graph import stored
from inductor_plugin.tuning import runtime
from inductor_plugin.tuning.ranks import job as ranks_job
from inductor_plugin.tuning.ranks.job import Job, JobStore
from inductor_plugin.tuning.ranks.ledger import LEDGER

Join = Callable[[int, JobStore], None]


def joining(monkeypatch: pytest.MonkeyPatch) -> Join:
    """Return what makes this process the rank of a number, of a job with two ranks; before the first call it has no job."""
    jobs: list[Job] = []

    def current(config: Config) -> Job | None:
        return jobs[-1] if jobs and config.ranks != "off" else None

    for module in (runtime, stored, ranks_job):
        monkeypatch.setattr(module, "current", current)
    monkeypatch.setattr(stored, "joined", lambda: jobs[-1] if jobs else None)
    LEDGER.forget()

    def join(rank: int, store: JobStore) -> None:
        jobs.append(Job(rank, 2, store, f"process {len(jobs)}"))

    return join
