"""What no tree of visitors computes: each is refused with its reason, or split off."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.templates.cutlass.evt import MAX_NODES, Evt, Node, Output, evt_of
from inductor_plugin.templates.cutlass.functor import bounds, literal

M, N = 256, 512
FULL = Access("full", "bfloat16", M * N, (N, 1))
ROW = Access("row", "bfloat16", N, (0, 1))
PRODUCT = Step("product")


def chain(*steps: Step, reads: tuple[Access, ...] = (), write: Access = FULL) -> Epilogue:
    """Return an epilogue of these steps behind the product, that stores the last of them."""
    every = (PRODUCT, *steps)
    store = Step("store", (len(every) - 1,), 0)
    return Epilogue((M, N), "bfloat16", (*every, store), reads, (write,))


RELU = chain(Step("relu", (0,)))
ADDED = chain(Step("load", (), 0), Step("add", (0, 1)), reads=(FULL,))


def reason(epilogue: Epilogue) -> str:
    tree = evt_of(epilogue)
    assert isinstance(tree, str), tree
    return tree


@pytest.mark.parametrize(
    ("epilogue", "message"),
    [
        (replace(RELU, position="prologue"), "before the product"),
        (replace(RELU, reduction="sum"), "it reduces"),
        (replace(RELU, atomic=True), "adds atomically"),
        (replace(RELU, mutates=True), "changes a tensor"),
        (replace(RELU, product="other"), "through a view"),
        (replace(RELU, writes=()), "writes nothing"),
        (replace(RELU, dtype="float64"), "the product is float64"),
        (replace(RELU, writes=(replace(FULL, pattern="row", stride=(0, 1)),)), "as large as D"),
        (replace(RELU, writes=(replace(FULL, dtype="int64"),)), "an output is int64"),
        (replace(RELU, writes=(replace(FULL, stride=(1, M)),)), "rows must be contiguous"),
        (replace(RELU, writes=(replace(FULL, stride=(N + 4, 1)),)), "multiples of 16 bytes"),
        (replace(RELU, writes=(FULL, FULL)), "never stored"),
        (chain(Step("relu", (0,)), write=replace(FULL, dtype="int8")), "what it stores as int8"),
        (replace(ADDED, reads=(replace(FULL, pattern="other", stride=()),)), "row by row"),
        (replace(ADDED, reads=(replace(FULL, stride=(1, M)),)), "rows must be contiguous"),
        (replace(ADDED, reads=(replace(FULL, offset=4),)), "offset 4"),
        (replace(ADDED, reads=(replace(FULL, dtype="bool"),)), "an operand is bool"),
        (replace(ADDED, reads=(replace(FULL, dtype="int64"),)), "an operand is int64"),
        (replace(ADDED, reads=(replace(FULL, dtype="float8_e5m2"),)), "an operand is float8_e5m2"),
        (replace(ADDED, reads=(replace(ROW, stride=(0, 2)),)), "rows must be contiguous"),
        (
            replace(ADDED, reads=(Access("column", "bfloat16", M, (2, 0)),)),
            "one column must be contiguous",
        ),
        (chain(Step("lgamma", (0,))), "no visitor computes lgamma"),
        (chain(Step("number", (0,))), "no visitor computes number"),
        (chain(Step("relu", (0, 0))), "arguments nothing is known of"),
        (chain(Step("relu", (0,), "fast")), "arguments nothing is known of"),
        (chain(Step("constant", (), "s0")), "a constant is no number"),
        (chain(Step("gt", (0, 0))), "what it stores as bfloat16 is truth"),
        (chain(Step("gt", (0, 0)), Step("relu", (1,))), "computes relu of truth"),
        (chain(Step("where", (0, 0, 0))), "computes where of number"),
        (chain(Step("to_dtype", (0,), "int32")), "it converts to int32"),
        (chain(Step("to_dtype", (0,), "float64")), "it converts to float64"),
        (chain(Step("to_dtype", (0,), "int8"), write=replace(FULL, dtype="int8")), "clamped"),
        (replace(RELU, dtype="int32"), "computes relu of whole"),
        (replace(RELU, dtype="int32", readers=1), "computes relu of whole"),
    ],
)
def test_what_does_not_fit_is_refused(epilogue: Epilogue, message: str) -> None:
    assert message in reason(epilogue)


def test_too_much_is_refused() -> None:
    many = tuple(Step("load", (), place) for place in range(4))
    sums = tuple(Step("add", (place + 1, place + 2)) for place in range(3))
    steps = (*many, Step("add", (1, 2)), Step("add", (5, 3)), Step("add", (6, 4)))
    assert len(sums) == 3
    assert "4 operands as large as D, a kernel takes 3" in reason(chain(*steps, reads=(FULL,) * 4))
    rows = [Step("load", (), place) for place in range(9)]
    epilogue = chain(*rows, Step("add", (0, 9)), reads=(ROW,) * 9)
    assert "9 operands and further outputs, a kernel takes 8" in reason(epilogue)
    long = [Step("add", (place, place)) for place in range(MAX_NODES)]
    assert f"a kernel takes {MAX_NODES}" in reason(chain(*long))
    stores = (PRODUCT, *(Step("store", (0,), place) for place in range(4)))
    assert "3 outputs besides D" in reason(Epilogue((M, N), "bfloat16", stores, (), (FULL,) * 4))


@pytest.mark.parametrize(
    ("dtype", "low", "high", "fits"),
    [
        ("int8", -128, 127, True),
        ("int8", -129, 127, False),
        ("int8", -128, 128, False),
        ("float8_e4m3fn", -448, 448, True),
        ("float8_e4m3fn", -448, 449, False),
        ("float8_e5m2", -57344, 57344, True),
        ("float8_e5m2", -1e9, 57344, False),
    ],
)
def test_a_narrow_type_wants_a_clamp_that_keeps_torchs_numbers(
    dtype: str, low: float, high: float, fits: bool
) -> None:
    write = replace(FULL, dtype=dtype)
    clamped = chain(
        Step("constant", (), low),
        Step("maximum", (0, 1)),
        Step("constant", (), high),
        Step("minimum", (2, 3)),
        Step("to_dtype", (4,), "bfloat16"),
        Step("to_dtype", (5,), dtype),
        write=write,
    )
    assert isinstance(evt_of(clamped), Evt) == fits
    again = replace(
        clamped, steps=(*clamped.steps[:-1], Step("relu", (6,)), Step("store", (7,), 0))
    )
    if fits:
        assert f"computes relu of {dtype}" in reason(again)


def test_a_clamp_is_known_through_what_keeps_it() -> None:
    inside = [(-128.0, 127.0)]
    assert bounds("round", inside) == (-128, 127)
    assert bounds("floor", [(-127.5, 3.2)]) == (-128, 4)
    assert bounds("where", [(0, 0), (-1.0, 2.0), (-3.0, 1.0)]) == (-3, 2)
    assert bounds("relu", [(-5.0, 7.0)]) == (0, 7)
    assert bounds("sigmoid", [(-math.inf, math.inf)]) == (0, 1)
    assert bounds("add", [(0.0, 1.0), (0.0, 1.0)]) == (-math.inf, math.inf)


def test_the_same_value_is_one_node() -> None:
    steps = (Step("load", (), 0), Step("add", (0, 1)), Step("load", (), 0), Step("add", (0, 3)))
    evt = evt_of(chain(*steps, Step("mul", (2, 4)), reads=(ROW,)))
    assert isinstance(evt, Evt)
    assert [node.op for node in evt.nodes] == ["sums", "operand", "add", "mul"]
    assert evt.describe() == "mul(add(sums, row), add(sums, row))"


def test_zeros_of_both_signs_are_told_apart() -> None:
    steps = (Step("constant", (), 0.0), Step("constant", (), -0.0), Step("truediv", (1, 2)))
    evt = evt_of(chain(*steps, Step("add", (0, 3))))
    assert isinstance(evt, Evt)
    assert Node("neg", (1,)) in evt.nodes


def test_a_kernels_name_is_of_what_is_compiled_alone() -> None:
    tree, other = evt_of(ADDED), evt_of(replace(ADDED, size=(8, 8)))
    assert isinstance(tree, Evt)
    assert isinstance(other, Evt)
    assert tree == other
    assert tree.name == f"evt_add_{tree.digest}"
    moved = evt_of(replace(ADDED, reads=(replace(FULL, offset=8, buffer="b", stride=(2 * N, 1)),)))
    assert moved == tree
    different = {
        replace(tree, outputs=(Output(2, "f32"),)).digest,
        replace(tree, nodes=(*tree.nodes[:2], Node("sub", (0, 1)))).digest,
        replace(tree, operands=(replace(tree.operands[0], kind="row"),)).digest,
        tree.digest,
    }
    assert len(different) == 4


def test_others_that_read_the_product_are_given_it_before_d() -> None:
    evt = evt_of(replace(RELU, readers=2))
    assert isinstance(evt, Evt)
    assert evt.outputs == (Output(0, "bf16"), Output(1, "bf16"))
    assert evt.slots == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0f"),
        (-448.0, "(-448.0f)"),
        (0.044715, "0.0447149985f"),
        (1e-30, "1.00000000e-30f".replace(".00000000", "")),
        (math.inf, "INFINITY"),
        (-1e300, "(-INFINITY)"),
        (math.nan, "NAN"),
        (16777216.0, "16777216.0f"),
    ],
)
def test_a_constant_is_the_float32_it_is(value: float, text: str) -> None:
    assert literal(value) == text
