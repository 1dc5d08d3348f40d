"""Overlap of compiling and measuring: candidates are compiled while others are measured.

    main thread ── submit ──► tasks ──► builder (compile workers) ──► ready candidates
         ▲                                                              │
         └── wait ◄── finish ◄── race (screen, then interleaved finals) ◄┘  one thread per device

On a CPU, compiling and measuring disturb each other, so a task marked ``exclusive`` is measured
only while nothing compiles and the main thread waits; otherwise both run concurrently.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from inductor_plugin.cost.host import host_ms
from inductor_plugin.errors import WorkerError
from inductor_plugin.tuning import race
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.holder import Holds
from inductor_plugin.tuning.report.journal import Journal
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import Agenda, Task, TaskCandidate
from inductor_plugin.worker.devices.lookup import known, on_host
from inductor_plugin.worker.jobs import MAY_HAVE_CHANGED, Outcome

if TYPE_CHECKING:
    from inductor_plugin.tuning.builds.builder import Builder
    from inductor_plugin.tuning.holder import ProblemLocks
    from inductor_plugin.worker.bench_farm.bench import Bench
    from inductor_plugin.worker.bench_worker import MeasureInProcess

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_RETRIED = frozenset({"skipped", "crashed", "hung", "out_of_memory", "sticky_error"})
"""Outcomes of a library kernel after which it runs once more: without a reference no candidate can win."""
_GIVE_BACK_S = 1.0
"""Seconds without a waiting thread after which a problem's lock is given back; a graph pauses for milliseconds."""


class Pipeline:
    """Runs the tasks of one device; one daemon thread measures."""

    def __init__(
        self,
        device: str,
        build: Builder,
        bench: Bench,
        measure_in_process: MeasureInProcess,
        counters: Counters,
        trace: SpanTrace,
        bench_timeout_s: float,
        locks: ProblemLocks,
        on_measured: Callable[[str], None],
    ) -> None:
        """Start measuring.

        Args:
            device: ``cpu`` or ``cuda:0`` ...
            build: Compiles candidates.
            bench: Its benchmark worker.
            measure_in_process: Measures candidates that cannot be sent to the worker.
            counters: Counters of measured candidates and seconds.
            trace: Receives the spans of measurements.
            bench_timeout_s: Seconds one candidate may run; 0 for no limit.
            locks: The problems' inter-process locks.
            on_measured: Called with the name of each measured candidate.
        """
        self.device = device
        self._build = build
        self._bench = bench
        self._measure_in_process = measure_in_process
        self._journal = Journal(counters, trace)
        self._bench_timeout_s = bench_timeout_s
        self._locks = locks
        self._on_measured = on_measured
        self._wake = threading.Condition()
        self._tasks = Agenda()
        self._holds = Holds(locks)
        self._awaited: list[Task] = []
        self._awaited_at = self._progress_at = time.monotonic()
        self._closed, self._absent, self._used = False, "", False
        self._thread = threading.Thread(
            target=self._loop, name=f"inductor-plugin-bench-{device}", daemon=True
        )
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Queue a problem; returns immediately. Its builds are collected until a thread waits, if none does."""
        task.steps_left = len(task.entries)
        refusal = self._why_not_accepted(task)
        if refusal is None:
            for candidate in task.entries:
                if candidate.build is None:
                    candidate.candidate = candidate.bench("", "") if candidate.bench else None
                    candidate.ready = True
                else:
                    self._build.add(task, candidate, partial(self._notify, task))
        with self._wake:
            refusal = refusal or self._why_not_accepted(
                task
            )  # after a renewal, too: nothing was built
            if refusal is None and not task.done.is_set():  # decided elsewhere meanwhile
                self._tasks.add(task)
                self._wake.notify_all()
            is_awaited = bool(self._awaited)
        if refusal is not None:
            self._end(task, refusal)
        elif is_awaited:  # of a rank, whose thread submits what another one waits for already
            self._build.flush()

    def wait(self, task: Task, limit_s: float) -> bool:
        """Wait until a task is done; False if that failed.

        Args:
            task: The task.
            limit_s: Seconds without any progress after which it is given up.
        """
        if task.budget is not None:
            task.budget.start()
        self._build.flush()
        with self._wake:
            self._awaited.append(task)
            self._wake.notify_all()
        try:
            self._build.flush()  # what came since, from a thread that saw no other wait
            started = time.monotonic()
            while not task.done.wait(timeout=min(1.0, max(0.0, limit_s))):
                idle_s = time.monotonic() - max(started, self._progress_at)
                if not self._thread.is_alive():
                    self._end(task, "the thread that measures is gone")
                elif idle_s > limit_s:
                    self._end(task, f"tuning made no progress within its limit of {limit_s:.0f} s")
        except BaseException:  # Ctrl-C: this thread will not wait for it again, and others may
            self._end(task, "it was interrupted")
            raise
        finally:
            with self._wake:
                self._awaited.remove(task)
                self._awaited_at = time.monotonic()
        return not task.error

    @property
    def absence(self) -> str:
        """Why nothing can be measured on the device in this compile, empty if something can be."""
        return self._absent

    def renew(self) -> None:
        """Try the device again: another graph is compiled."""
        with self._wake:
            self._absent = ""

    def leave(self, reason: str) -> None:
        """Measure nothing more on this device until `renew`; tasks that only build need no device, and go on."""
        with self._wake:
            self._absent = reason
            tasks = [task for task in self._tasks if task.measured]
        if not self._closed:  # closing ends the worker, too
            logger.warning(
                "inductor-plugin: nothing can be measured on %s now (%s); nothing more is compiled for it, library kernels "
                "are used, and the next compile tries again",
                self.device,
                reason,
            )
        for task in tasks:
            self._end(task, reason)

    def end(self, task: Task, error: str) -> None:
        """End a task that is decided elsewhere, or that is not needed; it need not have been submitted."""
        self._end(task, error)

    def progressed(self) -> None:
        """Wake what waits: another process makes progress with what is waited for."""
        self._notify()

    def close(self) -> None:
        """Stop measuring; tasks still queued end undecided."""
        with self._wake:
            self._closed = True
            tasks = list(self._tasks)
            self._wake.notify_all()
        for task in tasks:
            self._end(task, "the pipeline was closed")

    def _why_not_accepted(self, task: Task) -> str | None:
        absent = self._absent if task.measured else ""
        return absent or ("the pipeline is closed" if self._closed else None)

    def _notify(self, task: Task | None = None) -> None:
        with self._wake:
            self._progress_at = time.monotonic()
            if task is not None:
                self._tasks.wake(task)
            self._wake.notify_all()

    def _end(self, task: Task, error: str = "") -> None:
        """End a task, from any thread: release its lock and wake the threads waiting for it."""
        with self._wake:
            if task.done.is_set():
                return
            task.error = error
            self._tasks.remove(task)
            release = self._holds.remove(task)
            steps, task.steps_left = task.steps_left, 0
            # Before the lock is released: a waiter no longer counts as waiting (see `_next`).
            task.done.set()
        release()
        for _ in range(steps):  # candidates that need no measurement
            self._on_measured("")

    def _loop(self) -> None:
        while (task := self._await_next()) is not None:
            self._guarded_turn(task)
            del task  # while the thread waits for the next one, its graph is not to be kept

    def _guarded_turn(self, task: Task) -> None:
        try:
            self._turn(task)
        except WorkerError as error:
            self.leave(f"the benchmark worker is gone: {error}")
        except Exception as error:  # the border around one task's race
            logger.exception("inductor-plugin: measuring %s failed", task.problem.describe())
            self._end(task, f"measuring failed: {type(error).__name__}: {error}")
        if not self._tasks:
            self._give_back()

    def _await_next(self) -> Task | None:
        """Wait for a task with something to do; None once the pipeline is closed."""
        with self._wake:
            while not self._closed:
                task = self._next()
                if task is not None:
                    return task
                recent = time.monotonic() - self._awaited_at < _GIVE_BACK_S
                self._holds.keep_or_give_back(waiting=bool(self._awaited) or recent)
                self._wake.wait(timeout=_POLL_S if self._tasks else 5.0)
        return None

    def _next(self) -> Task | None:
        """Return a task with something to do now; called with the lock held."""
        awaited = any(not task.done.is_set() for task in self._awaited)
        for task in self._tasks.awake():
            if task.late or task.hopeless:
                return task
            waits = task.exclusive and (not awaited or self._build.busy())
            if waits or time.monotonic() < task.retry_at:
                continue
            if task.screenable() or not task.unscreened() or task.has_news:
                return task
            self._tasks.rest(task)
        return None

    def _turn(self, task: Task) -> None:
        """Advance a task by one step, or finish it if its time is over."""
        entered = self._enter(task)
        if task.late or task.hopeless:
            task.cut_short()
            self._finish(task)
        elif not entered:
            task.retry_at = time.monotonic() + _POLL_S
            if self._holds.has(task) is None:  # another process measures it, and is not silent
                self._progress_at = time.monotonic()
        elif task.exclusive:
            with self._build.quiet() as quiet:
                if quiet:
                    self._advance(task)
        else:
            self._advance(task)

    def _enter(self, task: Task) -> bool:
        """Take a problem's lock, and the measurements that other processes made before.

        Returns:
            False if another task or process measures this problem.
        """
        held = self._holds.has(task)
        if held is not None:
            if held and task.has_news:
                task.news.clear()
                task.refresh(task)
            return held
        release = self._locks(task)
        if release is None:
            return False
        with self._wake:
            ended = task.done.is_set()
            if not ended:
                self._holds.add(task, release)
        if ended:
            release()
            return False
        task.refresh(task)
        return True

    def _advance(self, task: Task) -> None:
        """Run one step of a task: screen a candidate, run one leg of the finals, or finish."""
        ready = task.screenable()
        if ready and not task.measured:  # ``policy=build``
            for candidate in ready:
                skipped = Outcome(candidate.candidate_id, "skipped", "compiled, not measured")
                self._set_outcome(task, candidate, skipped)
        elif ready:
            self._screen(task, ready[0])
        elif not task.unscreened() and not (task.measured and self._final(task)):
            self._finish(task)

    def _set_outcome(self, task: Task, candidate: TaskCandidate, outcome: Outcome) -> None:
        """Set a candidate's outcome, and show progress."""
        candidate.outcome = outcome
        self._progressed(task)
        task.steps_left = max(0, task.steps_left - 1)
        self._on_measured(candidate.name)

    def _progressed(self, task: Task) -> None:
        self._progress_at = time.monotonic()
        self._locks.touch(task)

    def _screen(self, task: Task, candidate: TaskCandidate) -> None:
        reference = task.reference
        # By what the library kernel costs with its launch, too: without CUDA graphs a fusion saves one.
        launch_ms = host_ms(reference.conditions) if reference else 0.0
        library_ms = [max(ms, launch_ms) for ms in reference.samples_ms] if reference else []
        if reason := race.beaten(candidate.least_ms, library_ms):
            self._set_outcome(task, candidate, Outcome(candidate.candidate_id, "pruned", reason))
            return
        with self._journal.measuring(task, self.device, [candidate.name], "screen"):
            outcome = self._screened(task, candidate, reference)
            if candidate.library and outcome is not None and outcome.status in _RETRIED:
                outcome = self._screened(task, candidate, reference)
            if outcome is None or (
                outcome.status == "skipped" and candidate.in_process is not None
            ):
                # Operands that cannot be sent to the worker or rebuilt there are measured here.
                assert candidate.in_process is not None
                candidate.bench = candidate.candidate = None
                outcome = self._measure_in_process(
                    candidate.in_process,
                    candidate.candidate_id,
                    race.screening(known(self.device)),
                    self._bench_timeout_s,
                )
        candidate.screened(outcome)
        self._journal.measured(task, candidate.name, outcome)
        self._set_outcome(task, candidate, outcome)
        if candidate.library and outcome.no_device:
            self.leave(outcome.reason)

    def _screened(
        self, task: Task, candidate: TaskCandidate, reference: TaskCandidate | None
    ) -> Outcome | None:
        """Return the worker's outcome, None if the candidate cannot be sent to it."""
        if candidate.bench is None:
            return None
        self._used = True
        sampling = race.screening(known(self.device))
        return self._bench.screen(task.screening(candidate, reference, sampling))

    def _final(self, task: Task) -> bool:
        """Run one leg of interleaved rounds; False when no candidate can catch up any more."""
        task.racing = task.racers()
        if not task.racing or task.legs >= race.MAX_LEGS:
            return False
        finalists = [task.entry(n) for n in task.racing]
        started = time.perf_counter()
        with self._journal.measuring(task, self.device, [e.name for e in finalists], "final"):
            sampling = race.final_sampling(known(self.device))
            job = task.final(finalists, task.reference, sampling, race.ROUNDS_PER_LEG)
            outcomes = self._bench.final(job)
        elapsed_s, check_s = time.perf_counter() - started, sum(o.check_s for o in outcomes)
        self._journal.count(task, benchmark_s=elapsed_s, check_s=check_s)
        for outcome in outcomes:
            candidate = task.entry(outcome.candidate_id)
            # skipped: caused by another candidate; but of those that may have changed an operand none may win
            if outcome.status not in ("ok", "skipped") or outcome.reason == MAY_HAVE_CHANGED:
                candidate.outcome = outcome
            candidate.raced(outcome)
        task.legs += 1
        self._progressed(task)
        return True

    def _give_back(self) -> None:
        """Let the worker give the GPU's memory back: the user's first step may need all of it."""
        if self._used and not on_host(self.device):
            self._used = False
            self._bench.release()

    def _finish(self, task: Task) -> None:
        task.finish(task)
        if all(each is task for each in self._tasks):  # before anybody goes on
            self._give_back()
        self._end(task)
