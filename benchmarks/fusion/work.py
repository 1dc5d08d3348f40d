"""Work of a kernel that Inductor would generate for scheduler nodes: products, bytes, arithmetic."""

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
    tile = {name: int(value) for name, value in _TILE.findall(description)}
    return tile.get("M", 128), tile.get("N", 128)


def kernel_name(caller: Any) -> str:
    """Return the identity of a Triton kernel: name and description of its candidate."""
    return f"{caller.name.rsplit('_', 1)[0]} {caller.description}"


def work_of(nodes: Sequence[Any], callers: dict[str, Any]) -> Work:
    """Return the work of a kernel of scheduler nodes.

    Args:
        nodes: Nodes in their order.
        callers: The current kernel of each template's buffer.
    """
    flat = [part for node in nodes for part in node.get_nodes()]
    template = next((part for part in flat if part.is_template()), None)
    written = {buffer.get_name() for part in flat for buffer in part.get_outputs()}
    read = {dep.name: dep for part in flat for dep in part.read_writes.reads}
    outside = {dep.name: dep for part in flat for dep in part.read_writes.writes}
    members = {part.get_name() for part in flat}
    kept = [outside[name] for name in outside if _needed(flat[0].scheduler, name, members)]
    moved = (
        sum(_bytes(dep) for name, dep in read.items() if name not in written),
        sum(map(_bytes, kept)),
    )
    labels = [_operations(part) for part in flat if not part.is_template()]
    label = _digest(labels)
    if template is None:
        cycles = sum(_cycles(part) for part in flat)
        return Work(None, "", (0, 0), *moved, cycles, label)
    buffer = template.node
    caller = callers[buffer.get_name()]
    a, b = (compat.hints(operand.get_size()) for operand in buffer.inputs[-2:])
    product, tile = product_of(a, b), tile_of(str(caller.description))
    first = buffer.inputs[-2].get_name()
    cycles = 0.0
    for at, part in enumerate(flat):
        if not part.is_template():
            before = at < flat.index(template)
            names = {out.get_name() for out in part.get_outputs()}
            along = product.n / tile[1] if first in names else product.m / tile[0]
            cycles += _cycles(part) * (math.ceil(along) if before else 1)
    return Work(product, kernel_name(caller), tile, *moved, cycles, label, len(flat) == 1)


def _needed(scheduler: Any, name: str, members: set[str]) -> bool:
    """Return whether a buffer that a kernel writes is read outside of it."""
    for user in scheduler.name_to_buf[name].users:
        nodes = user.node.get_nodes() if hasattr(user.node, "get_nodes") else [user.node]
        if not {part.get_name() for part in nodes} <= members:
            return True
    return False


def _bytes(dep: Any) -> int:
    return int(dep.numbytes_hint())


def _digest(labels: list[list[str]]) -> str:
    """Return a short text for the operations of some nodes."""
    names = [name for label in labels for name in label if name not in _SILENT]
    return f"{'.'.join(names[:3])}-{hashlib.sha256(str(labels).encode()).hexdigest()[:8]}"


def _operations(node: Any) -> list[str]:
    graph = node._body.root_block.graph
    return [str(node.target) for node in graph.nodes if node.op == "call_method"]


def _cycles(node: Any) -> float:
    ranges = compat.hints(list(node._body.var_ranges.values()))
    each = sum(CYCLES.get(name, 1) for name in _operations(node) if name not in _SILENT)
    return float(math.prod(ranges) * each)


def kind_of(reason: str) -> str:
    """Return the kind of a reason: the text before its colon."""
    return reason.partition(":")[0] if ":" in reason else reason
