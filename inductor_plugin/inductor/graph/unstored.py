"""Graphs that Inductor's cache must not store: with repacked weights, with provisional decisions, or with problems that were not measured.

Inductor's cache of compiled graphs looks frozen weights up by their sizes alone, and takes their values from the model that is
compiled. But a weight that a C++ template has repacked is stored with the graph: another model of the same sizes gets
it (torch 2.11 to 2.15, `CompiledFxGraph.constants`; docs/upstream/frozen_weights.md). And a graph that is found there is
not lowered, so its provisional decisions would never become firm: it is stored with what makes it due, or not at all.
"""

from __future__ import annotations

import functools
import logging
import threading
from dataclasses import replace
from typing import Any

from torch._inductor import codecache
from torch._inductor.freezing_utils import has_frozen_params, is_frozen_param
from torch._inductor.graph import GraphLowering

from inductor_plugin.inductor.graph.due import Due, carry, first_of
from inductor_plugin.inductor.graph.stored import carry_decisions

logger = logging.getLogger(__name__)

_NAME = "_save_graph"
_MARK = "inductor_plugin_repacked"
_GRAPH = threading.local()
"""Of each thread that compiles: what makes its graph due."""


def mark_repacked(graph: GraphLowering) -> None:
    """Mark the constants that were made of frozen weights while the graph was lowered."""
    module: Any = graph.module
    if not has_frozen_params(module):
        return
    own = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for name, value in graph.constants.items():
        if not is_frozen_param(value) and graph.allocated_constant_name.get(name) not in own:
            setattr(value, _MARK, True)


def mark_due(due: Due | None) -> None:
    """Store what makes the graph that this thread compiles due to be compiled again; None if nothing does."""
    _GRAPH.due = due


def add_due(due: Due | None) -> None:
    """Add a further reason of that graph, or of one of its branches and loops; None for none."""
    _GRAPH.due = first_of([getattr(_GRAPH, "due", None), due])


def charge(account: str, compile_s: float) -> None:
    """Say what compiling that graph takes, if it is due, and which allowance pays for it when it is due once more."""
    due = getattr(_GRAPH, "due", None)
    if due is not None and account:
        _GRAPH.due = replace(due, account=account, compile_s=compile_s)


def is_due_at_once() -> bool:
    """Return True if the graph that this thread has compiled is due in the next compile, whatever the time."""
    due = getattr(_GRAPH, "due", None)
    return due is not None and due.at == 0.0


def install() -> None:
    """Let Inductor skip storing graphs with marked constants, and those with provisional decisions."""
    cache: Any = codecache.FxGraphCache
    stock = getattr(cache, _NAME)
    if getattr(stock, "__module__", "") == __name__:
        return

    @functools.wraps(stock)
    def save_graph(key: str, compiled_graph: Any, *arguments: Any, **keywords: Any) -> None:
        due, _GRAPH.due = getattr(_GRAPH, "due", None), None
        constants: dict[str, Any] = getattr(compiled_graph, "constants", None) or {}
        if any(getattr(value, _MARK, False) for value in constants.values()):
            logger.debug("a graph with repacked weights is not stored in Inductor's cache: %s", key)
            return
        if due is not None and not due.is_kept:
            logger.debug("a graph with provisional decisions is not stored: %s", key)
            return
        if due is not None:
            carry(compiled_graph, due)
        carry_decisions(compiled_graph)
        stock(key, compiled_graph, *arguments, **keywords)

    save_graph.__module__ = __name__
    setattr(cache, _NAME, staticmethod(save_graph))


def uninstall() -> None:
    """Restore Inductor's own function."""
    cache: Any = codecache.FxGraphCache
    stock = getattr(getattr(cache, _NAME), "__wrapped__", None)
    if stock is not None and getattr(cache, _NAME).__module__ == __name__:
        setattr(cache, _NAME, staticmethod(stock))
