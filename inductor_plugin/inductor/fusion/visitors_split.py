"""Which nodes after a product one CUTLASS kernel takes, and which remain for a kernel of Inductor's.

    product ─► relu(product + bias) ─► erfinv(..)        the scheduler offers both nodes at once
    └──────── one operator ───────┘   └ Triton ┘         no visitor computes erfinv

Nodes are taken whole. A split inside a node would store a value of it where two kernels store the
product: as many bytes, unless it is narrower, as after an int32 product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inductor_plugin.inductor.fusion.pair import Fusion
from inductor_plugin.problem.epilogue import BYTES, Epilogue

MOST = 8
"""Nodes that are tried one by one, each 5 to 20 ms in every process; all after them remain."""


@dataclass(frozen=True)
class EpilogueSplit:
    """What a kernel with visitors takes of a fusion.

    Attributes:
        epilogue: Of what it takes; what remains reads its writes, and the product if it must.
        written: Buffers of the product and of the nodes it takes.
        remainder: The nodes that run after it, in order; none where it takes all.
        places: Places of the remainder among all nodes after the product: the same in every graph.
        reason: Why they remain; empty where none does.
    """

    epilogue: Epilogue
    written: tuple[str, ...]
    remainder: tuple[Any, ...] = ()
    places: tuple[int, ...] = ()
    reason: str = ""


def split_of(fusion: Fusion, why_not: Callable[[Epilogue], str | None]) -> EpilogueSplit | str:
    """Return what a kernel takes of a fusion: all, or as much as it can; or why that is nothing.

    Args:
        fusion: The product alone, and its epilogue.
        why_not: Returns why a kernel cannot take an epilogue, None if it can.
    """
    reason = why_not(fusion.epilogue)
    if reason is None:
        return EpilogueSplit(fusion.epilogue, tuple(fusion.written))
    nodes = list(fusion.second.get_nodes())
    taken, reasons = _taken(nodes, lambda some: why_not(fusion.epilogue_with(some)))
    if not taken:
        return reason
    remainder = [node for node in nodes if node not in taken]
    told = f"split off {', '.join(_written(remainder))}: {'; '.join(dict.fromkeys(reasons))}"
    part = fusion.epilogue_with(taken)
    if _saved_bytes(fusion, part, remainder) <= 0:
        return f"{told}; so cut, as many bytes are moved as by two kernels"
    return EpilogueSplit(
        epilogue=part,
        written=(fusion.product.get_name(), *_written(taken)),
        remainder=tuple(remainder),
        places=tuple(nodes.index(node) for node in remainder),
        reason=told,
    )


def _taken(
    nodes: Sequence[Any], why_not: Callable[[Sequence[Any]], str | None]
) -> tuple[list[Any], list[str]]:
    """Return the nodes that one kernel can take, in order, and why it cannot take each other one.

    A node that cannot be taken alone may be taken with one that reads it: what only that reads is not
    stored, and some values can be computed but not stored (truth values).
    """
    taken: list[Any] = []
    reasons: dict[Any, str] = {}
    for place, node in enumerate(nodes[:MOST]):
        needed = [before for before in nodes[:place] if before.get_name() in node.ancestors]
        wanted = {*taken, node, *needed}
        tried = [other for other in nodes if other in wanted]
        reason = why_not(tried)
        if reason is None:
            taken = tried
        else:
            reasons[node] = reason
    late = f"it is behind the first {MOST} nodes"
    return taken, [reasons.get(node, late) for node in nodes if node not in taken]


def _saved_bytes(fusion: Fusion, part: Epilogue, remainder: Sequence[Any]) -> int:
    """Return how many bytes fewer are moved than by the product and one kernel for all that follows it."""
    product: str = fusion.product.get_name()
    stored = {write.buffer for write in fusion.epilogue.writes}
    stored |= {product} if fusion.epilogue.readers else set[str]()
    read = {dep.name for node in remainder for dep in node.read_writes.reads}
    passed = [name for name in fusion.written if name in read and name not in _written(remainder)]
    return (
        _traffic(fusion, [product], stored)
        - _traffic(fusion, passed, stored)
        - sum(access.bytes for access in part.reads if access.buffer in read)
    )


def _traffic(fusion: Fusion, names: Sequence[str], stored: set[str]) -> int:
    """Return bytes that are moved for buffers one kernel writes and the next reads.

    What is stored in any case costs the reading alone.
    """
    moved = 0
    for name in names:
        tensor = fusion.written[name]
        moved += (1 if name in stored else 2) * math.prod(tensor.size) * BYTES.get(tensor.dtype, 4)
    return moved


def _written(nodes: Sequence[Any]) -> list[str]:
    return [buffer.get_name() for node in nodes for buffer in node.get_outputs()]
