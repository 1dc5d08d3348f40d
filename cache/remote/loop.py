"""The event loop of a remote's client, and its threads: none of them keeps the process from ending.

A lookup of a host name cannot be ended. In a pool of `concurrent.futures`, as asyncio uses one, the interpreter waits for
it at the end, for minutes where a name server does not answer.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """Runs each call in a daemon thread of its own; a client has few, each once in a while."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call; unlike the base's, also while the interpreter ends."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  who asked gets it
                future.set_exception(error)

        threading.Thread(target=run, name="inductor-plugin-remote-call", daemon=True).start()
        return future


def client_loop() -> asyncio.AbstractEventLoop:
    """Return a running loop of our own, one for each process; fsspec's is the user's, too."""
    return _loop_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _loop_of(_pid: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonExecutor(1))
    threading.Thread(
        target=loop.run_forever, name="inductor-plugin-remote-loop", daemon=True
    ).start()
    return loop
