"""Threads and a clock that exist in simulated time alone: a whole tuning run of hours takes seconds.

Modules that read ``time`` and start ``threading`` threads run unchanged on this: `Clock.replace` gives them modules that look
the same. A thread is a greenlet; it runs until it waits, so runs are deterministic. While every thread waits, the clock jumps
to the next moment at which one goes on.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent, greenlet


class Clock:
    """Simulated seconds, and the threads that live in them."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.now = 0.0
        self.switches = 0
        self.failures: list[BaseException] = []
        self._hub = getcurrent()
        self._ready: deque[tuple[greenlet, Any]] = deque()
        self._timers: list[tuple[float, int, _Wait]] = []
        self._numbers = itertools.count()

    def spawn(self, run: Callable[[], object]) -> greenlet:
        """Start a thread; it runs when the others wait."""

        def guarded() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001  reported by `run`, where somebody looks
                self.failures.append(error)

        thread = greenlet(guarded, parent=self._hub)
        self._ready.append((thread, None))
        return thread

    def sleep(self, seconds: float) -> None:
        """Let the current thread wait."""
        self.suspend(_Wait(getcurrent()), seconds)

    def suspend(self, wait: _Wait, timeout_s: float | None) -> bool:
        """Let the current thread wait until `resume`, or a limit has passed; return False in that case."""
        if timeout_s is not None:
            ends = self.now + max(0.0, timeout_s)
            heapq.heappush(self._timers, (ends, next(self._numbers), wait))
        return bool(self._hub.switch())

    def resume(self, wait: _Wait, *, notified: bool = True) -> None:
        """Let a waiting thread go on."""
        if not wait.over:
            wait.over = True
            self._ready.append((wait.thread, notified))

    def run(self, until: Callable[[], bool], limit_s: float = float("inf")) -> float:
        """Run the threads until a condition holds; return the simulated time.

        Args:
            until: The condition.
            limit_s: Simulated seconds after which it never will: threads that look once a second never all wait for ever.

        Raises:
            RuntimeError: Every thread waits for ever, the limit is over, or a thread has failed.
        """
        while not until():
            if self.failures:
                raise RuntimeError("a simulated thread has failed") from self.failures[0]
            if self.now > limit_s:
                raise RuntimeError(f"it has not ended after {limit_s:.0f} simulated seconds")
            if self._ready:
                thread, value = self._ready.popleft()
                self.switches += 1
                thread.switch() if value is None else thread.switch(value)
                continue
            while self._timers and self._timers[0][2].over:
                heapq.heappop(self._timers)
            if not self._timers:
                raise RuntimeError(f"at {self.now:.3f} s every thread waits for another one")
            self.now, _, wait = heapq.heappop(self._timers)
            self.resume(wait, notified=False)
        return self.now

    @contextmanager
    def replace(self, modules: Iterable[ModuleType], others: Mapping[str, Any]) -> Generator[None]:
        """Give modules this clock and its threads inside the block.

        Args:
            modules: Modules that use ``time``, ``threading`` or ``queue`` by these names.
            others: Other attributes to replace, as ``module.name``.
        """
        fakes = {"time": self.time(), "threading": self.threading(), "queue": self.queue()}
        with ExitStack() as patches:
            for module in modules:
                for name, fake in fakes.items():
                    if hasattr(module, name):
                        patches.enter_context(patch.object(module, name, fake))
            for name, value in others.items():
                patches.enter_context(patch(name, value))
            yield

    def time(self) -> Any:
        """Return what replaces the module ``time``."""
        return SimpleNamespace(
            monotonic=lambda: self.now,
            perf_counter=lambda: self.now,
            time=lambda: 1.7e9 + self.now,
            perf_counter_ns=lambda: int(self.now * 1e9),
            monotonic_ns=lambda: int(self.now * 1e9),
            time_ns=lambda: int((1.7e9 + self.now) * 1e9),
            sleep=self.sleep,
        )

    def threading(self) -> Any:
        """Return what replaces the module ``threading``."""
        return SimpleNamespace(
            Thread=partial(_Thread, self),
            Condition=partial(Condition, self),
            Lock=partial(Condition, self),
            RLock=partial(Condition, self),
            Event=partial(Event, self),
            current_thread=getcurrent,
            ExceptHookArgs=threading.ExceptHookArgs,
            excepthook=self._failed,
        )

    def _failed(self, arguments: Any) -> None:
        self.failures.append(arguments.exc_value)

    def queue(self) -> Any:
        """Return what replaces the module ``queue``."""
        return SimpleNamespace(
            PriorityQueue=lambda: PriorityQueue(self),
            SimpleQueue=lambda: SimpleQueue(self),
            Empty=queue.Empty,
        )


class _Wait:
    """A thread that waits; over once it goes on."""

    __slots__ = ("over", "thread")

    def __init__(self, thread: greenlet) -> None:
        self.thread = thread
        self.over = False


class Condition:
    """A condition variable, and the re-entrant lock that it is used with."""

    def __init__(self, clock: Clock) -> None:
        """Belong to nobody."""
        self._clock = clock
        self._owner: greenlet | None = None
        self._depth = 0
        self._entering: deque[_Wait] = deque()
        self._waiting: deque[_Wait] = deque()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> bool:
        """Take the lock."""
        current = getcurrent()
        while self._owner is not None and self._owner is not current:
            wait = _Wait(current)
            self._entering.append(wait)
            self._clock.suspend(wait, None)
        self._owner, self._depth = current, self._depth + 1
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._entering:
                self._clock.resume(self._entering.popleft())

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock back, wait, and take it again; return False if the time is over."""
        wait = _Wait(getcurrent())
        self._waiting.append(wait)
        depth, self._depth = self._depth, 1
        self.release()
        notified = self._clock.suspend(wait, timeout)
        if not notified:
            self._waiting = deque(each for each in self._waiting if not each.over)
        self.acquire()
        self._depth = depth
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until something holds; return it."""
        ends = None if timeout is None else self._clock.now + timeout
        while not (result := predicate()):
            left = None if ends is None else ends - self._clock.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify_all(self) -> None:
        """Let all that wait go on."""
        while self._waiting:
            self._clock.resume(self._waiting.popleft())

    def notify(self) -> None:
        """Let the first that still waits go on."""
        while self._waiting:
            wait = self._waiting.popleft()
            if not wait.over:
                self._clock.resume(wait)
                return


class Event:
    """A flag that threads wait for."""

    def __init__(self, clock: Clock) -> None:
        """Not set."""
        self._clock = clock
        self._set = False
        self._waiting: deque[_Wait] = deque()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it, and let all that wait for it go on."""
        self._set = True
        while self._waiting:
            self._clock.resume(self._waiting.popleft())

    def clear(self) -> None:
        """Take it back."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or the time is over; return whether it is set."""
        if not self._set:
            wait = _Wait(getcurrent())
            self._waiting.append(wait)
            self._clock.suspend(wait, timeout)
            if not self._set:  # the time is over
                self._waiting = deque(each for each in self._waiting if not each.over)
        return self._set


class PriorityQueue:
    """A queue whose least entry is next."""

    def __init__(self, clock: Clock) -> None:
        """Empty."""
        self._entries: list[Any] = []
        self._filled = Condition(clock)

    def put(self, entry: Any) -> None:
        """Add an entry."""
        with self._filled:
            heapq.heappush(self._entries, entry)
            self._filled.notify()

    def get(self) -> Any:
        """Wait for the least entry, and take it."""
        with self._filled:
            while not self._entries:
                self._filled.wait()
            return heapq.heappop(self._entries)


class SimpleQueue:
    """A queue whose first entry is next."""

    def __init__(self, clock: Clock) -> None:
        """Empty."""
        self._entries: deque[Any] = deque()
        self._filled = Condition(clock)

    def put(self, entry: Any) -> None:
        """Add an entry."""
        with self._filled:
            self._entries.append(entry)
            self._filled.notify()

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the first entry, and take it.

        Raises:
            queue.Empty: There is none in time.
        """
        with self._filled:
            if not self._filled.wait_for(lambda: self._entries, timeout):
                raise queue.Empty
            return self._entries.popleft()


class _Thread:
    def __init__(
        self, clock: Clock, target: Callable[..., object], args: tuple[Any, ...] = (), **_: object
    ) -> None:
        self._clock, self._target, self._args = clock, target, args
        self._greenlet: greenlet | None = None

    def start(self) -> None:
        self._greenlet = self._clock.spawn(lambda: self._target(*self._args))

    def is_alive(self) -> bool:
        return self._greenlet is not None and not self._greenlet.dead

    def join(self, timeout: float | None = None) -> None:
        raise NotImplementedError("nobody in the pipeline joins a thread")
