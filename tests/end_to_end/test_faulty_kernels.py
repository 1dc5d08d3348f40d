"""No faulty kernel wins: not fresh, not after a worker was killed, not from a record, whatever the clock said.

Each compile offers a faulty kernel that is far faster than any library kernel where it does nothing.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config

import inductor_plugin
from inductor_plugin.cache import Measured, Record, document, open_store
from inductor_plugin.cache.record import to_fields
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.worker.bench_worker import BenchWorker
from inductor_plugin.worker.jobs import Outcome, ScreenJob
from tests.support.candidates import wrong_numbers
from tests.support.candidates.providers import offered

FAULTS = (wrong_numbers.second_call, wrong_numbers.writes_a, wrong_numbers.too_large)
AHEAD = 4e9


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def ran(cache_dir: Path, **options: Any) -> tuple[float, str]:
    """Return the error of four calls, and the candidate that runs by the record."""
    RUNTIME.forget()
    torch._dynamo.reset()
    a, b = torch.randn(64, 96), torch.randn(96, 48)
    expected = a @ b
    function = torch.compile(
        torch.mm, backend="inductor_plugin", options={"cache_dir": str(cache_dir), **options}
    )
    error = max(float((function(a, b) - expected).abs().max()) for _ in range(4))
    (found,) = open_store(cache_dir).iter_records()
    assert found.decision is not None
    return error, found.decision.winner


def changed(cache_dir: Path, change: Callable[[Measured], Measured]) -> None:
    """Write the only record again, with every candidate changed."""
    store = open_store(cache_dir)
    (record,) = store.iter_records()
    candidates = {name: change(measured) for name, measured in record.candidates.items()}
    path = store.layout.record(record.environment, record.op, record.digest)
    path.write_bytes(document.dump(to_fields(replace(record, candidates=candidates))))


def _fast(measured: Measured, ahead: float) -> Measured:
    """Return a measurement whose times are sure to win, if it is the faulty kernel's."""
    finalist = {**measured.provenance, "race": "final"}
    moved = replace(measured, measured_at=measured.measured_at + ahead, provenance=finalist)
    if "second_call" not in measured.name:
        return moved
    return replace(moved, status="ok", samples_ms=(1e-6,) * 5, median_ms=1e-6, spread_ms=0.0)


def numbers(record: Record, candidate: str) -> Measured:
    (row,) = [m for name, m in record.candidates.items() if candidate in name]
    return row


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_faulty_kernel_does_not_win(cache_dir: Path, fault: wrong_numbers.Fault) -> None:
    with offered(fault.__name__, namespace="numbers"):
        error, winner = ran(cache_dir)
        assert error < 1e-3
        assert winner.startswith("mm-")
        assert ran(cache_dir)[0] < 1e-3
    (record,) = open_store(cache_dir).iter_records()
    assert numbers(record, fault.__name__).status in ("wrong", "red_zone")


@pytest.mark.parametrize("fault", wrong_numbers.OF_SIZES, ids=lambda fault: fault.__name__)
def test_nor_one_that_is_right_only_at_the_size_it_is_measured_at(
    cache_dir: Path, fault: wrong_numbers.Fault
) -> None:
    """Measured with 64 rows; the record holds for 33 to 64."""
    with offered(fault.__name__, namespace="numbers"):
        function = torch.compile(
            torch.mm, backend="inductor_plugin", options={"cache_dir": str(cache_dir)}
        )
        for rows in (64, 33, 47):
            a, b = torch.randn(rows, 96), torch.randn(96, 48)
            torch._dynamo.mark_dynamic(a, 0)
            assert float((function(a, b) - a @ b).abs().max()) < 1e-3
    (record,) = open_store(cache_dir).iter_records()
    assert record.problem["dynamic"]
    refused = numbers(record, fault.__name__)
    assert refused.status in ("wrong", "red_zone")
    assert refused.reason.endswith("(at size 33 instead of 64)")


def test_nor_after_the_worker_was_killed(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library kernel's worker gets one SIGKILL as it starts, as the OOM killer sends it."""
    screen, killed = BenchWorker.screen, list[str]()

    def disturbed(worker: BenchWorker, job: ScreenJob) -> Outcome:
        if not killed:
            killed.append(job.candidate.candidate_id)
            worker._process.start()  # pyright: ignore[reportPrivateUsage]
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
        return screen(worker, job)

    monkeypatch.setattr(BenchWorker, "screen", disturbed)
    with offered("second_call", namespace="numbers"):
        error, winner = ran(cache_dir)
    assert killed
    assert killed[0] == winner
    assert error < 1e-3


def test_nor_where_no_library_kernel_runs_in_the_worker(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = BenchWorker.screen

    def without_library(worker: BenchWorker, job: ScreenJob) -> Outcome:
        if job.candidate.candidate_id.startswith("mm-"):
            return Outcome(job.candidate.candidate_id, "skipped", "its operands cannot be built")
        return screen(worker, job)

    monkeypatch.setattr(BenchWorker, "screen", without_library)
    with offered("second_call", namespace="numbers"):
        error, winner = ran(cache_dir)
    assert error < 1e-3
    assert winner.startswith("mm-")
    (record,) = open_store(cache_dir).iter_records()
    assert numbers(record, "second_call").status == "skipped"


@pytest.mark.parametrize("ahead", [0.0, AHEAD], ids=["clock right", "clock ahead"])
def test_nor_from_a_record_that_was_not_checked(cache_dir: Path, ahead: float) -> None:
    with offered("second_call", namespace="numbers"):
        ran(cache_dir, verify_numerics=False)
        changed(cache_dir, lambda m: _fast(m, ahead))
        assert not ran(cache_dir, verify_numerics=False)[0] < 1e-3  # NaN, or far off
        for _ in range(2):
            error, winner = ran(cache_dir)
            assert error < 1e-3
            assert winner.startswith("mm-")
