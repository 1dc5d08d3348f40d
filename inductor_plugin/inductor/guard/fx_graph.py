"""An FX graph that is compiled more than once: its copy, its identity, and whether it may be run."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.utils import counters
from torch._inductor import metrics

from inductor_plugin.cache.record import GRAPH
from inductor_plugin.problem.definition import size_class

_HARMLESS = frozenset(
    {
        "aten",
        "prims",
        "inductor",
        "inductor_plugin",
        "mkldnn",
        "mkl",
        "onednn",
        "quantized",
        "quantized_decomposed",
    }
)
"""Namespaces of operators that do nothing but compute: others may send, print or count."""


def why_not_run(gm: fx.GraphModule) -> str | None:
    """Return why a graph must not be run, None if a benchmark worker may run it."""
    for node in gm.graph.nodes:
        if node.op in ("call_module", "call_method"):
            return f"it calls {node.target}"
        if node.op == "call_function" and not _is_harmless(node.target):
            return f"it calls {node.target}, which may do more than compute"
        if str(node.target) == "aten.copy_.default" and node.args[0].op == "get_attr":
            return f"it changes constant {node.args[0].target}, which calls in turns would see"
    return None


def overload(target: Any) -> Any:
    """Return the operator that a node calls, None for any other function.

    Nodes that freezing creates (packed products) call an operator without saying which of its overloads.
    """
    operators: Any = torch._ops  # pyright: ignore[reportPrivateUsage]
    if isinstance(target, operators.OpOverloadPacket):
        return getattr(target, target.overloads()[0])
    return target if isinstance(target, operators.OpOverload) else None


def _is_harmless(target: Any) -> bool:
    operator = overload(target)
    if operator is not None:
        return operator.namespace in _HARMLESS
    return getattr(target, "__module__", "") in ("_operator", "operator", "math")


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a graph that shares its tensors; compiling changes the graph."""
    tensors = [*gm.parameters(), *gm.buffers(), *vars(gm).values()]
    memo = {id(tensor): tensor for tensor in tensors if isinstance(tensor, Tensor)}
    again = copy.deepcopy(gm, memo)
    for name, value in vars(gm).items():  # what freezing has set
        if name not in vars(again) and isinstance(value, bool):
            setattr(again, name, value)
    return again


def problem_of(gm: fx.GraphModule, examples: Sequence[Any]) -> dict[str, Any]:
    """Return the facts that distinguish a graph from others: its operators, and its inputs and constants without their values.

    Of dynamic sizes these are the classes, as of its problems: other problems have other choices.
    """
    lines = [
        f"{node.op} {node.name} {node.target} {node.args} {node.kwargs}" for node in gm.graph.nodes
    ]
    constants = [
        f"{node.target} {_facts(getattr(gm, str(node.target), None))}"
        for node in gm.graph.nodes
        if node.op == "get_attr"
    ]
    text = "\n".join([*lines, *constants])
    classes = _classes(examples)
    return {
        "op": GRAPH,
        "inputs": [_facts(example) for example in examples],
        "nodes": len(lines),
        "code": hashlib.sha256(text.encode()).hexdigest(),
        **({"classes": classes} if classes else {}),
    }


def _classes(examples: Sequence[Any]) -> dict[str, list[int]]:
    """Return the smallest and the largest size of the class of each dynamic size, by its name; of those that are known."""
    sizes = [
        size
        for example in examples
        for size in (example.size() if isinstance(example, Tensor) else (example,))
        if isinstance(size, torch.SymInt)
    ]
    hints = {str(size): getattr(size.node, "hint", None) for size in sizes}
    return {
        name: [*size_class(int(hint))] for name, hint in sorted(hints.items()) if hint is not None
    }


def _facts(value: Any) -> str:
    if not isinstance(value, Tensor):
        return str(value)
    return f"{tuple(value.size())} {tuple(value.stride())} {value.dtype} {value.device}"


@contextmanager
def uncounted() -> Generator[None]:
    """Leave the counters of torch that users read as they are.

    They are of the process, and what another thread counts in the block is lost. torch compiles in a thread at a time
    (``torch._dynamo.convert_frame.compile_lock``): so the block has one compile, and no run of what it compiled.
    """
    before = {name: copy.copy(values) for name, values in counters.items()}
    counted = _metrics()
    try:
        yield
    finally:
        for name, values in counters.items():
            values.clear()
            values.update(before.get(name, {}))
        for name, value in counted.items():
            if isinstance(value, list):
                getattr(metrics, name)[:] = value
            else:
                setattr(metrics, name, value)


def _metrics() -> dict[str, Any]:
    """Return copies of Inductor's public counters: numbers, and lists with an entry for each count."""
    return {
        name: copy.copy(value)
        for name, value in vars(metrics).items()
        if not name.startswith("_") and type(value) in (int, float, list)
    }
