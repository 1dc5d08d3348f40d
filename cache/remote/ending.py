"""What is done before the interpreter ends, while threads can still be started."""

from __future__ import annotations

import importlib
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def before_exit(drain: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Call ``drain`` when the interpreter ends, while a client may still start threads.

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


def _quietly(drain: weakref.WeakMethod[Callable[[], None]]) -> None:
    method = drain()
    try:
        if method is not None:
            method()
    except KeyboardInterrupt:  # whoever ends the process does not want to wait
        logger.debug("interrupted while records were written to the remote cache")
