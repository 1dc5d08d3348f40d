"""Which nodes behind a product one CUTLASS kernel takes, and which are left to a kernel of Inductor's.

    product ─► relu(product + bias) ─► erfinv(..)        the scheduler offers both nodes at once
    └──────── one operator ───────┘   └ Triton ┘         no visitor computes erfinv

Nodes are taken whole. A cut inside a node would store a value of it where two kernels store the product:
as many bytes, unless it is narrower, as behind an int32 product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inductor_plugin.inductor.fusion.nodes import epilogue_of
from inductor_plugin.inductor.fusion.offers import Fusion
from inductor_plugin.problem.epilogue import BYTES, Epilogue

MOST = 8
"""Nodes that are tried one by one, each 5 to 20 ms in every process; all behind them are left."""


@dataclass(frozen=True)
class Cut:
    """What a kernel with visitors takes of a fusion.

    Attributes:
        epilogue: Of what it takes; what is left reads its writes, and the product if it must.
        written: Buffers of the product and of the nodes it takes.
        left: The nodes that run behind it, in order; none where it takes all.
        places: Where those stand among all that are behind the product: the same in every graph.
        reason: Why they are left; empty where none is.
    """

    epilogue: Epilogue
    written: tuple[str, ...]
    left: tuple[Any, ...] = ()
    places: tuple[int, ...] = ()
    reason: str = ""


def cut_of(fusion: Fusion, whole: Epilogue, refused: Callable[[Epilogue], str | None]) -> Cut | str:
    """Return what a kernel takes of a fusion: all, or as much as it can; or why that is nothing.

    Args:
        fusion: The product alone, and what stands behind it.
        whole: All of that.
        refused: Returns why a kernel cannot take an epilogue, None if it can.
    """
    reason = refused(whole)
    if reason is None:
        return Cut(whole, tuple(fusion.written))
    nodes = list(fusion.second.get_nodes())

    def part_of(some: Sequence[Any]) -> Epilogue:
        return epilogue_of(fusion.scheduler, fusion.product, fusion.first, some)

    taken, reasons = _taken(nodes, lambda some: refused(part_of(some)))
    if not taken:
        return reason
    left = [one for one in nodes if one not in taken]
    told = f"split off {', '.join(_written(left))}: {'; '.join(dict.fromkeys(reasons))}"
    part = part_of(taken)
    if _saved_bytes(fusion, whole, part, left) <= 0:
        return f"{told}; so cut, as many bytes are moved as by two kernels"
    return Cut(
        epilogue=part,
        written=(fusion.product.get_name(), *_written(taken)),
        left=tuple(left),
        places=tuple(nodes.index(one) for one in left),
        reason=told,
    )


def _taken(
    nodes: Sequence[Any], refused: Callable[[Sequence[Any]], str | None]
) -> tuple[list[Any], list[str]]:
    """Return the nodes that one kernel can take, in order, and why it cannot take each other one.

    A node that cannot be taken alone may be taken with one that reads it: what only that reads is not
    stored, and some values can be computed but not stored (truth values).
    """
    taken: list[Any] = []
    reasons: dict[Any, str] = {}
    for place, node in enumerate(nodes[:MOST]):
        wanted = {*taken, node, *(one for one in nodes[:place] if one.get_name() in node.ancestors)}
        tried = [one for one in nodes if one in wanted]
        reason = refused(tried)
        if reason is None:
            taken = tried
        else:
            reasons[node] = reason
    behind = f"it is behind the first {MOST} nodes"
    return taken, [reasons.get(one, behind) for one in nodes if one not in taken]


def _saved_bytes(fusion: Fusion, whole: Epilogue, part: Epilogue, left: Sequence[Any]) -> int:
    """Return how many bytes fewer are moved than by the product and one kernel for all that follows it."""
    product: str = fusion.product.get_name()
    stored = {one.buffer for one in whole.writes}
    stored |= {product} if whole.readers else set[str]()
    read = {dep.name for one in left for dep in one.read_writes.reads}
    passed = [name for name in fusion.written if name in read and name not in _written(left)]
    return (
        _traffic(fusion, [product], stored)
        - _traffic(fusion, passed, stored)
        - sum(one.bytes for one in part.reads if one.buffer in read)
    )


def _traffic(fusion: Fusion, names: Sequence[str], stored: set[str]) -> int:
    """Return bytes that are moved for buffers one kernel writes and the next reads.

    What is stored in any case costs the reading alone.
    """
    found = 0
    for name in names:
        tensor = fusion.written[name]
        found += (1 if name in stored else 2) * math.prod(tensor.size) * BYTES.get(tensor.dtype, 4)
    return found


def _written(nodes: Sequence[Any]) -> list[str]:
    return [buffer.get_name() for one in nodes for buffer in one.get_outputs()]
