"""Overlap: compile the next candidates while measuring the ready ones, within limits.

    main thread ── submit ──► tasks ──► builder (compile workers) ──► ready candidates
         ▲                                                              │
         └── wait ◄── finish ◄── race (screen, then interleaved finals) ◄┘  one thread per device

On a CPU device compiling and measuring disturb each other, so a task marked ``exclusive`` is
measured only while nothing compiles and the main thread waits; elsewhere both run at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from inductor_plugin.counters import Counters
from inductor_plugin.errors import WorkerError
from inductor_plugin.tuning import race
from inductor_plugin.tuning.task import Task, TaskCandidate
from inductor_plugin.tuning.trace import Trace
from inductor_plugin.worker.jobs import BenchCandidate, FinalJob, Outcome, Sampling, ScreenJob

if TYPE_CHECKING:
    from inductor_plugin.tuning.builder import Builder
    from inductor_plugin.worker.bench_worker import BenchWorker

logger = logging.getLogger(__name__)

_POLL_S = 0.05


MeasureInProcess: TypeAlias = "Callable[[Callable[[], object], str, Sampling, float], Outcome]"
"""Measures a candidate in this process: its call, its id, how to sample, seconds it may take."""


class Pipeline:
    """Runs the tasks of one device; one daemon thread measures."""

    def __init__(
        self,
        device: str,
        build: Builder,
        bench: BenchWorker,
        measure_in_process: MeasureInProcess,
        counters: Counters,
        trace: Trace,
        bench_timeout_s: float,
        try_lock: Callable[[Task], Callable[[], None] | None],
        on_measured: Callable[[str], None],
    ) -> None:
        """Start measuring for ``device``.

        Args:
            device: ``cpu`` or ``cuda:0`` ...
            build: Where candidates are compiled.
            bench: The device's benchmark worker.
            measure_in_process: Measures what cannot travel to the worker.
            counters: Where the work is counted.
            trace: Where spans are recorded.
            bench_timeout_s: Seconds one candidate may run.
            try_lock: Takes the problem's lock among processes and returns its release, or None if
                another process is measuring this problem.
            on_measured: Called with the name of each measured candidate.
        """
        self.device = device
        self._build = build
        self._bench = bench
        self._measure_in_process = measure_in_process
        self._counters = counters
        self._trace = trace
        self._bench_timeout_s = bench_timeout_s
        self._try_lock = try_lock
        self._on_measured = on_measured
        self._wake = threading.Condition()
        self._tasks: list[Task] = []
        self._holds: dict[str, tuple[Task, Callable[[], None]]] = {}
        self._awaited: list[Task] = []
        self._closed = False
        self._broken = ""
        self._thread = threading.Thread(
            target=self._loop, name=f"inductor-plugin-bench-{device}", daemon=True
        )
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Queue a problem; returns at once."""
        task.steps_left = len(task.entries)
        if not self._refusal():
            for entry in task.entries:
                if entry.build is None:
                    entry.candidate = entry.bench("", "") if entry.bench else None
                    entry.ready = True
                else:
                    self._build.add(task, entry, self._notify)
        with self._wake:
            refusal = self._refusal()
            if not refusal:
                self._tasks.append(task)
                self._wake.notify_all()
        if refusal:
            self._end(task, refusal)

    def wait(self, task: Task, limit_s: float) -> bool:
        """Wait until a task is done; False if the limit passed or the pipeline broke first."""
        self._build.flush()
        with self._wake:
            self._awaited.append(task)
            self._wake.notify_all()
        try:
            ends = time.monotonic() + limit_s
            while not task.done.wait(timeout=min(1.0, max(0.0, ends - time.monotonic()))):
                if not self._thread.is_alive():
                    self._end(task, "the thread that measures is gone")
                elif time.monotonic() > ends:
                    self._end(task, f"tuning did not end within its limit of {limit_s:.0f} s")
            return not task.error
        finally:
            with self._wake:
                self._awaited.remove(task)

    def close(self) -> None:
        """Stop measuring; tasks still queued end undecided."""
        with self._wake:
            self._closed = True
            tasks = list(self._tasks)
            self._wake.notify_all()
        for task in tasks:
            self._end(task, "the pipeline was closed")

    def _refusal(self) -> str:
        return self._broken or ("the pipeline is closed" if self._closed else "")

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _end(self, task: Task, error: str = "") -> None:
        """End a task, from whichever thread: release its lock and wake what waits for it."""
        with self._wake:
            if task.done.is_set():
                return
            task.error = error
            if task in self._tasks:
                self._tasks.remove(task)
            holder, release = self._holds.get(task.digest, (None, None))
            if holder is task:
                del self._holds[task.digest]
            steps, task.steps_left = task.steps_left, 0
            # Before the lock is free: a waiter no longer counts as waiting (see `_next`).
            task.done.set()
        if holder is task and release is not None:
            release()
        for _ in range(steps):  # what is known without being measured
            self._on_measured("")

    def _loop(self) -> None:
        while not self._broken and (task := self._await_next()) is not None:
            self._guarded_turn(task)

    def _guarded_turn(self, task: Task) -> None:
        try:
            self._turn(task)
        except WorkerError as error:
            self._break(str(error))
        except Exception as error:  # the border around one task's race
            logger.exception("measuring %s failed", task.problem.describe())
            self._end(task, f"measuring failed: {type(error).__name__}: {error}")

    def _break(self, reason: str) -> None:
        with self._wake:
            self._broken = reason or "it failed"
            tasks = list(self._tasks)
        if not self._closed:  # closing ends the worker, too
            logger.warning(
                "the benchmark worker for %s is gone (%s); library kernels are used from here on",
                self.device,
                reason,
            )
        for task in tasks:
            self._end(task, reason)

    def _await_next(self) -> Task | None:
        """Wait for a task with something to do; None once the pipeline is closed."""
        with self._wake:
            while not self._closed:
                task = self._next()
                if task is not None:
                    return task
                self._wake.wait(timeout=_POLL_S if self._tasks else 5.0)
        return None

    def _next(self) -> Task | None:
        """Return a task with something to do now; called with the lock held."""
        awaited = any(not task.done.is_set() for task in self._awaited)
        for task in self._tasks:
            if task.late:
                return task
            waits = task.exclusive and (not awaited or self._build.busy())
            if waits or time.monotonic() < task.retry_at:
                continue
            if task.screenable() or not task.unscreened():
                return task
        return None

    def _turn(self, task: Task) -> None:
        """Do what there is to do for a task."""
        entered = self._enter(task)
        if task.late:
            for entry in task.unscreened():
                entry.outcome = Outcome(entry.candidate_id, "skipped", "the tuning budget ended")
            self._finish(task)
        elif not entered:
            task.retry_at = time.monotonic() + _POLL_S
        elif task.exclusive:
            with self._build.quiet() as quiet:
                if quiet:
                    self._advance(task)
        else:
            self._advance(task)

    def _enter(self, task: Task) -> bool:
        """Take a problem's lock, and over what others measured before it was free.

        Returns:
            False if another task or process measures this problem.
        """
        hold = self._holds.get(task.digest)
        if hold is not None:
            return hold[0] is task
        release = self._try_lock(task)
        if release is None:
            return False
        with self._wake:
            ended = task.done.is_set()
            if not ended:
                self._holds[task.digest] = (task, release)
        if ended:
            release()
            return False
        task.refresh(task)
        return True

    def _advance(self, task: Task) -> None:
        """Do one step of a task: screen one candidate, run one leg of the finals, or finish."""
        ready = task.screenable()
        if ready and not task.measured:
            self._pass_over(task, ready)
        elif ready:
            self._screen(task, ready[0])
        elif not task.unscreened() and not (task.measured and self._final(task)):
            self._finish(task)

    def _pass_over(self, task: Task, entries: Sequence[TaskCandidate]) -> None:
        """Mark compiled candidates as skipped; ``policy=build`` measures nothing."""
        for entry in entries:
            skipped = Outcome(entry.candidate_id, "skipped", "compiled, not measured")
            self._known(task, entry, skipped)

    def _known(self, task: Task, entry: TaskCandidate, outcome: Outcome) -> None:
        """Keep an outcome, and show progress."""
        entry.outcome = outcome
        task.steps_left = max(0, task.steps_left - 1)
        self._on_measured(entry.name)

    def _screen(self, task: Task, entry: TaskCandidate) -> None:
        reference = task.reference
        if reason := race.beaten(entry.least_ms, reference.samples_ms if reference else ()):
            self._known(task, entry, Outcome(entry.candidate_id, "pruned", reason))
            return
        with self._trace.span(
            f"measure {self.device}", entry.name, problem=task.problem.describe(), step="screen"
        ):
            outcome = self._screened(task, entry, reference)
            if outcome is None or (outcome.status == "skipped" and entry.in_process is not None):
                # What cannot travel, or cannot be made again in the worker, is measured here.
                assert entry.in_process is not None
                entry.bench = entry.candidate = None
                outcome = self._measure_in_process(
                    entry.in_process,
                    entry.candidate_id,
                    race.screening(self.device),
                    self._bench_timeout_s,
                )
        entry.samples_ms = outcome.samples_ms
        self._counters.add(benchmarked=1, benchmark_s=outcome.elapsed_s)
        self._known(task, entry, outcome)

    def _screened(
        self, task: Task, entry: TaskCandidate, reference: TaskCandidate | None
    ) -> Outcome | None:
        """Return the worker's outcome, None for what cannot travel to it."""
        if entry.bench is None:
            return None
        return self._bench.screen(
            ScreenJob(
                problem_id=task.digest,
                library=reference.candidate if reference is not None else None,
                candidate=_argument(entry),
                sampling=race.screening(self.device),
                tolerance=task.tolerance,
                attention=task.attention,
            )
        )

    def _final(self, task: Task) -> bool:
        """Run one leg of interleaved rounds; False when no one can catch up any more."""
        travelled = {
            e.candidate_id: e.samples_ms for e in task.entries if e.alive and e.bench is not None
        }
        library = task.reference
        name = library.candidate_id if library and library.candidate_id in travelled else None
        if task.racing is None:
            task.racing = race.leaders(travelled, name)
        elif task.legs and task.racing:
            task.racing = race.contenders(
                {n: travelled[n] for n in task.racing if n in travelled}, name
            )
        if not task.racing or task.legs >= race.MAX_LEGS:
            return False
        racers = [task.entry(n) for n in task.racing]
        started = time.perf_counter()
        with self._trace.span(
            f"measure {self.device}",
            f"final of {len(racers)}",
            problem=task.problem.describe(),
            step="final",
        ):
            outcomes = self._bench.final(
                FinalJob(
                    problem_id=task.digest,
                    candidates=tuple(_argument(e) for e in racers),
                    rounds=race.ROUNDS_PER_LEG,
                    sampling=race.final_sampling(self.device),
                )
            )
        self._counters.add(benchmark_s=time.perf_counter() - started)
        for outcome in outcomes:
            entry = task.entry(outcome.candidate_id)
            if outcome.status not in ("ok", "skipped"):  # skipped: another one's fault
                entry.outcome = outcome
            if outcome.samples_ms:
                earlier = entry.samples_ms if entry.rounds else ()
                entry.samples_ms = earlier + outcome.samples_ms
                entry.rounds += len(outcome.samples_ms)
        task.legs += 1
        return True

    def _finish(self, task: Task) -> None:
        task.finish(task)
        self._end(task)


def _argument(entry: TaskCandidate) -> BenchCandidate:
    """Return the job argument of an entry that travels and is ready."""
    if entry.candidate is None:
        raise ValueError(f"{entry.candidate_id} is measured before it is ready")
    return entry.candidate
