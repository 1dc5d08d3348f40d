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
from collections.abc import Callable
from typing import Protocol

from inductor_plugin import race
from inductor_plugin.errors import WorkerError
from inductor_plugin.jobs import BenchCandidate, FinalJob, Outcome, Sampling, ScreenJob
from inductor_plugin.counters import Counters
from inductor_plugin.task import Entry, Task
from inductor_plugin.trace import Trace

logger = logging.getLogger(__name__)

_POLL_S = 0.05


class Bench(Protocol):
    """The benchmark worker of one device."""

    def screen(self, job: ScreenJob) -> Outcome:
        """Measure one candidate for the first time."""
        ...

    def final(self, job: FinalJob) -> tuple[Outcome, ...]:
        """Measure the leaders in turns."""
        ...


class Build(Protocol):
    """The builder: compiles what the entries of a task need."""

    def add(self, task: Task, entry: Entry, done: Callable[[], None]) -> None:
        """Queue one entry; ``done`` is called when its outcome or its library is there."""
        ...

    def flush(self) -> None:
        """Start whatever was held back to fill a batch."""
        ...

    def busy(self) -> bool:
        """Return True while something compiles or is about to."""
        ...


class Steps(Protocol):
    """Shows progress."""

    def step(self, name: str) -> None:
        """Note that one more candidate has been measured."""
        ...


class Home(Protocol):
    """Measures in this process what cannot travel."""

    def __call__(
        self, run: Callable[[], object], candidate_id: str, sampling: Sampling, timeout_s: float
    ) -> Outcome:
        """Measure one candidate here."""
        ...


def screening(device: str) -> Sampling:
    """Return how a first look samples: enough to drop the slow, at most a few tenths of a second."""
    cpu = device.startswith("cpu")
    return Sampling(
        warmup=2 if cpu else 3,
        samples=5,
        min_sample_ms=1.0 if cpu else 0.2,
        max_total_s=0.25,
        cold_cache=True,
    )


def final_sampling(device: str) -> Sampling:
    """Return how one turn of the finals samples."""
    cpu = device.startswith("cpu")
    return Sampling(
        warmup=1,
        samples=1,
        min_sample_ms=1.0 if cpu else 0.5,
        max_total_s=0.5,
        cold_cache=True,
    )


class Pipeline:
    """Runs the tasks of one device; one daemon thread measures."""

    def __init__(
        self,
        device: str,
        build: Build,
        bench: Bench,
        home: Home,
        counters: Counters,
        trace: Trace,
        bench_timeout_s: float,
        try_lock: Callable[[Task], Callable[[], None] | None],
        progress: Steps,
    ) -> None:
        """Start measuring for ``device``.

        Args:
            device: ``cpu`` or ``cuda:0`` ...
            build: Where candidates are compiled.
            bench: The device's benchmark worker.
            home: Measures what cannot travel.
            counters: Where the work is counted.
            trace: Where the work is drawn.
            bench_timeout_s: Seconds one candidate may run.
            try_lock: Takes the problem's lock among processes and returns its release, or None if
                another process is measuring this problem.
            progress: Is told of each measured candidate.
        """
        self.device = device
        self._build = build
        self._bench = bench
        self._home = home
        self._counters = counters
        self._trace = trace
        self._bench_timeout_s = bench_timeout_s
        self._try_lock = try_lock
        self._progress = progress
        self._wake = threading.Condition()
        self._tasks: list[Task] = []
        self._releases: dict[str, Callable[[], None]] = {}
        self._waiting = 0
        self._closed = False
        self._broken = ""
        self._thread = threading.Thread(
            target=self._loop, name=f"inductor-plugin-bench-{device}", daemon=True
        )
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Queue a problem; returns at once."""
        with self._wake:
            if self._broken or self._closed:
                task.error = self._broken or "the pipeline is closed"
                task.done.set()
                return
            self._tasks.append(task)
        for entry in task.entries:
            if entry.build is None:
                entry.candidate = entry.bench("", "") if entry.bench else None
                entry.ready = True
            else:
                self._build.add(task, entry, self._notify)
        self._notify()

    def wait(self, task: Task, limit_s: float) -> bool:
        """Wait until a task is done; False if the limit passed or the pipeline broke first."""
        self._build.flush()
        with self._wake:
            self._waiting += 1
            self._wake.notify_all()
        try:
            ends = time.monotonic() + limit_s
            while not task.done.wait(timeout=1.0):
                if not self._thread.is_alive() or time.monotonic() > ends:
                    self._drop(task, "tuning did not end within its limit")
                    return False
            return not task.error
        finally:
            with self._wake:
                self._waiting -= 1

    def close(self) -> None:
        """Stop measuring; tasks still queued end undecided."""
        with self._wake:
            self._closed = True
            for task in self._tasks:
                task.error = task.error or "the pipeline was closed"
                task.done.set()
            self._tasks.clear()
            self._wake.notify_all()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def _drop(self, task: Task, reason: str) -> None:
        with self._wake:
            task.error = task.error or reason
            if task in self._tasks:
                self._tasks.remove(task)
        task.done.set()

    def _loop(self) -> None:
        while True:
            with self._wake:
                task = self._next()
                while task is None and not self._closed:
                    self._wake.wait(timeout=_POLL_S if self._tasks else 5.0)
                    task = self._next()
                if self._closed:
                    return
            assert task is not None
            try:
                self._advance(task)
            except WorkerError as error:
                self._break(str(error))
                return
            except Exception as error:  # noqa: BLE001  the border around one task's race
                logger.exception("measuring %s failed", task.problem.describe())
                self._release(task)
                self._drop(task, f"measuring failed: {type(error).__name__}: {error}")

    def _break(self, reason: str) -> None:
        logger.warning(
            "the benchmark worker for %s is gone (%s); library kernels are used from here on",
            self.device,
            reason,
        )
        with self._wake:
            self._broken = reason
            tasks, self._tasks = self._tasks, []
        for task in tasks:
            self._release(task)
            task.error = reason
            task.done.set()

    def _next(self) -> Task | None:
        """Return a task with something to do now; called with the lock held."""
        for task in self._tasks:
            if task.exclusive and (not self._waiting or self._build.busy()):
                continue
            late = task.deadline is not None and time.monotonic() > task.deadline
            runnable = any(e.ready for e in task.unscreened()) or not task.unscreened()
            if not runnable and not late:
                continue
            if task.digest not in self._releases:
                release = self._try_lock(task)
                if release is None:
                    continue
                self._releases[task.digest] = release
                task.refresh(task)
            return task
        return None

    def _release(self, task: Task) -> None:
        release = self._releases.pop(task.digest, None)
        if release is not None:
            release()

    def _advance(self, task: Task) -> None:
        """Do one step of a task: screen one candidate, run one leg of the finals, or finish."""
        late = task.deadline is not None and time.monotonic() > task.deadline
        if late:
            for entry in task.unscreened():
                if not entry.library:
                    entry.outcome = Outcome(
                        entry.candidate_id, "skipped", "the tuning budget ended"
                    )
        ready = [e for e in task.unscreened() if e.ready]
        if ready:
            self._screen(task, ready[0])
        elif not task.unscreened() and not late and self._final(task):
            pass
        elif not task.unscreened():
            self._finish(task)

    def _screen(self, task: Task, entry: Entry) -> None:
        reference = task.reference
        with self._trace.span(
            f"measure {self.device}", entry.name, problem=task.problem.describe(), step="screen"
        ):
            outcome = self._screened(task, entry, reference)
            if outcome is None or (outcome.status == "skipped" and entry.home is not None):
                # What cannot travel, or cannot be made again in the worker, is measured here.
                assert entry.home is not None
                entry.bench = entry.candidate = None
                outcome = self._home(
                    entry.home, entry.candidate_id, screening(self.device), self._bench_timeout_s
                )
        entry.outcome = outcome
        entry.samples_ms = outcome.samples_ms
        self._counters.add(benchmarked=1, benchmark_s=outcome.elapsed_s)
        self._progress.step(entry.name)

    def _screened(self, task: Task, entry: Entry, reference: Entry | None) -> Outcome | None:
        """Return the worker's outcome, None for what cannot travel to it."""
        if entry.bench is None:
            return None
        return self._bench.screen(
            ScreenJob(
                problem_id=task.digest,
                library=_travelling(reference),
                candidate=_argument(entry),
                sampling=screening(self.device),
                tolerance=task.tolerance,
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
                    sampling=final_sampling(self.device),
                )
            )
        self._counters.add(benchmark_s=time.perf_counter() - started)
        for outcome in outcomes:
            entry = task.entry(outcome.candidate_id)
            if outcome.status != "ok":
                entry.outcome = outcome
            earlier = entry.samples_ms if task.legs else ()
            entry.samples_ms = earlier + outcome.samples_ms
        task.legs += 1
        return True

    def _finish(self, task: Task) -> None:
        try:
            task.finish(task)
        finally:
            self._release(task)
            with self._wake:
                if task in self._tasks:
                    self._tasks.remove(task)
            task.done.set()


def _argument(entry: Entry) -> BenchCandidate:
    """Return the job argument of an entry that travels and is ready."""
    if entry.candidate is None:
        raise ValueError(f"{entry.candidate_id} is measured before it is ready")
    return entry.candidate


def _travelling(entry: Entry | None) -> BenchCandidate | None:
    """Return the job argument of a reference, None where there is none in the worker's reach."""
    return entry.candidate if entry is not None else None
