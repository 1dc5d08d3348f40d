"""Ray without a cluster: a module that takes its place, and its table of keys."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any

_JOBS = itertools.count(1)


class FakeKeys:
    """The table of keys that a head has."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def _internal_kv_put(self, key: str, value: bytes) -> None:
        assert value
        self.names.add(key)

    def _internal_kv_del(self, key: str) -> None:
        self.names.discard(key)

    def _internal_kv_list(self, prefix: str) -> list[bytes]:
        return [name.encode() for name in sorted(self.names) if name.startswith(prefix)]


class FakeRay(ModuleType):
    """Ray, which connects slowly.

    Attributes:
        calls: The addresses that it was connected to.
        error: Raised where it is to connect.
        started: Arguments of the tasks that were started.
        futures: Their results.
        available: What nothing uses at the moment.
    """

    def __init__(self) -> None:
        super().__init__("ray")
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.started: list[tuple[object, ...]] = []
        self.futures: list[Future[object]] = []
        self.available = {"CPU": 2.0}
        self._there, self._is_lost, self._job = False, False, 0

    def is_initialized(self) -> bool:
        return self._there

    def init(self, address: str, **_: Any) -> None:
        if self.error is not None:
            raise self.error
        if self._is_lost:
            raise RuntimeError("ray.init() called, but ray client is already connected")
        time.sleep(0.05)
        self.calls.append(address)
        self._there, self._job = True, next(_JOBS)

    def shutdown(self) -> None:
        self._there = self._is_lost = False

    def lose(self) -> None:
        """Lose the head, as a client."""
        self._there, self._is_lost = False, True

    def get_runtime_context(self) -> Any:
        assert self._there
        return SimpleNamespace(get_node_id=lambda: "a", get_job_id=lambda: f"{self._job:08x}")

    def put(self, content: object) -> object:
        return content

    def remote(self, function: Callable[..., object]) -> Any:
        """Return a task that starts at once, also where nothing is connected: as Ray does, which connects for it."""

        def start(*arguments: object) -> object:
            self.started.append(arguments)
            self._there = True
            future = Future[object]()
            self.futures.append(future)
            return SimpleNamespace(future=lambda: future)

        def options(**_: object) -> SimpleNamespace:
            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": "a", "Alive": True, "Resources": {"CPU": 2.0, "memory": 1e9}},
            {"NodeID": "b", "Alive": False, "Resources": {}},
        ]

    def available_resources(self) -> dict[str, float]:
        return self.available
