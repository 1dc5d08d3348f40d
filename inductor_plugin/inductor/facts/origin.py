"""Which function a graph was captured from, as Dynamo's stack traces and the source say it. Pure, but for reading sources."""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Iterable, Sequence
from typing import Any

_MOST_NODES = 100
"""Nodes that are asked for their function; inputs, which are not, may be thousands."""
_MOST_LINES = 2000
"""Lines above one of a function among which its head is looked for: 0.5 ms."""
_MOST_CHARACTERS = 300
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
_HEAD = re.compile(r"([ \t]*)(?:async +)?(def|class) +(\w+) *[(:\[]")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
"""The name of what is compiled after a graph break, with that of the function."""
_WRAPPERS = frozenset({"wrapper", "wrapped", "wrapped_func", "decorate_context"})
"""Names of functions that decorators put around a model's own; each call of theirs is one of the function inside."""


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
    """Return a function's name with that of its class before it (``Class.name``); the name alone where the source shows no class. Pure.

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
