"""A decision that fails leaves the library kernel, not the compile, and a race that fails to start leaves the others theirs."""

# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from torch._inductor import ir
from torch._inductor.select_algorithm import ExternKernelCaller, NoValidChoicesError

from inductor_plugin.inductor.graph import deferral, pending
from inductor_plugin.inductor.graph.deferral import Deferred, settle
from inductor_plugin.inductor.graph.unstarted import Unstarted
from inductor_plugin.tuning.decision import Verdict
from tests.support.candidates.providers import offered
from tests.support.compile import fresh

__all__ = ["fresh"]  # the fixture


def test_a_decision_that_raises_leaves_the_library_kernel(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(*_: object) -> NoReturn:
        raise TypeError("unsupported operand type(s) for /: 'float' and 'str'")

    monkeypatch.setattr("inductor_plugin.tuning.selection.decide", raises)
    options: dict[str, Any] = {"cache_dir": str(cache_dir), "policy": "cached"}
    a, b = torch.randn(64, 32), torch.randn(32, 48)
    with offered("good"):
        compiled = torch.compile(torch.mm, backend="inductor_plugin", options=options)
        assert torch.allclose(compiled(a, b), a @ b, atol=1e-4)
    messages = [r.message for r in caplog.records if "nothing could be decided" in r.message]
    assert len(messages) == 1
    assert messages[0].startswith("inductor-plugin: ")
    assert "mm" in messages[0]


def test_an_error_at_one_race_keeps_none_behind_it_from_its_own() -> None:
    unstarted, started = Unstarted(), list[str]()

    def starts(name: str) -> Callable[[], None]:
        def start() -> None:
            if name == "second":
                raise OSError("the disk is full")
            started.append(name)

        return start

    def settle(_ticket: object) -> None: ...

    for name in ("first", "second", "third"):
        selection = SimpleNamespace(settle=settle)
        ticket: Any = SimpleNamespace(planned=False, lookup=None, selection=selection)
        unstarted.add(ticket, starts(name))
    with pytest.raises(OSError, match="the disk is full"):
        unstarted.start_all()
    assert started == ["first"]
    unstarted.start_all()
    assert started == ["first", "third"]


class OpenLayouts:
    """Layouts of a call's inputs, one of which is open, until it is held or moves."""

    def __init__(self, _call: Any) -> None:
        self.open, self.held, self.moves = True, 0, False

    def hold(self) -> None:
        self.held += 1

    def moved(self) -> list[str]:
        return ["a"] if self.moves else []

    def kept(self, choice: Any, libraries: list[Any]) -> Any:
        return libraries[0] if self.moves and libraries else choice


class Deciding:
    """A selection that decides for a candidate."""

    def __init__(self, winner: str | None) -> None:
        self.verdict = Verdict(winner, "l", "as the test says")
        self.asked = 0

    def decide(self, _ticket: Any) -> Verdict:
        self.asked += 1
        return self.verdict

    def medians(self, _ticket: Any) -> dict[str, float]:
        return {"a": 1.0, "b": 2.0, "elsewhere": 0.5}


CHOICES = {"l": "library", "a": "first", "b": "second", "m": "library of the second kind"}
OURS = {"a": "first", "b": "second"}


@pytest.fixture(name="choice_of")
def a_pending_choice(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(pending, "Layouts", OpenLayouts)
    monkeypatch.setattr(pending, "is_library", lambda choice: choice.startswith("library"))

    def choice(
        winner: str | None, choices: dict[str, str] = CHOICES, **measured: str
    ) -> pending.PendingChoice:
        rows = {name: SimpleNamespace(status=status) for name, status in measured.items()}
        problem = SimpleNamespace(describe=lambda: "mm(8x8, 8x8)")
        ticket: Any = SimpleNamespace(selection=Deciding(winner), measured=rows, problem=problem)
        untyped: Any = None
        return pending.PendingChoice(ticket, choices, untyped, lambda _: None)

    return choice


@pytest.mark.parametrize(
    ("winner", "choices", "measured", "runs"),
    [
        ("a", CHOICES, {}, "first"),
        (None, CHOICES, {}, "library"),
        ("elsewhere", CHOICES, {}, "library"),
        ("b", OURS, {}, "second"),
        (None, OURS, {}, "first"),
        (None, OURS, {"a": "wrong"}, "second"),
        (None, OURS, {"a": "skipped"}, "first"),
        (None, OURS, {"a": "wrong", "b": "crashed"}, None),
    ],
)
def test_what_is_not_decided_runs_the_library_or_what_has_not_failed(
    choice_of: Callable[..., Any],
    winner: str | None,
    choices: dict[str, str],
    measured: dict[str, str],
    runs: str | None,
) -> None:
    choice = choice_of(winner, choices, **measured)
    if runs is not None:
        assert choice.winner() == runs
        return
    with pytest.raises(NoValidChoicesError, match=r"mm\(8x8, 8x8\)"):
        choice.winner()


def test_inputs_keep_the_strides_that_a_kernel_of_ours_was_measured_with(
    choice_of: Callable[..., Any],
) -> None:
    for winner, held in (("a", 1), ("l", 0), ("m", 0), (None, 0)):
        choice = choice_of(winner)
        assert choice._layouts.held == 0
        choice.hold()
        assert choice._layouts.held == held
    fixed = choice_of("a")
    fixed._layouts.open = False
    fixed.hold()
    assert fixed._layouts.held == 0
    assert fixed.ticket.selection.asked == 0  # nothing has to be decided for that yet
    assert choice_of("a", OURS)._layouts.held == 1  # no other kernel takes any strides


def test_a_decision_is_asked_for_again_only_where_an_input_has_moved(
    choice_of: Callable[..., Any],
) -> None:
    choice = choice_of("a")
    choice.compare()
    assert choice.ticket.selection.asked == 0
    choice._layouts.moves = True
    choice.compare()
    assert choice.ticket.selection.asked == 1
    assert choice.winner() == "library"


def test_the_scheduler_gets_times_of_what_was_measured_and_all_library_kernels(
    choice_of: Callable[..., Any],
) -> None:
    inf = float("inf")
    libraries = {"library": inf, "library of the second kind": inf}
    choice = choice_of("a")
    assert choice.timings() == {"first": 1.0, "second": 2.0, **libraries}
    times = choice_of("b", OURS).timings()
    assert times["second"] < times["first"] < 2.1  # the winner is the fastest
    choice._layouts.moves = True
    assert choice.timings() == {**libraries, "library": 1.0}
    assert choice_of(None).timings() == {**libraries, "library": 1.0}
    moved = choice_of("a")
    moved._layouts.moves = True
    moved.ticket.selection.medians = lambda _ticket: {"a": 1.0, "l": 3.0}
    assert moved.timings() == {**libraries, "library": 1.0}  # no template has the layouts
    assert choice_of(None, OURS).timings() == {"first": 1.0, "second": 2.0}


_IR: Any = ir  # untyped


def layout_of(stride: int = 1) -> Any:
    return _IR.FixedLayout(torch.device("cpu"), torch.float32, [4], [stride])


class LoweredGraph:
    """The lists of a graph that was lowered, as far as a placeholder is in them."""

    def __init__(self, *names: str) -> None:
        self.buffers: list[Any] = []
        self.operations: list[Any] = []
        self.name_to_buffer: dict[str, Any] = {}
        self.name_to_op: dict[str, Any] = {}
        self.graph_outputs: list[Any] = []
        for name in names:
            self.add(name)

    def add(self, name: str, layout: Any = None) -> Any:
        """Register a buffer and the operation that writes it."""
        node = _IR.OperationBuffer(name=name, layout=layout or layout_of())
        node.operation_name = f"op_{name}"
        node.origins = set()
        self.buffers.append(node)
        self.operations.append(node)
        self.name_to_buffer[name] = self.name_to_op[node.operation_name] = node
        return node


def names(nodes: list[Any]) -> list[str]:
    return [node.get_name() for node in nodes]


def deferred(graph: Any, choice: Any, *, library: Any = None, operands: Any = ()) -> Any:
    placeholder = graph.name_to_buffer["product"]
    storage = ir.StorageBox(placeholder)
    return Deferred(placeholder, storage, None, lambda: choice, tuple(operands), library)


def test_the_winners_node_has_the_names_the_place_and_the_layout_of_the_placeholder() -> None:
    graph: Any = LoweredGraph("before", "product", "behind")

    def output_node() -> Any:
        graph.add("helper")
        return ir.StorageBox(graph.add("new", layout_of(2)))

    decision = deferred(graph, SimpleNamespace(name="a kernel", output_node=output_node))
    returned = ir.StorageBox(decision.buffer)
    other = graph.name_to_buffer["before"]
    graph.graph_outputs = [decision.buffer, returned, other]
    settle(graph, decision)
    node = decision.storage.data
    assert names(graph.buffers) == ["before", "helper", "product", "behind"]
    assert [each.operation_name for each in graph.operations] == [
        "op_before",
        "op_helper",
        "op_product",
        "op_behind",
    ]
    assert graph.buffers[2] is graph.operations[2] is node is not decision.buffer
    assert graph.name_to_buffer["product"] is graph.name_to_op["op_product"] is node
    assert "new" not in graph.name_to_buffer
    assert "op_new" not in graph.name_to_op
    assert node.layout is decision.buffer.layout
    assert graph.graph_outputs[0] is node
    assert graph.graph_outputs[1].data is node
    assert graph.graph_outputs[2] is other


def test_what_was_made_of_the_result_in_place_stays() -> None:
    graph: Any = LoweredGraph("product", "filled")
    choice = SimpleNamespace(name="a kernel", output_node=lambda: graph.add("new"))
    decision = deferred(graph, choice)
    decision.storage.data = graph.name_to_buffer["filled"]
    settle(graph, decision)
    assert decision.storage.data is graph.name_to_buffer["filled"]
    assert names(graph.buffers) == ["product", "filled"]


def test_a_layout_that_the_kernel_needs_stays_its_own() -> None:
    graph: Any = LoweredGraph("product")
    needed = _IR.NoneLayout(device=torch.device("cpu"))
    choice = SimpleNamespace(name="a kernel", output_node=lambda: graph.add("new", needed))
    decision = deferred(graph, choice)
    settle(graph, decision)
    assert decision.storage.data.layout is needed


def library_of(output_node: Any) -> Any:
    choice: Any = object.__new__(ExternKernelCaller)
    choice.name, choice.output_node = "library", output_node
    return choice


@pytest.mark.parametrize(
    ("moves", "is_library", "has_library", "runs"),
    [
        (False, False, True, "ours"),
        (True, False, True, "library"),
        (True, False, False, "ours"),
        (True, True, True, "winner"),
    ],
)
def test_operands_are_those_of_the_call_and_a_template_does_not_read_them_twice(
    *, moves: bool, is_library: bool, has_library: bool, runs: str
) -> None:
    graph: Any = LoweredGraph("x", "product", "x_later")
    x, later = graph.name_to_buffer["x"], graph.name_to_buffer["x_later"]
    box = ir.StorageBox(x)
    ran: list[Any] = []

    def output_node(name: str) -> Any:
        ran.append((name, box.data))
        return graph.add(name)

    ours = SimpleNamespace(name="ours", output_node=lambda: output_node("ours"))
    winner = library_of(lambda: output_node("winner")) if is_library else ours
    library = library_of(lambda: output_node("library")) if has_library else None
    decision = deferred(graph, winner, library=library, operands=[(box, "x"), (box, "gone")])
    if moves:
        box.data = later
    settle(graph, decision)
    assert [name for name, _ in ran] == [runs]
    assert ran[0][1] is x
    assert box.data is (later if moves else x)


def test_the_boxes_of_operands_are_the_innermost() -> None:
    graph: Any = LoweredGraph("x", "y")
    x, y = (ir.StorageBox(graph.name_to_buffer[name]) for name in "xy")
    view = _IR.PermuteView(data=ir.TensorBox(x), dims=[0])
    named = deferral._named([ir.TensorBox(x), view, y, graph.name_to_buffer["y"]])
    assert [(box is x, name) for box, name in named] == [(True, "x"), (False, "y")]
