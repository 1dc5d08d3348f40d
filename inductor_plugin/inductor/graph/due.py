"""When a graph in Inductor's cache is compiled again: other work had disturbed what it rests on, or there was no time to compare it.

Out of that cache a graph is not lowered, and so neither decided again nor compared. It is kept there all the same, with a
mark, since a warm start is to cost what it always does until then: on a machine that is always busy, too. There the first time to
measure again is free, and each later one is paid from what compiles have saved up (`inductor.allowance`), as comparisons are.
"""

from __future__ import annotations

import functools
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any

from torch._inductor import codecache
from torch.compiler._cache import CacheArtifactManager

from inductor_plugin.cache import Store, open_store
from inductor_plugin.config import Config
from inductor_plugin.errors import CacheError
from inductor_plugin.inductor.allowance import MOST_S, Allowance, account_of
from inductor_plugin.tuning.measurement import left_unmeasured
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.tuning.validity import again_at, attempts, is_provisional

logger = logging.getLogger(__name__)

_MARK = "inductor_plugin_due"
_LAST = threading.local()
"""Of each thread that compiles: the graph that it compiles next because it was dropped, and where its graph is tuned."""


@dataclass(frozen=True)
class Due:
    """What makes a graph due: whichever comes first.

    Attributes:
        at: Seconds since 1970 from which it is; 0 for the next compile, infinite if time does not make it so.
        need_s: Seconds of the allowance that comparing it takes; infinite if it need not be compared.
        account: Name of the allowance, as of `inductor.allowance`; empty for none.
        failures: Comparisons in a row that failed, or that other work has disturbed, and that have left no record. A mark of an
            earlier version has none.
        tries: How often in a row what is due at that time was measured in vain; 0 in a mark of an earlier version.
        compile_s: Seconds that compiling the graph took without tuning; 0 likewise.
    """

    at: float = math.inf
    need_s: float = math.inf
    account: str = ""
    failures: int = 0
    tries: int = 0
    compile_s: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether compiling it at that time is not limited: the machine may have been busy by chance once."""
        return self.tries <= 1

    @property
    def is_kept(self) -> bool:
        """Whether Inductor's cache keeps the graph until it is due: not where the next compile makes it so, or nothing does."""
        return self.at > 0 and not math.isinf(min(self.at, self.need_s))

    def is_late(self, now: float, left_s: Callable[[], float]) -> bool:
        """Return True if the time has come, and there is time to compile the graph.

        Args:
            now: Seconds since 1970.
            left_s: Returns the seconds of the allowance, of which no more than `MOST_S` are ever saved up.
        """
        return now >= self.at and (self.is_free or left_s() >= min(self.compile_s, MOST_S))

    def is_affordable(self, left_s: float) -> bool:
        """Return True if there is time to compare the graph: ``left_s`` seconds of the allowance."""
        return left_s >= self.need_s


@dataclass(frozen=True)
class DroppedGraph:
    """A graph that was in Inductor's cache, and is compiled again because it was due.

    Attributes:
        is_for_comparison: True if it is compiled again only to be compared.
        is_paid: True if its compile is paid from the allowance.
        failures: As of `Due`.
    """

    is_for_comparison: bool = False
    is_paid: bool = False
    failures: int = 0


def first_of(dues: Iterable[Due | None]) -> Due | None:
    """Return what makes a graph due that has several reasons; None if it has none."""
    known = [due for due in dues if due is not None]
    if not known:
        return None
    return Due(
        at=min(due.at for due in known),
        need_s=min(due.need_s for due in known),
        account=next((due.account for due in known if due.account), ""),
        failures=max(due.failures for due in known),
        tries=min((due.tries for due in known if not math.isinf(due.at)), default=0),
        compile_s=max(due.compile_s for due in known),
    )


def due_of_decisions(tickets: Iterable[TuningTicket]) -> Due | None:
    """Return when a graph's decisions are made again: at once where candidates were not measured; None if all are firm."""
    return first_of(_due_of(ticket) for ticket in tickets if ticket.verdict is not None)


def _due_of(ticket: TuningTicket) -> Due | None:
    if left_unmeasured(ticket):
        return Due(at=0.0)
    if ticket.verdict is not None and ticket.verdict.provisional:
        rows = ticket.measured.values()
        tries = min((attempts(row) for row in rows if is_provisional(row)), default=0)
        return Due(at=again_at(rows), tries=tries)
    return None


def keep_place(store: Store, environment: str) -> None:
    """Remember where the graph that this thread compiles is tuned: of several places the first."""
    if getattr(_LAST, "place", None) is None:
        _LAST.place = store, account_of(environment)


def settle(config: Config, dropped: DroppedGraph, elapsed_s: float) -> str:
    """Let a compile of this thread earn its share of the allowance, or pay from it; return the allowance's name, empty without any.

    Args:
        config: The options.
        dropped: What is known of the graph, if it was compiled because it was due.
        elapsed_s: Seconds that the compile took.
    """
    place: tuple[Store, str] | None = getattr(_LAST, "place", None)
    _LAST.place = None
    if place is None or config.policy != "tune":
        return ""
    store, account = place
    balance(Allowance(store, account), config, dropped, elapsed_s)
    return account


def balance(allowance: Allowance, config: Config, dropped: DroppedGraph, elapsed_s: float) -> None:
    """As `settle`, with an allowance that is known."""
    if dropped.is_paid:
        allowance.spend(elapsed_s)
    else:
        allowance.earn(config.verify_graph_share * elapsed_s)


def carry(graph: Any, due: Due) -> None:
    """Mark a compiled graph; Inductor's cache keeps the mark with it."""
    setattr(graph, _MARK, astuple(due))


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
    left_s = functools.cache(lambda: _left_s(due, config))
    is_late = due.is_late(time.time(), left_s)
    is_compared = not is_late and config.verify_graph == "auto" and not math.isinf(due.need_s)
    is_compared = is_compared and due.is_affordable(left_s())
    if not (is_late or is_compared):
        return False
    late = "it rests on provisional measurements, or could not be compared"
    why = late if is_late else "there is time now to compare it"
    logger.info("a graph in Inductor's cache is compiled again: %s", why)
    _LAST.dropped = DroppedGraph(is_compared, is_compared or not due.is_free, due.failures)
    untyped: Any = codecache.FxGraphCache
    with suppress(AttributeError):  # another torch keeps it elsewhere
        shutil.rmtree(untyped._get_tmp_dir_for_key(key), ignore_errors=True)
    saved: Any = getattr(CacheArtifactManager, "_new_cache_artifacts", {})
    for artifacts in saved.values():
        artifacts[:] = [artifact for artifact in artifacts if artifact.key != key]
    return True


def taken_dropped() -> DroppedGraph:
    """Return, once, the graph that was dropped and that this thread compiles; a plain one if none was. It is tuned nowhere yet."""
    _LAST.place = None
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
