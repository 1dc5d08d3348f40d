"""Arguments of a kernel that Inductor has generated for a fusion, as a worker builds them."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.codegen.common import SizeArg, WorkspaceArg, WorkspaceZeroMode

from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.fusion import kernel_arguments, nodes
from inductor_plugin.kernels.call import Zeros

pytestmark = pytest.mark.compat


def scheduler_of(users: dict[str, list[Any]]) -> Any:
    """Return a scheduler that knows the readers of each buffer."""
    return SimpleNamespace(
        name_to_buf={
            name: SimpleNamespace(users=[SimpleNamespace(node=node) for node in readers])
            for name, readers in users.items()
        }
    )


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
    scheduler = scheduler_of(users)

    def facts_of(base: str, bodies: list[str], is_written: Any, **facts: Any) -> Any:
        return base, bodies, [name for name in users if is_written(name)], facts

    monkeypatch.setattr(nodes, "node_of", lambda name: name)
    monkeypatch.setattr(nodes, "base_of", lambda buffer: buffer)
    monkeypatch.setattr(nodes, "epilogue_of_bodies", facts_of)
    prologue: Any = nodes.prologue_of(scheduler, {"cast", "b"}, first, product)
    facts = {"readers": 0, "prologue": True, "mutates": False}
    assert prologue == ("cast", ["body of first"], ["cast", "kept"], facts)


def test_an_epilogue_is_that_of_all_nodes_behind_the_product_but_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A buffer that only nodes of the kernel read is not written; the graph's output is a reader."""
    product, fused, added = Node("mm", "out"), Node("relu", "mid"), Node("sin", "last")
    group = Node("mm_relu")
    group.get_nodes = lambda: [product, fused]
    product.is_template, fused.is_template = lambda: True, lambda: False  # pyright: ignore
    users = {"out": [fused, group, Node("other")], "mid": [added], "last": [Node("OUTPUT")]}
    scheduler = scheduler_of(users)

    def facts_of(base: str, bodies: list[str], is_written: Any, **facts: Any) -> Any:
        return base, bodies, [name for name in users if is_written(name)], facts

    monkeypatch.setattr(nodes, "base_of", lambda buffer: buffer.get_name())
    monkeypatch.setattr(nodes, "epilogue_of_bodies", facts_of)
    buffer: Any = SimpleNamespace(get_name=lambda: "out")
    epilogue: Any = nodes.epilogue_of(scheduler, buffer, group, [added])
    facts = {"readers": 1, "mutates": False}
    assert epilogue == ("out", ["body of relu", "body of sin"], ["out", "last"], facts)
    added.has_aliasing_or_mutation = lambda: True
    *_, facts = nodes.epilogue_of(scheduler, buffer, group, [added])  # pyright: ignore
    assert facts == {"readers": 1, "mutates": True}


@pytest.mark.parametrize(
    ("name", "signature", "argument"),
    [
        ("buf0", SimpleNamespace(), "buf0"),
        ("ks0", SizeArg("ks0", 48), 48),  # pyright: ignore[reportArgumentType]
        ("load_seed_offset", SizeArg("load_seed_offset", 3), 0),  # pyright: ignore[reportArgumentType]
    ],
)
def test_sizes_are_numbers_and_seeds_are_none(
    monkeypatch: pytest.MonkeyPatch, name: str, signature: Any, argument: object
) -> None:
    monkeypatch.setattr(compat, "hints", lambda sizes: tuple(sizes))
    assert kernel_arguments._argument(name, signature) == argument
