"""The worker that screens the attention kernels of this folder."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from inductor_plugin.worker.bench_worker import BenchWorker
from tests.support.attention.screening import SETTINGS


@pytest.fixture(scope="session")
def worker() -> Generator[BenchWorker]:
    """Yield a worker for the modules of this folder: its start takes longer than the checks of any."""
    started = BenchWorker(SETTINGS)
    started.prewarm()
    yield started
    started.close()
