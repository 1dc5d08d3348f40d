"""What a kernel does that Inductor would write for some scheduler nodes: products, bytes, arithmetic."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any

from benchmarks.fusion.cost import CYCLES, Product, Work
from inductor_plugin.inductor.facts import compat

_TILE = re.compile(r"\bBLOCK_([MN])=(\d+)")
_SILENT = frozenset({"get_index", "load", "store", "store_reduction", "constant", "to_dtype"})


def product_of(a: Sequence[int], b: Sequence[int]) -> Product:
    """Return the product of two operands by their sizes."""
    return Product(math.prod(a[:-2]), a[-2], b[-1], a[-1])


def tile_of(description: str) -> tuple[int, int]:
    """Return (m, n) of a Triton kernel's tile."""
    found = {name: int(value) for name, value in _TILE.findall(description)}
    return found.get("M", 128), found.get("N", 128)


def kernel_name(caller: Any) -> str:
    """Return what tells a Triton kernel from others, as its candidate's name and description do."""
    return f"{caller.name.rsplit('_', 1)[0]} {caller.description}"


def work_of(nodes: Sequence[Any], callers: dict[str, Any]) -> Work:
    """Return what a kernel of some scheduler nodes does.

    Args:
        nodes: In their order.
        callers: Which kernel a template's buffer has now.
    """
    flat = [one for node in nodes for one in node.get_nodes()]
    template = next((one for one in flat if one.is_template()), None)
    written = {buffer.get_name() for one in flat for buffer in one.get_outputs()}
    read = {dep.name: dep for one in flat for dep in one.read_writes.reads}
    outside = {dep.name: dep for one in flat for dep in one.read_writes.writes}
    members = {one.get_name() for one in flat}
    kept = [outside[name] for name in outside if _needed(flat[0].scheduler, name, members)]
    moved = (
        sum(_bytes(dep) for name, dep in read.items() if name not in written),
        sum(map(_bytes, kept)),
    )
    labels = [_operations(one) for one in flat if not one.is_template()]
    label = _digest(labels)
    if template is None:
        cycles = sum(_cycles(one) for one in flat)
        return Work(None, "", (0, 0), *moved, cycles, label)
    buffer = template.node
    caller = callers[buffer.get_name()]
    a, b = (compat.hints(one.get_size()) for one in buffer.inputs[-2:])
    product, tile = product_of(a, b), tile_of(str(caller.description))
    first = buffer.inputs[-2].get_name()
    cycles = 0.0
    for at, one in enumerate(flat):
        if not one.is_template():
            before = at < flat.index(template)
            names = {out.get_name() for out in one.get_outputs()}
            along = product.n / tile[1] if first in names else product.m / tile[0]
            cycles += _cycles(one) * (math.ceil(along) if before else 1)
    return Work(product, kernel_name(caller), tile, *moved, cycles, label, len(flat) == 1)


def _needed(scheduler: Any, name: str, members: set[str]) -> bool:
    """Return whether somebody outside of a kernel reads what it writes."""
    for user in scheduler.name_to_buf[name].users:
        nodes = user.node.get_nodes() if hasattr(user.node, "get_nodes") else [user.node]
        if not {one.get_name() for one in nodes} <= members:
            return True
    return False


def _bytes(dep: Any) -> int:
    return int(dep.numbytes_hint())


def _digest(labels: list[list[str]]) -> str:
    """Return a short text for the operations of some nodes."""
    names = [one for label in labels for one in label if one not in _SILENT]
    return f"{'.'.join(names[:3])}-{hashlib.sha256(str(labels).encode()).hexdigest()[:8]}"


def _operations(node: Any) -> list[str]:
    graph = node._body.root_block.graph
    return [str(one.target) for one in graph.nodes if one.op == "call_method"]


def _cycles(node: Any) -> float:
    ranges = compat.hints(list(node._body.var_ranges.values()))
    each = sum(CYCLES.get(name, 1) for name in _operations(node) if name not in _SILENT)
    return float(math.prod(ranges) * each)


def kind_of(reason: str) -> str:
    """Return the kind of a reason: what stands before its colon."""
    return reason.partition(":")[0] if ":" in reason else reason
