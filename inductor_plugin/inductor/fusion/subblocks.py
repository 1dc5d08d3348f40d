"""Indices and masked parts of a loop body as text, so that different ones have different identities."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch

_ALGEBRA: Any = sympy  # untyped


def index_text(body: Any, expression: Any) -> str:
    """Return an index of a loop body, its loop variables named by their position: ``512*i0 + i1``."""
    names = {
        variable: _ALGEBRA.Symbol(f"i{place}", integer=True, nonnegative=True)
        for place, variable in enumerate(body.var_ranges)
    }
    return str(_ALGEBRA.sympify(expression).xreplace(names))


def loads_in(body: Any, name: str) -> list[str]:
    """Return the buffers that a masked part loads, those of the parts inside it included, in order."""
    loaded: dict[str, None] = {}
    for node in body.subblocks[name].graph.nodes:
        if node.target == "load":
            loaded[str(node.args[1])] = None
        elif str(node.target) in body.subblocks:
            loaded |= dict.fromkeys(loads_in(body, str(node.target)))
    return list(loaded)


def digest_of_subblock(body: Any, name: str, named: Mapping[str, str]) -> str:
    """Return a digest of what a masked part computes.

    Args:
        body: The loop body.
        name: Of the part.
        named: For each buffer of `loads_in` a text that does not depend on the graph's names.
    """
    text = "\n".join(_lines(body, name, named))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _lines(body: Any, name: str, named: Mapping[str, str]) -> Iterator[str]:
    texts: dict[Any, str] = {}
    for at, node in enumerate(body.subblocks[name].graph.nodes):
        texts[node] = f"%{at}"
        target = str(node.target)
        if target == "get_index":
            texts[node] = index_text(body, body.indexing_exprs[node.args[0]])
            continue
        arguments = list(node.args)
        if target == "load":
            arguments[1] = named[str(arguments[1])]
        if target in body.subblocks:
            yield from _lines(body, target, named)
        target = target.rstrip("0123456789")
        yield f"{target} {torch.fx.map_arg((arguments, node.kwargs), texts.__getitem__)}"
