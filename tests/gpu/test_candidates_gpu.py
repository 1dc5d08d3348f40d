"""Each template's candidates on a GPU, one by one, none chosen by luck. Compiled, not yet run on a GPU.

All cases are lowered and built first, once a session, in as many processes as there are cores; then
each candidate runs in a worker of its own kind, which a broken kernel may take down.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.jobs import CallJob, JobFailed
from inductor_plugin.process import WorkerProcess
from tests.gpu.cases import case, case_ids
from tests.gpu.offers import Offered, all_offered, built, chosen, settings
from tests.gpu.selected import selected

pytestmark = [pytest.mark.sm90, pytest.mark.filterwarnings("default")]

BUILD_S = 600.0
"""Longest build of all kernels; 130 CUTLASS kernels take about 1,000 CPU seconds, in batches."""
RUN_S = 60.0

Note = Callable[[str, Any], None]
Built = Mapping[str, list[Offered] | str]


@pytest.fixture(scope="session", name="kernels")
def all_kernels(request: pytest.FixtureRequest, kernels_dir: Path) -> Built:
    """Return the candidates of each case that is going to run, built; or why there are none."""
    wanted = selected(request.session, "identity")
    cores = len(os.sched_getaffinity(0))
    offers = all_offered(wanted, kernels_dir / "inductor", max(1, cores // 2))
    picked = {identity: picked_of(identity, found) for identity, found in offers.items()}
    lists = [one for one in picked.values() if not isinstance(one, str)]
    made = built([one for each in lists for one in each], kernels_dir, cores, BUILD_S)
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
    identity: str, kernels: Built, worker: WorkerProcess, record_property: Note
) -> None:
    candidates = kernels[identity]
    assert not isinstance(candidates, str), candidates
    wrong: list[str] = []
    rows: list[dict[str, Any]] = []
    for one in candidates:
        job = CallJob("tests.gpu.check", "checked", (identity, one.candidate))
        report = worker.attempt(job, RUN_S)
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
