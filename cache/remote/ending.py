"""What is done before the interpreter ends, while threads can still be started."""

from __future__ import annotations

import importlib
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

Drain = Callable[[float], None]
"""Waits; its argument is how many seconds the end of the process has taken already."""

_BEGUN: list[float] = []
"""When this process began to end."""


def before_exit(drain: weakref.WeakMethod[Drain]) -> None:
    """Call ``drain`` when the interpreter ends, while a client may still start threads. Several wait for one limit together.

    `atexit` is too late: the executors that look up host names take no more work then. They must be there before, since
    nothing can be registered later, and what was registered last is called first.
    """
    importlib.import_module("concurrent.futures.thread")
    register: Any = getattr(threading, "_register_atexit", None)  # as concurrent.futures does
    if register is not None:
        try:
            register(_quietly, drain)
        except RuntimeError:  # it is ending
            logger.debug("the remote cache is opened at the end of the process")


def _quietly(drain: weakref.WeakMethod[Drain]) -> None:
    method = drain()
    if not _BEGUN:
        _BEGUN.append(time.monotonic())
    try:
        if method is not None:
            method(time.monotonic() - _BEGUN[0])
    except KeyboardInterrupt:  # a user who ends the process does not want to wait
        logger.debug("interrupted while records were written to the remote cache")
