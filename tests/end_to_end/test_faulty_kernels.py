"""No faulty kernel wins: not fresh, not after a worker was killed, not from a record or an archive, whatever the clock said.

Each compile offers a faulty kernel that is far faster than any library kernel where it does nothing.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config

from inductor_plugin.cache import Measured, Record, document, open_store
from inductor_plugin.cache.record import to_fields
from inductor_plugin.cache.transfer.archive import export_archive, import_archive
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.worker.bench_worker import BenchWorker
from inductor_plugin.worker.jobs import BenchCandidate, Outcome, ScreenJob
from tests.support.candidates import wrong_numbers
from tests.support.candidates.providers import offered
from tests.support.compile import fresh
from tests.support.lowering import Lab, library_first

__all__ = ["fresh"]  # the fixture

FAULTS = (wrong_numbers.second_call, wrong_numbers.writes_a, wrong_numbers.too_large)
AHEAD = 4e9


@dataclass(frozen=True)
class Product:
    """An operator of torch and a type, for which faulty kernels are offered."""

    op: str = "mm"
    dtype: str = "float32"

    def operands(self) -> list[torch.Tensor]:
        batch = (2,) if self.op == "bmm" else ()
        sizes = ((*batch, 64, 96), (*batch, 96, 48))
        added = ((48,),) if self.op == "addmm" else ()
        return [torch.randn(size, dtype=getattr(torch, self.dtype)) for size in (*added, *sizes)]

    @property
    def accepted(self) -> float:
        """Largest error of a right product; results are about 10, those of `second_call` 1.5 times as large."""
        return 1e-3 if self.dtype == "float32" else 0.5

    def offered(self, *faults: str) -> AbstractContextManager[object]:
        overload = ".c" if self.op == "addmm" else ""
        names = (f"{fault}{overload}" for fault in faults)
        return offered(*names, serves=(self.op,), namespace="numbers", dtype=self.dtype)


MM = Product()
OTHERS = (Product("mm", "bfloat16"), Product("bmm"), Product("addmm"))
of_products = pytest.mark.parametrize(
    "product",
    [MM, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)],
    ids=lambda product: f"{product.op}-{product.dtype}",
)
CLOCKS = {"clock right": 0.0, "clock ahead": AHEAD}
of_clocks = pytest.mark.parametrize(
    ("product", "ahead"),
    [
        *(pytest.param(MM, ahead, id=f"{name}-mm-float32") for name, ahead in CLOCKS.items()),
        # What a record's age does is the same for all products.
        *(
            pytest.param(
                other, AHEAD, marks=pytest.mark.slow, id=f"clock ahead-{other.op}-{other.dtype}"
            )
            for other in OTHERS
        ),
    ],
)


def ran(cache_dir: Path, product: Product = MM, **options: Any) -> tuple[float, str]:
    """Return the largest error of four calls, NaN if any is, and the winner in the record, empty if it has none that is valid."""
    RUNTIME.forget()
    torch._dynamo.reset()
    operands = product.operands()
    stock = getattr(torch, product.op)
    expected = stock(*operands)
    function = torch.compile(
        stock, backend="inductor_plugin", options={"cache_dir": str(cache_dir), **options}
    )
    results = list[torch.Tensor]()
    for _ in range(4):
        results.append(function(*operands))
        # A kernel that writes nothing must not get memory in which a right result was.
        _ = [torch.full_like(expected, math.nan) for _ in range(8)]
    errors = [(result.float() - expected.float()).abs().max() for result in results]
    error = float(torch.stack(errors).max())  # NaN if any is
    (record,) = open_store(cache_dir).iter_records()
    return error, record.valid_decision.winner if record.valid_decision else ""


def refused(product: Product, result: tuple[float, str]) -> bool:
    """Return True if the numbers are right, and those of a library kernel."""
    error, winner = result
    return error < product.accepted and "second_call" not in winner


def changed(cache_dir: Path, change: Callable[[Measured], Measured]) -> None:
    """Write the only record again, with every candidate changed."""
    store = open_store(cache_dir)
    (record,) = store.iter_records()
    candidates = {name: change(measured) for name, measured in record.candidates.items()}
    path = store.layout.record(record.environment, record.op, record.digest)
    path.write_bytes(document.dump(to_fields(replace(record, candidates=candidates))))


def _fast(measured: Measured, ahead: float) -> Measured:
    """Return a measurement that nothing has disturbed, and whose times are sure to win if it is the faulty kernel's."""
    others = {n: v for n, v in measured.provenance.items() if n not in ("disturbed", "attempts")}
    calm = replace(
        measured,
        measured_at=measured.measured_at + ahead,
        provenance={**others, "race": "final"},
        spread_ms=0.0,
    )
    if "second_call" not in measured.name:
        return calm
    return replace(calm, status="ok", samples_ms=(1e-6,) * 5, median_ms=1e-6)


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


@pytest.mark.parametrize("backends", ["CPP", "TRITON"])
def test_nor_where_inductors_own_list_of_backends_has_no_library(
    cache_dir: Path, backends: str
) -> None:
    with offered("second_call", namespace="numbers"):
        error, winner = ran(cache_dir, max_autotune_gemm_backends=backends)
        assert error < 1e-3
        assert winner.startswith("mm-")
        with inductor_config.patch(max_autotune_gemm_backends=backends):
            assert refused(MM, ran(cache_dir))
        assert refused(MM, ran(cache_dir))


@pytest.mark.parametrize(
    ("fault", "weight", "bias"),
    [("forgets_c", 1.0, 0.0), ("only_c", 0.0, 1.0)],
    ids=["a bias of zeros", "a weight of zeros"],
)
def test_nor_one_that_the_numbers_of_a_frozen_model_hide(
    cache_dir: Path, fault: str, weight: float, bias: float
) -> None:
    """The record holds for all models of these sizes."""
    special, usual = (torch.nn.Linear(96, 48, dtype=torch.float64).eval() for _ in range(2))
    with torch.no_grad():
        special.weight.mul_(weight)
        special.bias.mul_(bias)
    x = torch.randn(64, 96, dtype=torch.float64)
    expected = {special: "skipped" if bias else "wrong", usual: "wrong"}
    for model, status in expected.items():
        RUNTIME.forget()
        torch._dynamo.reset()
        faulty = offered(f"{fault}.c", serves=("addmm",), namespace="numbers", dtype="float64")
        with faulty, inductor_config.patch(freezing=True), torch.no_grad():
            options: dict[str, Any] = {"cache_dir": str(cache_dir)}
            call = torch.compile(model, backend="inductor_plugin", options=options)
            torch.testing.assert_close(call(x), model(x))
        (record,) = open_store(cache_dir).iter_records()
        assert numbers(record, fault).status == status


@of_products
def test_nor_after_the_worker_was_killed(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, product: Product
) -> None:
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
    with product.offered("second_call"):
        result = ran(cache_dir, product)
    assert len(killed) == 1
    assert product.op in killed[0]
    assert refused(product, result)


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


class Unchecked(Lab):
    """Times candidates and compares none with the library kernel."""

    def _outcome(self, candidate: BenchCandidate, samples: int) -> Outcome:
        return replace(super()._outcome(candidate, samples), error=None)


def wins_unchecked(cache_dir: Path, product: Product, ahead: float) -> None:
    """Write a record in which the faulty kernel is the fastest, as without the check of numbers."""
    with Unchecked(library_first, cache_dir).open():
        ran(cache_dir, product, verify_numerics=False)
    changed(cache_dir, lambda m: _fast(m, ahead))
    assert (
        not ran(cache_dir, product, verify_numerics=False)[0] < product.accepted
    )  # NaN, or far off


@of_clocks
def test_nor_from_a_record_that_was_not_checked(
    cache_dir: Path, product: Product, ahead: float
) -> None:
    with product.offered("second_call"):
        wins_unchecked(cache_dir, product, ahead)
        for _ in range(2):
            assert refused(product, ran(cache_dir, product))
    (record,) = open_store(cache_dir).iter_records()
    assert numbers(record, "second_call").status == "wrong"


@pytest.mark.slow
@of_clocks
def test_nor_from_an_archive_of_such_records(
    cache_dir: Path, tmp_path: Path, product: Product, ahead: float
) -> None:
    with product.offered("second_call"):
        wins_unchecked(cache_dir, product, ahead)
        file, here = tmp_path / "records.tar.gz", tmp_path / "here"
        export_archive(open_store(cache_dir), file)
        assert refused(
            product, ran(here, product)
        )  # refuses it, and an archive is imported afterwards
        import_archive(open_store(here), file, trusted=True)
        assert refused(product, ran(here, product))
        elsewhere = tmp_path / "elsewhere"
        import_archive(open_store(elsewhere), file, trusted=True)
        for _ in range(2):
            assert refused(product, ran(elsewhere, product))
