"""What two nodes that may be fused are as a problem: its operands, its outputs, its signature."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportPrivateUsage=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.inductor.fusion import pair
from inductor_plugin.inductor.fusion.pair import Fusion
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.epilogue import Access, Epilogue


@functools.cache
def layout_of(name: str) -> str:
    """Return the one layout of a buffer."""
    return f"layout of {name}"


class NamedNode:
    """A node, or several that are fused, each of which writes a buffer named like it."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def get_name(self) -> str:
        return "_".join(self.names)

    def get_nodes(self) -> list[NamedNode]:
        return [NamedNode(name) for name in self.names]

    def get_outputs(self) -> list[Any]:
        node = SimpleNamespace(get_layout=lambda: layout_of(self.names[0]))
        return [SimpleNamespace(get_name=lambda: self.names[0], node=node)]


def access(*names: str) -> tuple[Any, ...]:
    return tuple(SimpleNamespace(buffer=name) for name in names)


def reading(*names: str) -> Epilogue:
    """Return an epilogue that reads buffers."""
    reads = tuple(Access("full", "bfloat16", 4, (2, 1), buffer=name) for name in names)
    return Epilogue((2, 2), "bfloat16", (), reads)


def fusion_of(
    first: NamedNode,
    second: NamedNode,
    epilogue: Any = None,
    *,
    prologue: bool = False,
    state: Any = None,
) -> Any:
    factors = [SimpleNamespace(get_name=lambda name=name: name) for name in ("a", "b")]
    call = SimpleNamespace(nodes=factors, names=["a", "b"])
    pending: Any = SimpleNamespace(call=call)
    state = state or SimpleNamespace(epilogues={}, settled={"mm": "a kernel"})
    untyped: Any = None
    result = Fusion(untyped, untyped, state, pending, NamedNode("mm"), first, second, prologue)
    if epilogue is not None:
        vars(result)["epilogue"] = epilogue  # as it is once it was read
    return result


@pytest.fixture(autouse=True)
def layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the layout of a buffer be a text."""
    node = lambda name: SimpleNamespace(get_layout=lambda: layout_of(name))  # noqa: E731
    monkeypatch.setattr(pair, "node_of", node)
    monkeypatch.setattr(pair, "output_tensor", lambda layout: f"tensor of {layout}")


def test_the_buffer_that_is_compared_comes_last_of_those_that_are_written() -> None:
    epilogue = SimpleNamespace(writes=access("add", "relu"))
    fusion = fusion_of(NamedNode("mm"), NamedNode("add", "relu", "sin"), epilogue)
    assert list(fusion.written) == ["mm", "add", "sin", "relu"]
    assert fusion.written["relu"] == "tensor of layout of relu"


def test_without_a_write_the_first_result_of_the_second_node_is_compared() -> None:
    nothing = SimpleNamespace(writes=())
    assert fusion_of(NamedNode("mm"), NamedNode("relu"), nothing).layout == "layout of relu"
    both = SimpleNamespace(writes=access("relu", "sin"))
    assert fusion_of(NamedNode("mm"), NamedNode("relu", "sin"), both).layout == "layout of sin"


def test_what_an_epilogue_reads_is_an_operand_once() -> None:
    epilogue = reading("bias", "gate", "bias")
    nodes = NamedNode("mm"), NamedNode("relu")
    assert fusion_of(*nodes, epilogue).added == ["a", "b", "bias", "gate"]
    # A prologue adds nothing to the product.
    assert fusion_of(*nodes, epilogue, prologue=True).added == ["a", "b"]


def test_a_problem_knows_how_many_operands_its_epilogue_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = Operand((2, 2), (2, 1), "bfloat16", "cuda")
    monkeypatch.setattr(
        pair, "problem_of", lambda op, nodes, *_: Problem(op, (tensor,) * len(nodes), tensor)
    )
    nodes = NamedNode("mm"), NamedNode("relu")
    for names, count in ((("bias", "gate", "bias"), 2), ((), 0)):
        fusion = fusion_of(*nodes, reading(*names))
        bare = SimpleNamespace(op="mm", arguments=())
        fusion.pending.ticket = SimpleNamespace(problem=bare)
        assert len(fusion.problem.inputs) == 2 + count
        assert fusion.problem.epilogue_reads == count


def test_an_epilogue_on_top_of_another_has_another_signature() -> None:
    epilogue = SimpleNamespace(signature="relu-1")
    assert fusion_of(NamedNode("mm"), NamedNode("relu"), epilogue)._signature == "relu-1"
    behind = fusion_of(NamedNode("mm", "add", "mul"), NamedNode("relu"), epilogue)
    assert behind._signature == "relu-1+2"
    assert behind.settled == "a kernel"


def test_epilogues_of_other_nodes_are_read_apart_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def epilogue_of(_scheduler: Any, _product: Any, first: NamedNode, nodes: Any) -> Any:
        read.append((first.get_name(), *(node.get_name() for node in nodes)))
        return read[-1]

    monkeypatch.setattr(pair, "epilogue_of", epilogue_of)
    fusion = fusion_of(NamedNode("mm"), NamedNode("relu", "sin"))
    relu, sin = fusion.second.get_nodes()
    assert fusion.epilogue == ("mm", "relu", "sin")
    assert fusion.epilogue_with([relu]) == ("mm", "relu")
    assert fusion.epilogue_with([sin]) == ("mm", "sin")
    assert fusion.epilogue_with([relu, sin]) is fusion.epilogue
    assert len(read) == 3


def test_a_prologue_is_that_of_what_the_product_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def prologue_of(_scheduler: Any, names: set[str], first: Any, second: Any) -> str:
        read.append((names, first.get_name(), second.get_name()))
        return "a prologue"

    monkeypatch.setattr(pair, "prologue_of", prologue_of)
    nodes = NamedNode("cast"), NamedNode("mm")
    fusion = fusion_of(*nodes, prologue=True)
    again = fusion_of(*nodes, prologue=True, state=fusion.state)
    assert (fusion.epilogue, again.epilogue) == ("a prologue", "a prologue")
    assert read == [({"a", "b"}, "cast", "mm")]


def test_a_settled_kernel_and_its_resources_are_found_by_their_names() -> None:
    settled: list[Any] = []
    known = SimpleNamespace(resources="96 registers")
    store = SimpleNamespace(kernel=lambda digest: known if digest == "d" else None)
    context = SimpleNamespace(environment="here", store=store)
    session: Any = SimpleNamespace(
        context=lambda _device: (context, None),
        chosen=SimpleNamespace(settle=lambda *kernel: settled.append(kernel)),
    )
    state = pair.FusionState(session)
    product: Any = SimpleNamespace(get_name=lambda: "mm", get_device=lambda: "cuda:0")
    ticket: Any = object()
    state.settle(product, ticket, "fused.a", "a")
    assert state.settled == {"mm": "a"}
    assert settled == [(product, ticket, "fused.a", "here")]
    resources = [state.resources(kernel, None) for kernel in ("d", "gone", None)]
    assert resources == ["96 registers", None, None]
