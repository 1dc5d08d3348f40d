"""When a graph in Inductor's cache is compiled again: other work had disturbed what it rests on, or there was no time to compare it.

Out of that cache a graph is not lowered, and so neither decided again nor compared. It is kept there all the same, with a
mark, since a warm start is to cost what it always does until then: on a machine that is always busy, too.
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch._inductor import codecache
from torch.compiler._cache import CacheArtifactManager

from inductor_plugin.cache import open_store
from inductor_plugin.config import Config
from inductor_plugin.errors import CacheError
from inductor_plugin.inductor.allowance import Allowance
from inductor_plugin.tuning.measurement import left_unmeasured
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.tuning.validity import again_at

logger = logging.getLogger(__name__)

_MARK = "inductor_plugin_due"
_LAST = threading.local()
"""Of each thread that compiles: the graph that it compiles next because it was dropped."""


@dataclass(frozen=True)
class Due:
    """What makes a graph due: whichever comes first.

    Attributes:
        at: Seconds since 1970 from which it is; 0 for the next compile, infinite if time does not make it so.
        need_s: Seconds of the allowance that comparing it takes; infinite if it need not be compared.
        account: Name of the allowance, as of `inductor.allowance`; empty for none.
        failures: Comparisons in a row that failed, or that other work has disturbed, and that have left no record. A mark of an
            earlier version has none.
    """

    at: float = math.inf
    need_s: float = math.inf
    account: str = ""
    failures: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether Inductor's cache keeps the graph until it is due: not where the next compile makes it so, or nothing does."""
        return self.at > 0 and not math.isinf(min(self.at, self.need_s))

    def is_late(self, now: float) -> bool:
        """Return True if the time has come, ``now`` in seconds since 1970."""
        return now >= self.at

    def is_affordable(self, left_s: float) -> bool:
        """Return True if there is time to compare the graph: ``left_s`` seconds of the allowance."""
        return left_s >= self.need_s


@dataclass(frozen=True)
class DroppedGraph:
    """A graph that was in Inductor's cache, and is compiled again because it was due.

    Attributes:
        is_for_comparison: True if it is compiled again only to be compared.
        failures: As of `Due`.
    """

    is_for_comparison: bool = False
    failures: int = 0


def first_of(dues: Iterable[Due | None]) -> Due | None:
    """Return what makes a graph due that has several reasons; None if it has none."""
    known = [due for due in dues if due is not None]
    if not known:
        return None
    account = next((due.account for due in known if due.account), "")
    return Due(
        min(due.at for due in known),
        min(due.need_s for due in known),
        account,
        max(due.failures for due in known),
    )


def due_of_decisions(tickets: Iterable[TuningTicket]) -> Due | None:
    """Return when a graph's decisions are made again: at once where candidates were not measured; None if all are firm."""
    return first_of(_due_of(ticket) for ticket in tickets if ticket.verdict is not None)


def _due_of(ticket: TuningTicket) -> Due | None:
    if left_unmeasured(ticket):
        return Due(at=0.0)
    if ticket.verdict is not None and ticket.verdict.provisional:
        return Due(at=again_at(ticket.measured.values()))
    return None


def carry(graph: Any, due: Due) -> None:
    """Mark a compiled graph; Inductor's cache keeps the mark with it."""
    setattr(graph, _MARK, (due.at, due.need_s, due.account, due.failures))


def due_of(graph: Any) -> Due | None:
    """Return what makes a graph out of Inductor's cache due, None if nothing does."""
    mark: Any = getattr(graph, _MARK, None)
    return None if mark is None else Due(*mark)


def is_dropped(graph: Any, key: str, config: Config) -> bool:
    """Return True if a graph out of Inductor's cache is due; its entry is removed, since the next one does not replace it.

    The process does not save it with its artifacts either: where both were loaded, the next compile would drop both.

    Args:
        graph: The graph.
        key: Its key there.
        config: The options.
    """
    due = due_of(graph)
    if due is None or config.policy != "tune":
        return False
    is_late = due.is_late(time.time())
    is_compared = not is_late and config.verify_graph == "auto" and not math.isinf(due.need_s)
    if is_compared:
        is_compared = due.is_affordable(_left_s(due, config))
    if not (is_late or is_compared):
        return False
    late = "it rests on provisional measurements, or could not be compared"
    why = late if is_late else "there is time now to compare it"
    logger.info("a graph in Inductor's cache is compiled again: %s", why)
    _LAST.dropped = DroppedGraph(is_compared, due.failures)
    untyped: Any = codecache.FxGraphCache
    with suppress(AttributeError):  # another torch keeps it elsewhere
        shutil.rmtree(untyped._get_tmp_dir_for_key(key), ignore_errors=True)
    saved: Any = getattr(CacheArtifactManager, "_new_cache_artifacts", {})
    for artifacts in saved.values():
        artifacts[:] = [artifact for artifact in artifacts if artifact.key != key]
    return True


def taken_dropped() -> DroppedGraph:
    """Return, once, the graph that was dropped and that this thread compiles; a plain one if none was."""
    dropped, _LAST.dropped = getattr(_LAST, "dropped", DroppedGraph()), DroppedGraph()
    return dropped


def _left_s(due: Due, config: Config) -> float:
    if config.cache == "off":
        return 0.0
    try:
        store = open_store(config.cache_dir, read_only=True)  # a warm start needs no other
    except CacheError:  # another user's: nothing was saved there
        return 0.0
    return Allowance(store, due.account).left_s
