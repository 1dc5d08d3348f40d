"""Each template's candidates on a GPU, one by one, none chosen by luck. Run on an H200 (FINDINGS.md).

Cases are lowered and built in slices, ahead of the tests, in as many processes as there are cores; each
candidate then runs in a worker of its own kind, which a broken kernel may take down.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.worker.jobs import CallJob
from inductor_plugin.worker.process import WorkerProcess
from tests.gpu.cases import fused as fused_cases
from tests.gpu.cases.builds import settings
from tests.gpu.cases.kernels import RUN_S, Kernels, building, check_candidates
from tests.gpu.cases.offers import Offered
from tests.gpu.cases.registry import case_ids
from tests.gpu.harness.selected import selected

pytestmark = [pytest.mark.sm90, pytest.mark.filterwarnings("default")]

Note = Callable[[str, Any], None]


@pytest.fixture(scope="session", name="kernels")
def all_kernels(
    request: pytest.FixtureRequest, kernels_dir: Path
) -> Iterator[Kernels[list[Offered]]]:
    """Begin to build the candidates of each case that is going to run."""
    session = request.session
    names = [*selected(session, "identity"), *selected(session, "fused")]
    yield from building(names, kernels_dir)


@pytest.fixture(scope="session", name="worker")
def bench_worker() -> Iterator[WorkerProcess]:
    """Return the worker that runs the candidates; it starts again after one that broke it."""
    worker = WorkerProcess(settings("bench"), "GPU cases")
    yield worker
    worker.close()


@pytest.mark.parametrize("identity", case_ids())
def test_every_candidate_is_right(
    identity: str, kernels: Kernels[list[Offered]], worker: WorkerProcess, record_property: Note
) -> None:
    check_candidates(identity, kernels, worker, record_property)


@pytest.mark.parametrize("fused", fused_cases.cases())
def test_an_epilogue_of_visitors_is_right(
    fused: str, kernels: Kernels[list[Offered]], worker: WorkerProcess, record_property: Note
) -> None:
    check_candidates(fused, kernels, worker, record_property)


def test_the_worker_has_a_gpu(worker: WorkerProcess) -> None:
    name = worker.run(CallJob("torch.cuda", "get_device_name", (0,)), RUN_S)
    assert name == torch.cuda.get_device_name(0)
