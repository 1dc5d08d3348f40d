"""Each template's candidates on a GPU, one by one, none chosen by luck. Compiled, not yet run on a GPU.

Cases are lowered and built in slices, ahead of the tests, in as many processes as there are cores; each
candidate then runs in a worker of its own kind, which a broken kernel may take down.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.worker.jobs import CallJob, JobFailed
from inductor_plugin.worker.process import WorkerProcess
from tests.gpu.harness.cases import case, case_ids
from tests.gpu.harness.kernels import TEST_S, Built, Kernels
from tests.gpu.harness.offers import Offered, all_offered, built, chosen, settings
from tests.gpu.harness.selected import selected

pytestmark = [pytest.mark.sm90, pytest.mark.filterwarnings("default")]

BUILD_S = 300.0
"""Longest build of a slice; 130 CUTLASS kernels take about 1,000 CPU seconds, in batches."""
RUN_S = 60.0

Note = Callable[[str, Any], None]


@pytest.fixture(scope="session", name="kernels")
def all_kernels(request: pytest.FixtureRequest, kernels_dir: Path) -> Iterator[Kernels]:
    """Begin to build the candidates of each case that is going to run; two a process in a slice."""
    wanted = selected(request.session, "identity")
    workers = max(1, len(os.sched_getaffinity(0)) // 2)
    kernels = Kernels(wanted, lambda some: built_slice(some, kernels_dir, workers), 2 * workers)
    yield kernels
    kernels.close()


def built_slice(wanted: Sequence[str], kernels_dir: Path, workers: int) -> Built:
    """Return the candidates of some cases, built; or why there are none."""
    offers = all_offered(wanted, kernels_dir / "inductor", workers)
    picked = {identity: picked_of(identity, found) for identity, found in offers.items()}
    lists = [one for one in picked.values() if not isinstance(one, str)]
    made = built([one for each in lists for one in each], kernels_dir, 2 * workers, BUILD_S)
    for identity, found in picked.items():
        if isinstance(found, str):
            continue
        results = [made[one.case, one.identity] for one in found]
        failed = [one for one in results if isinstance(one, str)]
        good = [one for one in results if not isinstance(one, str)]
        picked[identity] = f"not built: {failed[0]}" if failed else good
    return picked


def picked_of(identity: str, found: list[Offered] | str) -> list[Offered] | str:
    """Return the candidates of a case that have to run, or why there are none."""
    try:
        return found if isinstance(found, str) else chosen(case(identity), found)
    except LookupError as error:
        return str(error)


@pytest.fixture(scope="session", name="worker")
def bench_worker() -> Iterator[WorkerProcess]:
    """Return the worker that runs the candidates; it starts again after one that broke it."""
    worker = WorkerProcess(settings("bench"), "GPU cases")
    yield worker
    worker.close()


@pytest.mark.parametrize("identity", case_ids())
def test_every_candidate_is_right(
    identity: str, kernels: Kernels, worker: WorkerProcess, record_property: Note
) -> None:
    ends = time.monotonic() + TEST_S
    candidates = kernels.of(identity)
    assert not isinstance(candidates, str), candidates
    wrong: list[str] = []
    rows: list[dict[str, Any]] = []
    for one in candidates:
        rest_s = ends - time.monotonic()
        if rest_s <= 0:
            wrong.append(f"{one.about}: not run, {TEST_S:.0f} s are over")
            continue
        job = CallJob("tests.gpu.harness.check", "checked", (identity, one.candidate))
        report = worker.attempt(job, min(RUN_S, rest_s))
        if isinstance(report, JobFailed):
            worker.stop()  # its context may be broken
            rows.append({"candidate": one.about, "failed": f"{report.status}: {report.reason}"})
            wrong.append(f"{one.about}: {report.status}: {report.reason}")
            continue
        rows.append({"candidate": one.about, **report.to_dict()})
        if not report.good:
            wrong.append(f"{one.about}: {report}")
    record_property("candidates", rows)
    assert candidates
    assert not wrong, "\n".join(wrong)


def test_the_worker_has_a_gpu(worker: WorkerProcess) -> None:
    name = worker.run(CallJob("torch.cuda", "get_device_name", (0,)), RUN_S)
    assert name == torch.cuda.get_device_name(0)
