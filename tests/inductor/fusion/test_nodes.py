"""Arguments of a kernel that Inductor has generated for a fusion, as a worker builds them."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.codegen.common import WorkspaceArg, WorkspaceZeroMode

from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.fusion import kernel_arguments, nodes
from inductor_plugin.kernels.call import Zeros

pytestmark = pytest.mark.compat


@pytest.mark.parametrize(
    ("mode", "each_call"),
    [
        (WorkspaceZeroMode.ZERO_ON_CALL, True),
        (WorkspaceZeroMode.ZERO_PER_GRAPH, False),  # the kernel cleans up
        (WorkspaceZeroMode.UNINITIALIZED, False),
    ],
)
def test_scratch_memory_is_zeroed_as_often_as_in_generated_code(
    monkeypatch: pytest.MonkeyPatch, mode: WorkspaceZeroMode, *, each_call: bool
) -> None:
    def hints(counts: Sequence[int]) -> tuple[int, ...]:
        return tuple(counts)

    monkeypatch.setattr(compat, "hints", hints)
    memory = WorkspaceArg(
        count=8,  # pyright: ignore[reportArgumentType] - torch 2.11 takes no expression
        zero_mode=mode,
        device=torch.device("cuda"),
        outer_name="workspace_0",
    )
    assert kernel_arguments._argument("workspace_0", memory) == Zeros(8, "uint8", each_call)


class Node:
    """A scheduler node that writes buffers."""

    def __init__(self, name: str, *outputs: str) -> None:
        self.name, self.outputs, self._body = name, outputs, f"body of {name}"

    def get_name(self) -> str:
        return self.name

    def get_nodes(self) -> list[Node]:
        return [self]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(get_name=lambda name=name: name) for name in self.outputs]

    def has_aliasing_or_mutation(self) -> bool:
        return False


def test_a_prologue_is_that_of_the_buffer_which_the_product_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node before it writes another buffer last, which a third node reads, and a buffer for itself alone."""
    first, product, other = Node("first", "inner", "cast", "kept"), Node("mm", "out"), Node("other")
    users = {"inner": [first], "cast": [product], "kept": [other]}
    scheduler = SimpleNamespace(
        name_to_buf={
            name: SimpleNamespace(users=[SimpleNamespace(node=node) for node in readers])
            for name, readers in users.items()
        }
    )

    def facts_of(base: str, bodies: list[str], is_written: Any, **facts: Any) -> Any:
        return base, bodies, [name for name in users if is_written(name)], facts

    monkeypatch.setattr(nodes, "node_of", lambda name: name)
    monkeypatch.setattr(nodes, "base_of", lambda buffer: buffer)
    monkeypatch.setattr(nodes, "epilogue_of_bodies", facts_of)
    prologue: Any = nodes.prologue_of(scheduler, {"cast", "b"}, first, product)
    facts = {"readers": 0, "prologue": True, "mutates": False}
    assert prologue == ("cast", ["body of first"], ["cast", "kept"], facts)
