"""The parent's side of benchmarking: one process per device, replaced when a candidate breaks it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.echo import Echoed
from inductor_plugin.worker.failure import one_line, status_of
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    CallJob,
    Event,
    FinalJob,
    JobFailed,
    Outcome,
    Sampling,
    ScreenJob,
    Status,
    WorkerSettings,
)
from inductor_plugin.worker.process import WorkerProcess

_LOG = logging.getLogger(__name__)

SETUP_S = 60.0
"""Seconds to build the operands, before the first kernel runs."""
_RELEASE = CallJob("inductor_plugin.worker.child.bench", "release")
_RELEASE_S = 10.0
_UNSAFE: frozenset[Status] = frozenset({"sticky_error", "red_zone"})


MeasureInProcess: TypeAlias = "Callable[[Callable[[], object], str, Sampling, float], Outcome]"
"""Measures a candidate in this process, as `measure_in_process` does."""


class _JobWatch:
    """Follows the events of a job: which candidate runs, its time limit, and the samples so far."""

    def __init__(self, limits_s: dict[str, float]) -> None:
        self._limits_s = limits_s
        self.culprit = ""
        self.building = False
        self.samples: dict[str, list[tuple[float, bool]]] = {}

    def __call__(self, event: Event) -> float | None:
        if event.what in ("build", "start"):
            self.building = event.what == "build"
            if event.subject != self.culprit:
                _LOG.debug("measuring %s", event.subject)
            self.culprit = event.subject
            return SETUP_S if self.building else self._limits_s.get(event.subject)
        if event.what == "sample":
            self.samples.setdefault(event.subject, []).append((event.value, event.disturbed))
        return None


class BenchWorker:
    """Measures candidates on one device, in a process that any of them may break.

    Safe to use from several threads: one job runs at a time, and the process that it has broken is ended before the next.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self._process = WorkerProcess(settings, f"benchmark worker of {settings.device}")

    @property
    def pid(self) -> int | None:
        """Number of its process, None if it is not running."""
        return self._process.pid

    def prewarm(self) -> None:
        """Start the process in the background: importing torch there takes seconds."""
        threading.Thread(target=self._try_start, name="prewarm", daemon=True).start()

    def why_not_available(self) -> str | None:
        """Return why no worker can be started on the device, twice in a row; None if one runs."""
        return self._why_not_started() and self._why_not_started()

    def screen(self, job: ScreenJob) -> Outcome:
        """Measure one candidate.

        Returns:
            Its outcome; ``skipped`` if the library kernel or building the operands failed.

        Raises:
            WorkerError: No worker could be started, twice in a row.
        """
        started = time.monotonic()
        candidate = job.candidate
        _LOG.debug(
            "measuring %s", candidate.candidate_id
        )  # before it runs: it may end this process
        watch = _JobWatch(_limits(filter(None, (job.library, candidate))))
        with self._process.held():
            result = self._run(job, watch)
            if isinstance(result, JobFailed):
                outcome = _failed(candidate, watch, result)
                result = replace(outcome, elapsed_s=time.monotonic() - started)
            self._after(result.status)
        if result.status != "ok":
            _LOG.debug("%s: %s: %s", candidate.candidate_id, result.status, result.reason)
        return result

    def final(self, job: FinalJob) -> tuple[Outcome, ...]:
        """Sample the leaders in turns; a candidate that breaks the worker drops out of the race.

        Raises:
            WorkerError: No worker could be started, twice in a row.
        """
        remaining = {candidate.candidate_id: candidate for candidate in job.candidates}
        done: dict[str, Outcome] = {}
        samples: dict[str, list[tuple[float, bool]]] = {name: [] for name in remaining}
        rounds = job.rounds
        _LOG.debug("measuring in turns: %s", ", ".join(remaining))
        with self._process.held():
            while remaining:
                watch = _JobWatch(_limits(remaining.values()))
                shorter = replace(job, candidates=tuple(remaining.values()), rounds=rounds)
                result = self._run(shorter, watch)
                for name, values in watch.samples.items():
                    samples[name].extend(values)
                if not isinstance(result, JobFailed):
                    done |= {outcome.candidate_id: outcome for outcome in result}
                    break
                self._after(result.status)
                names = [watch.culprit] if watch.culprit in remaining else list(remaining)
                done |= {name: _failed(remaining.pop(name), watch, result) for name in names}
                taken = min((len(watch.samples.get(name, ())) for name in remaining), default=0)
                rounds = max(1, rounds - taken)  # the check of the others comes after their last
            for name in remaining:
                self._after(done[name].status)
        return tuple(
            _with_samples(done[candidate.candidate_id], samples[candidate.candidate_id])
            for candidate in job.candidates
        )

    def call(self, job: CallJob, limit_s: float) -> Any:
        """Run a function in the process; return its result, or a `JobFailed` if it has failed or broken the process.

        Raises:
            WorkerError: No worker could be started.
        """
        with self._process.held():
            result = self._process.attempt(job, limit_s)
            if isinstance(result, JobFailed):
                self._after(result.status)
        return result

    def release(self) -> None:
        """Let the process, if it runs, drop the operands it keeps and give the GPU's memory back."""
        if self.pid is None:
            return
        with suppress(WorkerError), self._process.held():  # it was closed, and has given back all
            result = self._process.attempt(_RELEASE, _RELEASE_S)
            if isinstance(result, JobFailed):
                _LOG.debug("memory is given back by ending the worker: %s", result.reason)
                self._process.stop()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _try_start(self) -> None:
        if reason := self._why_not_started():
            _LOG.debug("no head start: %s", reason)  # the first job tries again, and reports it

    def _why_not_started(self) -> str | None:
        try:
            self._process.start()
        except WorkerError as error:
            return one_line(str(error))
        return None

    def _after(self, status: Status) -> None:
        """Replace a worker whose memory or device context can no longer be trusted."""
        if status in _UNSAFE:
            self._process.stop()

    def _run(self, job: ScreenJob | FinalJob, watch: _JobWatch) -> Any:
        """Run a job; a broken worker becomes a `JobFailed`, a failed start is tried again once."""
        try:
            return self._process.attempt(job, SETUP_S, watch)
        except WorkerError as error:
            _LOG.info("%s; trying once more", one_line(str(error)))
            return self._process.attempt(job, SETUP_S, watch)


def measure_in_process(
    run: Callable[[], object], candidate_id: str, sampling: Sampling, timeout_s: float
) -> Outcome:
    """Measure a candidate that cannot be sent to a worker, in a thread that is abandoned if it hangs.

    A candidate that hangs keeps its thread, and a crash ends this process, so this is for library
    kernels only. There are no other operands for an echo (`Echoed`): it is called on the same ones, so that its operands are in
    the caches, too, and rivals have to beat the library at its best.
    """
    from inductor_plugin.worker import timer  # noqa: PLC0415  imports torch; the rest of this module does not

    started = time.monotonic()
    outcomes: list[Outcome] = []

    def measured() -> None:
        try:
            samples = timer.take_samples(timer.timer_for("cpu"), Echoed(run, run), sampling)
            done = Outcome(candidate_id, "ok", samples_ms=samples.used_ms)
            outcomes.append(replace(done, disturbed=samples.disturbed))
        except Exception as error:  # noqa: BLE001  the border, as in the worker: it becomes the call's outcome
            reason = one_line(f"{type(error).__name__}: {error}")
            outcomes.append(Outcome(candidate_id, status_of(error), reason))

    _LOG.debug("measuring %s in this process", candidate_id)
    thread = threading.Thread(target=measured, name=f"measuring {candidate_id}", daemon=True)
    thread.start()
    thread.join(timeout_s or None)
    hung = Outcome(candidate_id, "hung", f"gave up after {timeout_s:.1f} s; its thread is left")
    outcome = outcomes[0] if outcomes else hung
    return replace(outcome, elapsed_s=time.monotonic() - started)


def _with_samples(outcome: Outcome, samples: Sequence[tuple[float, bool]]) -> Outcome:
    """Return an outcome of finals with the samples of calm turns; with all, as disturbed ones, where no turn was calm."""
    calm = tuple(value for value, disturbed in samples if not disturbed)
    every = tuple(value for value, _ in samples)
    disturbed = bool(every) and not calm
    return replace(outcome, samples_ms=calm or every, disturbed=disturbed, turns=len(every))


def _limits(candidates: Iterable[BenchCandidate]) -> dict[str, float]:
    """Return the limits by candidate; a limit of 0 is none."""
    return {candidate.candidate_id: candidate.timeout_s or math.inf for candidate in candidates}


def _failed(candidate: BenchCandidate, watch: _JobWatch, failure: JobFailed) -> Outcome:
    """Return the outcome of a candidate whose job failed: its own failure, or ``skipped``."""
    name = candidate.candidate_id
    _LOG.debug("%s: %s", name, failure.traceback)
    alone = watch.culprit == name and not watch.building
    if alone and not failure.crowded:
        # A GPU that is too small for a candidate is no fault: it is left out there.
        status = failure.status if failure.crowded is None else "pruned"
        return Outcome(name, status, failure.reason)
    cause = f"building the operands of {watch.culprit or name}" if watch.building else watch.culprit
    reason = f"{cause or 'its worker'}: {failure.status}: {failure.reason}"
    refuses = watch.building and failure.status == "sticky_error"
    return Outcome(name, "skipped", reason, no_device=bool(failure.crowded) or refuses)
