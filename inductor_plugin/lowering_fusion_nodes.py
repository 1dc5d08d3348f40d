"""What scheduler nodes of a fusion compute, as an `Epilogue`: who reads what outside is part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inductor_plugin.epilogue import Epilogue
from inductor_plugin.lowering_epilogue import base_of, epilogue_of_bodies
from inductor_plugin.lowering_fusion_code import node_of


def epilogue_of(scheduler: Any, product: Any, first: Any, behind: Sequence[Any]) -> Epilogue:
    """Return all that would stand behind a product, what is fused with it already included.

    Args:
        scheduler: Inductor's scheduler.
        product: The product's buffer.
        first: The product's node, or that with what is fused behind it already.
        behind: The nodes that are added, in the order they run.
    """
    nodes = [*(one for one in first.get_nodes() if not one.is_template()), *behind]
    group = {one.get_name() for one in (*first.get_nodes(), *nodes)}
    return epilogue_of_bodies(
        base_of(product),
        [one._body for one in nodes],
        lambda name: _read_outside(scheduler, name, group) > 0,
        readers=_read_outside(scheduler, product.get_name(), group),
        mutates=any(one.has_aliasing_or_mutation() for one in nodes),
    )


def prologue_of(scheduler: Any, read: set[str], first: Any, second: Any) -> Epilogue:
    """Return what would stand before a product.

    Args:
        scheduler: Inductor's scheduler.
        read: Names of what the product reads.
        first: The node before it.
        second: The product's node.
    """
    nodes = first.get_nodes()
    group = {one.get_name() for one in (*nodes, *second.get_nodes())}
    written = [buffer.get_name() for one in nodes for buffer in one.get_outputs()]
    operand = next(name for name in reversed(written) if name in read)
    return epilogue_of_bodies(
        base_of(node_of(operand)),
        [one._body for one in nodes],
        lambda name: name == operand or _read_outside(scheduler, name, group) > 0,
        readers=_read_outside(scheduler, operand, group),
        prologue=True,
        mutates=any(one.has_aliasing_or_mutation() for one in nodes),
    )


def _read_outside(scheduler: Any, name: str, group: set[str]) -> int:
    """Return how many nodes outside a group read a buffer; the graph's output is one."""
    users = scheduler.name_to_buf[name].users
    return sum(not ({part.get_name() for part in _parts(user.node)} & group) for user in users)


def _parts(node: Any) -> Sequence[Any]:
    return node.get_nodes() if hasattr(node, "get_nodes") else [node]
