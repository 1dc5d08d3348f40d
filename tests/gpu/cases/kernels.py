"""Kernels of the GPU cases: built ahead of the tests in slices, so that no test waits for all; run by a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import Any, Generic, TypeVar

from inductor_plugin.worker.jobs import CallJob, JobFailed
from inductor_plugin.worker.process import WorkerProcess
from tests.gpu.cases.offers import Offered, all_offered, built, chosen
from tests.gpu.cases.registry import case

TEST_S = 200.0
"""Longest test: pytest's faulthandler ends the whole run after 240 s of one (pyproject.toml)."""
WAIT_S = 120.0
"""Longest wait of a test for its kernels; the rest is for running them."""
BUILD_S = 300.0
"""Longest build of a slice; 130 CUTLASS kernels take about 1,000 CPU seconds, in batches."""
RUN_S = 60.0
"""Longest run of a kernel in all ways."""

T = TypeVar("T")


class Kernels(Generic[T]):
    """Builds one slice of the cases after the other in a thread, in the order of the tests."""

    def __init__(
        self,
        identities: Sequence[str],
        build: Callable[[Sequence[str]], Mapping[str, T | str]],
        size: int,
    ) -> None:
        """Begin to build.

        Args:
            identities: The cases that are going to be tested, in their order.
            build: Returns what is built for some cases, or why there is nothing.
            size: Cases of a slice.
        """
        self._thread = ThreadPoolExecutor(1, "build kernels")
        self._slices: dict[str, Future[Mapping[str, T | str]]] = {}
        for first in range(0, len(identities), size):
            part = list(identities[first : first + size])
            self._slices |= dict.fromkeys(part, self._thread.submit(build, part))

    def of(self, identity: str, limit_s: float = WAIT_S) -> T | str:
        """Return what is built for a case, or why there is nothing, after ``limit_s`` at most."""
        try:
            return self._slices[identity].result(limit_s)[identity]
        except NotYetError:
            return (
                f"still being built after {limit_s:.0f} s; what is built is found by the next run"
            )

    def close(self) -> None:
        """Begin no other slice."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def building(identities: Sequence[str], kernels_dir: Path) -> Iterator[Kernels[list[Offered]]]:
    """Begin to build the candidates of the cases that are going to run; two a process in a slice."""
    workers = max(1, len(os.sched_getaffinity(0)) // 2)
    kernels = Kernels(identities, lambda some: built_slice(some, kernels_dir, workers), 2 * workers)
    yield kernels
    kernels.close()


def built_slice(
    identities: Sequence[str], kernels_dir: Path, workers: int
) -> dict[str, list[Offered] | str]:
    """Return the candidates of some cases that have to run, built; or why there are none."""
    offers = all_offered(identities, kernels_dir / "inductor", workers)
    chosen_ones = {identity: picked(identity, offer) for identity, offer in offers.items()}
    lists = [offer for offer in chosen_ones.values() if not isinstance(offer, str)]
    results = built([name for each in lists for name in each], kernels_dir, 2 * workers, BUILD_S)
    return {identity: ready(offer, results) for identity, offer in chosen_ones.items()}


def picked(identity: str, offers: list[Offered] | str) -> list[Offered] | str:
    """Return the candidates of a case that have to run, or why there are none."""
    try:
        return offers if isinstance(offers, str) else chosen(case(identity), offers)
    except LookupError as error:
        return str(error)


def ready(
    offers: list[Offered] | str, built_ones: Mapping[tuple[str, str], Offered | str]
) -> list[Offered] | str:
    """Return the candidates of a case with their libraries, or why one is not there."""
    if isinstance(offers, str):
        return offers
    results = [built_ones[offer.case, offer.identity] for offer in offers]
    failed = [result for result in results if isinstance(result, str)]
    good = [result for result in results if not isinstance(result, str)]
    return f"not built: {failed[0]}" if failed else good


def check_candidates(
    identity: str,
    kernels: Kernels[list[Offered]],
    worker: WorkerProcess,
    note: Callable[[str, Any], None],
) -> None:
    """Run the candidates of a case in a worker, note how each fared, and fail if one is wrong."""
    ends = time.monotonic() + TEST_S
    candidates = kernels.of(identity)
    assert not isinstance(candidates, str), candidates
    assert candidates
    wrong: list[str] = []
    rows: list[dict[str, Any]] = []
    for candidate in candidates:
        rest_s = ends - time.monotonic()
        if rest_s <= 0:
            wrong.append(f"{candidate.about}: not run, {TEST_S:.0f} s are over")
            continue
        job = CallJob("tests.gpu.harness.check", "checked", (identity, candidate.kernel))
        report = worker.attempt(job, min(RUN_S, rest_s))
        if isinstance(report, JobFailed):
            worker.stop()  # its context may be broken
            reason = f"{report.status}: {report.reason}"
            rows.append({"candidate": candidate.about, "failed": reason})
            wrong.append(f"{candidate.about}: {reason}\n{report.traceback}")
            continue
        rows.append({"candidate": candidate.about, **report.to_dict()})
        if not report.good:
            wrong.append(f"{candidate.about}: {report}")
    note("candidates", rows)
    assert not wrong, "\n".join(wrong)
