"""The store that the ranks of a job share: five operations, none of which waits longer than a limit.

``TCPStore`` has no limit of its own for most operations: ``check`` waits for ever for a server that is stopped (SIGSTOP,
torch 2.14), whatever ``set_timeout`` says. So a thread of ours talks to it, and callers wait for that thread.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

_SLICE_S = 0.25
"""A wait is a sum of such slices: a process that is stopped in one of them has waited for one when it goes on."""


class StoreLostError(Exception):
    """The store does not answer any more."""


class JobStore(Protocol):
    """What the protocol asks of a store; keys are texts, values ASCII. Each operation raises `StoreLostError`."""

    def get(self, key: str) -> str | None:
        """Return a key's value; None if it has none yet. It does not wait for one."""
        ...

    def put(self, key: str, value: str) -> None:
        """Set a key."""
        ...

    def put_once(self, key: str, value: str) -> str:
        """Set a key that has no value yet, and return the value that it has now."""
        ...

    def exchange(self, key: str, before: str, value: str) -> str:
        """Set a key if its value is ``before``, and return the value that it has now."""
        ...

    def count(self, key: str, amount: int = 0) -> int:
        """Add to a counter, which begins at 0, and return the sum."""
        ...


@dataclass(eq=False)
class _Operation:
    """An operation on its way, and its result."""

    operation: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None


class C10dStore:
    """A store of ``torch.distributed``, under a prefix of ours."""

    def __init__(self, store: Any, prefix: str, limit_s: float) -> None:
        """Use ``store`` by a connection of our own, so that the job's operations and ours do not wait for each other.

        It is not kept alive: rank 0 has its server, and a process group that is initialized again on the same port would
        find the server of the one before, with the addresses of the ranks of that.

        Args:
            store: A ``torch.distributed.Store``.
            prefix: Begins every key.
            limit_s: Seconds after which an operation is given up, and the store with it.
        """
        self._store = weakref.ref(store)
        self._own: Any = None
        self._prefix = prefix
        self._slices = max(1, round(limit_s / _SLICE_S))
        self._limit_s = limit_s
        self._calls: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._lost = ""

    def get(self, key: str) -> str | None:
        """See `JobStore`."""
        name = self._prefix + key

        def operation() -> str | None:
            # Keys are never deleted: what is there can be read without waiting.
            return self._text(self._own.get(name)) if self._own.check([name]) else None

        return self._call(operation)

    def put(self, key: str, value: str) -> None:
        """See `JobStore`."""
        self._call(lambda: self._own.set(self._prefix + key, value))

    def put_once(self, key: str, value: str) -> str:
        """See `JobStore`."""
        return self.exchange(key, "", value)

    def exchange(self, key: str, before: str, value: str) -> str:
        """See `JobStore`; c10d takes a key without a value for an empty one."""
        return self._call(
            lambda: self._text(self._own.compare_set(self._prefix + key, before, value))
        )

    def count(self, key: str, amount: int = 0) -> int:
        """See `JobStore`."""
        return int(self._call(lambda: self._own.add(self._prefix + key, amount)))

    def close(self, reason: str) -> None:
        """Answer nothing more, and end the connection: the process group is another one by now."""
        self._lose(reason)
        self._calls.put(None)

    @staticmethod
    def _text(value: bytes) -> str:
        return value.decode("ascii")

    def _call(self, operation: Callable[[], Any]) -> Any:
        call = _Operation(operation)
        with self._guard:
            if self._lost:
                raise StoreLostError(self._lost)
            if self._thread is None:
                self._thread = _started(self._serve)
            self._calls.put(call)  # with the lock held: before the end that `close` puts there
        if not any(call.done.wait(_SLICE_S) for _ in range(self._slices)):
            raise self._lose(f"it has not answered for {self._limit_s:g} s")
        if call.error is not None:
            first = str(call.error).partition("\n")[0]
            raise self._lose(f"{type(call.error).__name__}: {first}") from call.error
        return call.result

    def _lose(self, reason: str) -> StoreLostError:
        with self._guard:
            self._lost = self._lost or reason
        return StoreLostError(self._lost)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call.result = self._carried_out(call.operation)
            except Exception as error:  # noqa: BLE001  a store of any kind: who asked gets it
                call.error = error
            call.done.set()
        self._own = None

    def _carried_out(self, operation: Callable[[], Any]) -> Any:
        """Return the result of an operation; `StoreLostError` once the store is lost, when no caller waits for it any more."""
        with self._guard:
            lost = self._lost
        if lost:
            raise StoreLostError(lost)
        if self._own is None:
            self._own = _connected(self._store())
        return operation()


def _started(serve: Callable[[], None]) -> threading.Thread:
    """Return a thread that answers.

    Raises:
        StoreLostError: No thread can be started.
    """
    thread = threading.Thread(target=serve, name="inductor-plugin-ranks-store", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreLostError(f"no thread can ask it: {error}") from error
    return thread


def _connected(store: Any) -> Any:
    """Return a connection of our own; the job's where a store has only one (a subclass in Python)."""
    if store is None:
        raise RuntimeError("the process group was destroyed")
    try:
        return store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):
        return store
