"""When a graph in Inductor's cache is compiled again: it could not be compared for want of time, and now there is some.

Out of that cache a graph is not lowered, and so not compared. It is kept there all the same, with a mark, since a warm start
is to cost what it always does until then.
"""

from __future__ import annotations

import logging
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch._inductor import codecache

from inductor_plugin.cache import open_store
from inductor_plugin.config import Config
from inductor_plugin.errors import CacheError
from inductor_plugin.inductor.guard.allowance import Allowance

logger = logging.getLogger(__name__)

_MARK = "inductor_plugin_due"
_LAST = threading.local()
"""Of each thread that compiles: whether the graph that it compiles next was in Inductor's cache."""


@dataclass(frozen=True)
class Due:
    """What makes a graph due.

    Attributes:
        need_s: Seconds of the allowance that it takes.
        account: Name of the allowance, as of `guard.allowance`.
    """

    need_s: float
    account: str

    def why(self, left_s: float) -> str:
        """Return why the graph is compiled again, empty if it is not; ``left_s`` are the seconds of the allowance."""
        if left_s < self.need_s:
            return ""
        return f"it was not compared yet, and {left_s:.1f} s are left for that"


def carry(graph: Any, due: Due) -> None:
    """Mark a compiled graph; Inductor's cache keeps the mark with it."""
    setattr(graph, _MARK, (due.need_s, due.account))


def due_of(graph: Any) -> Due | None:
    """Return what makes a graph out of Inductor's cache due, None if nothing does."""
    mark: Any = getattr(graph, _MARK, None)
    return None if mark is None else Due(*mark)


def is_dropped(graph: Any, key: str, config: Config) -> bool:
    """Return True if a graph out of Inductor's cache is due; its entry is removed, since the next one does not replace it.

    Args:
        graph: The graph.
        key: Its key there.
        config: The options.
    """
    due = due_of(graph)
    if due is None or config.policy != "tune" or config.verify_graph != "auto":
        return False
    why = due.why(_left_s(due, config))
    if not why:
        return False
    logger.info("a graph in Inductor's cache is compiled again: %s", why)
    _LAST.dropped = True
    untyped: Any = codecache.FxGraphCache
    with suppress(
        AttributeError
    ):  # another torch keeps it elsewhere: it is compiled again once more
        shutil.rmtree(untyped._get_tmp_dir_for_key(key), ignore_errors=True)
    return True


def was_dropped() -> bool:
    """Return, once, whether the graph that this thread compiles was in Inductor's cache: its compile is part of the comparison."""
    dropped, _LAST.dropped = getattr(_LAST, "dropped", False), False
    return dropped


def _left_s(due: Due, config: Config) -> float:
    if config.cache == "off":
        return 0.0
    try:
        store = open_store(config.cache_dir, read_only=True)  # a warm start needs no other
    except CacheError:  # another user's: nothing was saved there
        return 0.0
    return Allowance(store, due.account).left_s
