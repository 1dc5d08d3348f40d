"""Which program and function a compiled graph is of: kept in the cache, where the report groups problems by it."""

from __future__ import annotations

import itertools
import linecache
import logging
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from torch._inductor.graph import GraphLowering

from inductor_plugin.cache import Store
from inductor_plugin.cache.graph import MOST_PROBLEMS, GraphEntry
from inductor_plugin.config import Config
from inductor_plugin.tuning.runtime import DeviceContext
from inductor_plugin.tuning.selection import Selection, TuningTicket

logger = logging.getLogger(__name__)

_MOST_NODES = 100
"""Nodes that are asked for their function; inputs, which are not, may be thousands."""
_MOST_LINES = 2000
"""Lines above one of a function among which its head is looked for: 0.5 ms."""
_MOST_CHARACTERS = 300
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
_HEAD = re.compile(r"([ \t]*)(?:async +)?(def|class) +(\w+) *[(:\[]")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
"""The name of what is compiled behind a graph break, with that of the function."""
_WRAPPERS = frozenset({"wrapper", "wrapped", "wrapped_func", "decorate_context"})
"""Names of functions that decorators put around a model's own; each call of theirs is one of the function inside."""


def keep(
    config: Config,
    graph: GraphLowering | None,
    contexts: Iterable[tuple[DeviceContext, Selection]],
    tickets: Sequence[TuningTicket],
) -> None:
    """Keep in the cache which function a graph is of, and its problems; nothing fails where that fails. Takes about a millisecond.

    Args:
        config: The options.
        graph: The graph, whose problems are decided.
        contexts: What its devices' problems were tuned on, and what decided them.
        tickets: Its problems.
    """
    if (
        graph is None or config.policy == "build"
    ):  # which decides nothing, so that no problem has a record
        return
    try:
        _keep(graph, contexts, tickets)
    # The graph is compiled: it does not fail because nobody will know where it is from.
    except Exception:
        logger.debug("the cache does not say where a graph is from", exc_info=True)


def _keep(
    graph: GraphLowering,
    contexts: Iterable[tuple[DeviceContext, Selection]],
    tickets: Sequence[TuningTicket],
) -> None:
    problems: dict[Store, list[str]] = {}
    for context, selection in contexts:
        own = [ticket for ticket in tickets if ticket.selection is selection]
        if own and context.store.graphs.is_kept:
            places = (f"{context.environment}/{each.problem.op}/{each.digest}" for each in own)
            problems.setdefault(context.store, []).extend(places)
    if not problems:
        return
    untyped: Any = graph
    function = function_of(untyped.module.graph.nodes)
    kind = "backward" if untyped.is_backward else "inference" if untyped.is_inference else "forward"
    for store, places in problems.items():
        unique = tuple(dict.fromkeys(places))[:MOST_PROBLEMS]
        store.graphs.put(GraphEntry(_program(), function, kind, unique, time.time()))


def _program() -> str:
    """Return the program as text that a document can have: a path may have bytes that are no characters."""
    path = sys.argv[0] if sys.argv else ""
    return path[-_MOST_CHARACTERS:].encode(errors="replace").decode()


def function_of(nodes: Iterable[Any]) -> str:
    """Return the function that nodes were captured from: ``Model.forward``; empty if none of them says so.

    Dynamo writes the calls that led to a node into its ``stack_trace``, the compiled function's first; those of torch's own modules
    are left out. A node of a backward pass has that of the node which it is the gradient of.
    """
    own = (node for node in nodes if node.op != "placeholder")
    for node in itertools.islice(own, _MOST_NODES):
        trace = node.meta.get("stack_trace")
        frames: list[tuple[str, str, str]] = []
        if isinstance(trace, str):
            frames = _FRAME.findall(trace)
        if frames:
            file, line, name = next((f for f in frames if f[2] not in _WRAPPERS), frames[0])
            resumed = _RESUMED.fullmatch(name)
            name = resumed[1] if resumed else name
            return qualified(linecache.getlines(file), int(line), name)[:_MOST_CHARACTERS]
    return ""


def qualified(lines: Sequence[str], line: int, name: str) -> str:
    """Return a function's name behind that of its class, as its source has it; the name alone where that does not tell. Pure.

    Args:
        lines: The source.
        line: Number of a line of the function, from 1.
        name: Its name.
    """
    indent: int | None = None
    for text in reversed(lines[max(0, line - _MOST_LINES) : line]):
        head = _HEAD.match(text)
        if head is None:
            continue
        if indent is None:
            if head[2] == "def" and head[3] == name:
                indent = len(head[1])
        elif len(head[1]) < indent:
            return f"{head[3]}.{name}" if head[2] == "class" else name
    return name
