"""Inductor's nodes as a problem: what of a call goes into the key of its record."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from inductor_plugin.inductor.facts.problem import (
    constant,
    device_text,
    is_view,
    known_target,
    layout_operand,
    problem_of,
    target_of,
)
from inductor_plugin.problem import Operand, SizeClass
from tests.support import gpu

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(name="graph", autouse=True)
def an_empty_graph() -> Iterator[GraphLowering]:
    """Lower an empty graph, to which nodes are added."""
    empty = torch.fx.Graph()
    empty.output(())
    module = torch.fx.GraphModule(torch.nn.Module(), empty)
    lowering = GraphLowering(module, shape_env=ShapeEnv())
    with V.set_graph_handler(lowering):
        yield lowering


def extent(hint: int, name: str = "rows") -> Any:
    """Return a size that is known only at run time."""
    env: Any = V.graph.sizevars.shape_env
    return env.create_symbol(hint, source=ConstantSource(name), dynamic_dim=DimDynamic.DYNAMIC)


def layout(
    size: Sequence[Any],
    stride: Sequence[Any],
    offset: Any = 0,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> Any:
    fixed: Any = ir.FixedLayout
    return fixed(device, dtype, list(size), list(stride), offset)


def given(name: str, written: Any) -> Any:
    """Return an input of the graph."""
    return ir.TensorBox.create(ir.InputBuffer(name=name, layout=written))


def view_of(node: Any, written: Any) -> Any:
    """Return a view of a node's memory, boxed as lowerings get it."""
    return ir.TensorBox(ir.ReinterpretView(data=node.data, layout=written))


def operand(node: Any, device: torch.device = CPU) -> Operand:
    """Return one node as the operand of a call."""
    return problem_of("mm", [node], layout((4, 8), (8, 1), device=device), ()).inputs[0]


def frozen(graph: GraphLowering, value: torch.Tensor, written: Any) -> Any:
    """Return a node whose value is known while compiling."""
    graph.constants["weight"] = value
    buffer: Any = ir.ConstantBuffer
    return ir.TensorBox(ir.StorageBox(buffer(name="weight", layout=written)))


def test_a_problem_has_operands_output_and_arguments_of_its_call() -> None:
    a, b = given("a", layout((4, 6), (6, 1))), given("b", layout((6, 8), (1, 6)))
    problem = problem_of("addmm", [a, b], layout((4, 8), (8, 1)), (("alpha", "2"),))
    assert (problem.op, problem.arguments, problem.epilogue) == ("addmm", (("alpha", "2"),), "")
    assert problem.inputs == (
        Operand((4, 6), (6, 1), "float32", "cpu"),
        Operand((6, 8), (1, 6), "float32", "cpu"),
    )
    assert problem.output == Operand((4, 8), (8, 1), "float32", "cpu")
    assert (problem.dynamic, problem.target) == ((), None)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_sums_may_be_rounded_to_tf32_unless_the_highest_precision_is_asked_for(
    precision: str,
) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        problem = problem_of("mm", [], layout((4, 8), (8, 1)), ())
    finally:
        torch.set_float32_matmul_precision(before)
    assert problem.tf32 is (precision != "highest")


def test_a_view_has_its_own_sizes_strides_and_offset() -> None:
    whole = given("x", layout((8, 6), (6, 1)))
    part = view_of(whole, layout((6, 3), (1, 12), 7))
    assert operand(part) == Operand((6, 3), (1, 12), "float32", "cpu", offset=7)
    assert is_view(part)
    assert is_view(part.data)
    assert not is_view(whole)


BIASES = {
    "full": (8, 1),
    "row": (0, 1),
    "column": (1, 0),
    "scalar": (0, 0),
}


def test_each_form_of_a_bias_is_a_problem_of_its_own() -> None:
    vector = given("bias", layout((32,), (1,)))
    a, b = given("a", layout((4, 6), (6, 1))), given("b", layout((6, 8), (8, 1)))
    problems = {
        form: problem_of("addmm", [view_of(vector, layout((4, 8), stride)), a, b], layout((4, 8), (8, 1)), ())
        for form, stride in BIASES.items()
    }  # fmt: skip
    assert {form: each.inputs[0].stride for form, each in problems.items()} == BIASES
    assert len({str(each.fields()) for each in problems.values()}) == len(BIASES)


def test_a_layout_that_was_asked_for_counts_instead_of_the_nodes_own(graph: GraphLowering) -> None:
    """Inductor will copy the operand to it before the call."""
    node = given("x", layout((4, 6), (6, 1)))
    untyped: Any = graph
    if not hasattr(untyped, "buffer_layout_constraints"):
        pytest.skip("this torch keeps no constraints")
    untyped.buffer_layout_constraints["x"] = layout((4, 6), (1, 4))
    assert operand(node.data.data).stride == (1, 4)


def test_a_frozen_weight_is_a_constant_and_its_view_is_a_view_of_the_value(
    graph: GraphLowering,
) -> None:
    value = torch.arange(24.0).reshape(4, 6)
    weight = frozen(graph, value, layout((4, 6), (6, 1)))
    turned = view_of(weight, layout((5, 4), (1, 6), 1))
    assert constant(weight) is value
    seen = constant(turned)
    assert seen is not None
    assert torch.equal(seen, value[:, 1:].t())
    assert operand(weight).constant
    assert operand(turned) == Operand((5, 4), (1, 6), "float32", "cpu", offset=1, constant=True)
    assert constant(given("x", layout((4, 6), (6, 1)))) is None


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_a_packed_weight_has_its_layouts_name_and_no_sizes(graph: GraphLowering) -> None:
    """Inductor says how many bytes it has, which depend on where it was packed."""
    packed: Any = torch.ones(4, 6).to_mkldnn()
    node = frozen(graph, packed, layout((208,), (1,), device=CPU))
    assert operand(node) == Operand((), (), "float32", "cpu", layout="mkldnn", constant=True)


@pytest.mark.parametrize(
    ("stride", "divisors"),
    [
        (lambda n: (n, 1), (1, 1, 16)),
        (lambda n: (2 * n, 1), (2, 1, 16)),
        (lambda n: (12 * n, 4), (4, 4, 16)),
        (lambda n: (8 * n, 24), (8, 8, 16)),
        (lambda n: (48 * n, 0), (16, 16, 16)),
        (lambda n: (16 * n + 8, 1), (8, 1, 16)),
        (lambda n: (n * n, n), (1, 1, 16)),
    ],
)
def test_a_stride_that_is_not_known_is_known_by_what_divides_it(
    stride: Any, divisors: tuple[int, ...]
) -> None:
    """Up to 16, and no more than is true at every size: the size while compiling is 48."""
    steps = stride(extent(48))
    assert layout_operand(layout((4, 6), steps, device=CUDA)).divisors == divisors
    assert layout_operand(layout((4, 6), steps, device=CPU)).divisors == ()


def test_an_offset_that_is_not_known_is_known_by_what_divides_it() -> None:
    offset = 4 * extent(64)
    here = layout_operand(layout((4, 6), (24, 1), offset, CUDA))
    assert (here.divisors, here.offset, here.symbolic) == ((8, 1, 4), 256, ())


def test_what_is_known_needs_no_divisors_unless_it_begins_anywhere(graph: GraphLowering) -> None:
    written = layout((4, 6), (24, 1), 32, CUDA)
    node = given("x", written)
    with gpu.installed():
        assert operand(node, CUDA).divisors == ()
        graph.unaligned_buffers.add("x")
        assert operand(node, CUDA).divisors == (8, 1, 1)
        assert operand(given("y", written), CUDA).divisors == ()
        rows = given("x", layout((4, 6), (16 * extent(4), 1), 32, CUDA))
        assert operand(rows, CUDA).divisors == (16, 1, 1)
    assert operand(given("x", layout((4, 6), (24, 1), 32))).divisors == ()


def test_strides_that_depend_on_sizes_are_named_and_have_the_values_they_are_measured_at() -> None:
    rows = extent(48)
    node = given("x", layout((2, rows, 6), (6 * rows, 6, 1)))
    assert operand(node) == Operand((2, 48, 6), (288, 6, 1), "float32", "cpu", symbolic=(0,))
    assert layout_operand(layout((6, rows), (1, rows))).symbolic == (1,)


def test_every_unknown_extent_of_an_input_has_the_class_of_its_size() -> None:
    rows, inner = extent(48), extent(16, "inner")
    a = given("a", layout((rows, inner), (inner, 1)))
    b = given("b", layout((inner, 8), (8, 1)))
    wide = given("c", layout((1, rows + 17), (rows + 17, 1)))
    problem = problem_of("mm", [a, b, wide], layout((rows, 8), (8, 1)), ())
    assert problem.dynamic == (
        SizeClass(0, 0, 33, 64, 48),
        SizeClass(0, 1, 16, 16, 16),
        SizeClass(1, 0, 16, 16, 16),
        SizeClass(2, 1, 65, 128, 65),
    )
    assert problem.output == Operand((48, 8), (8, 1), "float32", "cpu")


def test_two_sizes_of_a_class_have_one_key_and_the_next_class_another() -> None:
    def key(hint: int) -> dict[str, Any]:
        rows = extent(hint, f"rows{hint}")
        a = given("a", layout((rows, 6), (6, 1)))
        b = given("b", layout((2, rows, 6), (6 * rows, 6, 1)))
        return problem_of("mm", [a, b], layout((rows, 8), (8, 1)), ()).fields()

    assert key(33) == key(64)
    assert key(33) != key(65)


def test_the_target_of_a_call_is_the_gpu_it_is_lowered_for() -> None:
    with gpu.installed():
        target = problem_of("mm", [], layout((4, 8), (8, 1), device=CUDA), ()).target
        assert target == known_target(CUDA)
    assert target is not None
    assert (target.name, target.arch) == ("H100", "sm_90a")
    assert target_of(CPU) is None


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (None, "cpu"),
        (CPU, "cpu"),
        (torch.device("cpu", 0), "cpu"),
        (torch.device("cuda"), "cuda:0"),
        (torch.device("cuda", 1), "cuda:1"),
        (torch.device("xpu", 2), "xpu:2"),
    ],
)
def test_a_device_is_named_with_its_index_unless_it_is_the_host(
    device: torch.device | None, text: str
) -> None:
    assert device_text(device) == text
