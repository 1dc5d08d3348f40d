"""Around which calls of the scheduler something is written, and when."""

# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from torch._inductor import ir
from torch._inductor.codegen.wrapper import AllocateLine, CommentLine
from torch._inductor.virtualized import V

from inductor_plugin.inductor.graph import kernel_ranges
from inductor_plugin.inductor.graph.chosen import Chosen, ChosenKernels
from inductor_plugin.inductor.graph.kernel_ranges import RangeWriter

pytestmark = pytest.mark.compat


class Backend:
    """A backend that writes a line for a template."""

    def codegen_template(self, *_nodes: Any, only_gen_src_code: bool = False) -> str:
        return "a source to measure" if only_gen_src_code else "a call"


@dataclass
class Scheduler:
    """What `ChosenKernels.watch` surrounds."""

    backend: Backend = field(default_factory=Backend)
    freed: list[str] = field(default_factory=list[str])
    mutation_real_name: dict[str, str] = field(default_factory=dict[str, str])

    def free_buffers(self) -> None:
        self.freed.append("free")

    def codegen_extern_call(self, node: Any) -> str:
        return "an extern call"

    def get_backend(self, device: Any) -> Backend:
        return self.backend


def watched() -> Any:
    """Return a scheduler whose calls are surrounded."""
    graph: Any = SimpleNamespace(cpp_wrapper=False, scheduler=Scheduler())
    ChosenKernels([RangeWriter()]).watch(graph)
    return graph.scheduler


def test_nothing_is_written_around_a_source_that_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []

    def before(_chosen: Any, _scheduler: Any, nodes: Any) -> list[Any]:
        looked_at.append(len(nodes))
        return []

    monkeypatch.setattr(ChosenKernels, "_before", before)
    backend = watched().get_backend(None)
    assert backend.codegen_template("node", [], [], only_gen_src_code=True) == "a source to measure"
    assert looked_at == []
    assert backend.codegen_template("node", ["relu"], ["cast", "scale"]) == "a call"
    assert looked_at == [4]


def test_a_backend_is_surrounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel asks for its backend; surrounded twice, it would be checked twice."""
    looked_at: list[Any] = []

    def before(_chosen: Any, _scheduler: Any, nodes: Any) -> list[Any]:
        looked_at.append(nodes)
        return []

    monkeypatch.setattr(ChosenKernels, "_before", before)
    scheduler = watched()
    scheduler.get_backend(None)
    scheduler.get_backend(None).codegen_template("node", [], [])
    assert looked_at == [["node"]]
    assert scheduler.codegen_extern_call("mm") == "an extern call"
    assert looked_at == [["node"], ["mm"]]


def test_what_comes_behind_a_call_is_written_before_buffers_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The buffers of a template are freed inside of its code generation."""
    graph: Any = SimpleNamespace(cpp_wrapper=False, scheduler=Scheduler())
    scheduler = graph.scheduler

    def before(_chosen: Any, _scheduler: Any, _nodes: Any) -> list[Any]:
        return [lambda: scheduler.freed.append("check")]

    def freeing(_backend: Backend, *_nodes: Any) -> str:
        scheduler.free_buffers()
        return "a call"

    monkeypatch.setattr(ChosenKernels, "_before", before)
    monkeypatch.setattr(Backend, "codegen_template", freeing)
    ChosenKernels([RangeWriter()]).watch(graph)
    scheduler.get_backend(None).codegen_template("node", [], [])
    assert scheduler.freed == ["check", "free"]


def line_of(**facts: Any) -> Any:
    return SimpleNamespace(**facts)


@pytest.mark.parametrize(
    ("line", "calls", "kernel"),
    [
        ("buf0 = empty((4, 4))", True, None),
        ("launch_buf0(a, b, out=buf0)", True, "launch_buf0"),
        ("    # Topologically Sorted Source Nodes", False, None),
        ("// in C++", False, None),
        ("relaunch_buf0(a)", True, None),
        (object.__new__(CommentLine), False, None),
        (object.__new__(AllocateLine), False, None),
        (line_of(kernel_name="triton_tem_0"), True, "triton_tem_0"),
        (line_of(node=line_of(python_kernel_name="launch_buf1")), True, "launch_buf1"),
        (line_of(node=line_of(python_kernel_name="extern_kernels.mm")), True, None),
        (line_of(node=line_of(python_kernel_name=None)), True, None),
        (line_of(), True, None),
    ],
)
def test_a_call_is_told_from_comments_and_memory(
    line: Any, kernel: str | None, *, calls: bool
) -> None:
    assert kernel_ranges._calls(line) is calls
    assert kernel_ranges._kernel_of(line) == kernel


class KernelTicket:
    """A problem with two candidates."""

    def __init__(self) -> None:
        self.digest = "d" * 64
        self.problem = SimpleNamespace(describe=lambda: "mm(4x8, 8x4)")
        self.offers = [
            SimpleNamespace(candidate_id="a-1", name="a", description="64x64"),
            SimpleNamespace(candidate_id="b-1", name="b", description=""),
        ]


def created_by(graph: Any, *operations: Any) -> Any:
    def output_node() -> str:
        graph.operations.extend(operations)
        return "a node"

    return output_node


def test_what_a_choice_creates_is_followed_to_its_call() -> None:
    earlier, product, helper, pointwise = (object() for _ in range(4))
    pointwise = object.__new__(ir.ComputedBuffer)
    graph: Any = SimpleNamespace(operations=[earlier])
    triton = SimpleNamespace(make_kernel_render=lambda: None, output_node=created_by(graph))
    choices = {
        "a-1": SimpleNamespace(output_node=created_by(graph, helper, product, pointwise)),
        "b-1": triton,
        "elsewhere": SimpleNamespace(output_node=created_by(graph, earlier)),
    }
    before = choices["elsewhere"].output_node
    kernels, ticket = ChosenKernels([]), KernelTicket()
    untyped: Any = ticket
    kernels.follow(choices, untyped, "e" * 64)
    with V.set_graph_handler(graph):
        assert choices["a-1"].output_node() == "a node"
    first = Chosen("a-1", "a (64x64)", "mm(4x8, 8x4)", f"{'e' * 12}/{'d' * 12}")
    assert kernels._chosen(product) == kernels._chosen(helper) == first
    # What Inductor computes of it is another kernel.
    assert [kernels._chosen(each) for each in (earlier, pointwise)] == [None, None]
    assert choices["elsewhere"].output_node is before  # it was not offered
    template = SimpleNamespace(make_kernel_render=triton.make_kernel_render)
    chosen = kernels._chosen(template)
    assert chosen is not None
    assert (chosen.candidate, chosen.kernel) == ("b-1", "b")


def test_a_kernel_that_takes_its_epilogue_in_is_the_candidate_of_the_fusion() -> None:
    product, untyped = object(), KernelTicket()
    ticket: Any = untyped
    kernels = ChosenKernels([])
    kernels.settle(product, ticket, "gone", "e" * 64)
    assert kernels._chosen(product) is None
    kernels.settle(product, ticket, "b-1", "e" * 64)
    assert kernels._chosen(product) == Chosen("b-1", "b", "mm(4x8, 8x4)", f"{'e' * 12}/{'d' * 12}")


def test_the_first_candidate_among_fused_nodes_is_written_around() -> None:
    ticket: Any = KernelTicket()
    product = object()
    written: list[Any] = []

    class NotingWriter:
        def before(self, scheduler: Any, nodes: Any, chosen: Chosen) -> Any:
            written.append((len(nodes), chosen.candidate))
            return lambda: None

    kernels = ChosenKernels([NotingWriter(), NotingWriter()])
    kernels.settle(product, ticket, "a-1", "e" * 64)
    node = lambda *operations: SimpleNamespace(  # noqa: E731
        get_nodes=lambda: [SimpleNamespace(node=operation) for operation in operations]
    )
    assert len(kernels._before(None, [node(object()), node(object(), product)])) == 2
    assert written == [(3, "a-1")] * 2
    assert kernels._before(None, [node(object())]) == []
