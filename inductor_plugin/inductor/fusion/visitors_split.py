"""Splits the nodes after a product: those that one CUTLASS kernel computes, and the remainder.

    product ─► relu(product + bias) ─► erfinv(..)        the scheduler proposes both nodes at once
    └──────── one operator ───────┘   └ Triton ┘         no visitor computes erfinv

A node is never split. A split inside a node would store one of its values where two kernels store the
product: as many bytes, unless the value is narrower, as after an int32 product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inductor_plugin.inductor.fusion.pair import Fusion
from inductor_plugin.problem.definition import item_bytes
from inductor_plugin.problem.epilogue import Epilogue

MOST = 8
"""Nodes that are tried one by one, each 5 to 20 ms in every process; those after them remain."""


@dataclass(frozen=True)
class EpilogueSplit:
    """The part of a fusion that a kernel with visitors computes.

    Attributes:
        epilogue: Epilogue of that part; the remainder reads its writes, and the product if needed.
        written: Buffers of the product and of the nodes in the kernel.
        remainder: The nodes that run after the kernel, in order; empty if it computes all nodes.
        places: Positions of the remainder among all nodes after the product; the positions are the same in every graph.
        reason: Why nodes remain; empty if none does.
    """

    epilogue: Epilogue
    written: tuple[str, ...]
    remainder: tuple[Any, ...] = ()
    places: tuple[int, ...] = ()
    reason: str = ""


def split_of(fusion: Fusion, why_not: Callable[[Epilogue], str | None]) -> EpilogueSplit | str:
    """Return the part of a fusion that a kernel computes, as large as possible, or why there is none.

    Args:
        fusion: The product alone, and its epilogue.
        why_not: Returns why a kernel cannot compute an epilogue, None if it can.
    """
    reason = why_not(fusion.epilogue)
    if reason is None:
        return EpilogueSplit(fusion.epilogue, tuple(fusion.written))
    nodes = list(fusion.second.get_nodes())
    absorbed, reasons = _absorbed(nodes, lambda some: why_not(fusion.epilogue_with(some)))
    if not absorbed:
        return reason
    remainder = [node for node in nodes if node not in absorbed]
    cause = f"split off {', '.join(_written(remainder))}: {'; '.join(dict.fromkeys(reasons))}"
    part = fusion.epilogue_with(absorbed)
    if _saved_bytes(fusion, part, remainder) <= 0:
        return f"{cause}; so cut, as many bytes are moved as by two kernels"
    return EpilogueSplit(
        epilogue=part,
        written=(fusion.product.get_name(), *_written(absorbed)),
        remainder=tuple(remainder),
        places=tuple(nodes.index(node) for node in remainder),
        reason=cause,
    )


def _absorbed(
    nodes: Sequence[Any], why_not: Callable[[Sequence[Any]], str | None]
) -> tuple[list[Any], list[str]]:
    """Return the nodes that one kernel can compute, in order, and a reason for each other node.

    A node that cannot be absorbed alone may be absorbed with a node that reads it: a value with no other
    reader is not stored, and some values can be computed but not stored (truth values).
    """
    absorbed: list[Any] = []
    reasons: dict[Any, str] = {}
    for place, node in enumerate(nodes[:MOST]):
        needed = [before for before in nodes[:place] if before.get_name() in node.ancestors]
        members = {*absorbed, node, *needed}
        tried = [other for other in nodes if other in members]
        reason = why_not(tried)
        if reason is None:
            absorbed = tried
        else:
            reasons[node] = reason
    late = f"it is behind the first {MOST} nodes"
    return absorbed, [reasons.get(node, late) for node in nodes if node not in absorbed]


def _saved_bytes(fusion: Fusion, part: Epilogue, remainder: Sequence[Any]) -> int:
    """Return how many bytes fewer are moved than by the product and one kernel for the whole epilogue."""
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

    A buffer that is stored in any case costs only the read.
    """
    moved = 0
    for name in names:
        tensor = fusion.written[name]
        moved += (1 if name in stored else 2) * math.prod(tensor.size) * item_bytes(tensor.dtype)
    return moved


def _written(nodes: Sequence[Any]) -> list[str]:
    return [buffer.get_name() for node in nodes for buffer in node.get_outputs()]
