from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.problem.epilogue import Access, Epilogue, Pattern, Step, pattern_of

FULL = Access("full", "bfloat16", 256 * 512, (512, 1), buffer="gate")
ROW = Access("row", "bfloat16", 512, (0, 1), buffer="bias")
OUT = Access("full", "float8_e4m3fn", 256 * 512, (512, 1), buffer="out")

GATED = Epilogue(
    size=(256, 512),
    dtype="bfloat16",
    steps=(
        Step("product"),
        Step("load", (), 0),
        Step("add", (0, 1)),
        Step("relu", (2,)),
        Step("load", (), 1),
        Step("mul", (3, 4)),
        Step("to_dtype", (5,), "float8_e4m3fn"),
        Step("store", (6,), 0),
    ),
    reads=(ROW, FULL),
    writes=(OUT,),
)
"""relu(a @ b + bias) * gate, as fp8."""


def with_read(number: int, **more: Any) -> Epilogue:
    reads = list(GATED.reads)
    reads[number] = replace(reads[number], **more)
    return replace(GATED, reads=tuple(reads))


def with_write(**more: Any) -> Epilogue:
    return replace(GATED, writes=(replace(OUT, **more),))


@pytest.mark.parametrize(
    ("stride", "size", "pattern"),
    [
        ((512, 1), (256, 512), "full"),
        ((1, 256), (256, 512), "full"),
        ((7, 3), (256, 512), "full"),
        ((0, 1), (256, 512), "row"),
        ((0, 2), (256, 512), "row"),
        ((1, 0), (256, 512), "column"),
        ((0, 0), (256, 512), "scalar"),
        # A stride along a dimension of one element moves nothing.
        ((512, 1), (1, 512), "row"),
        ((1, 1), (256, 1), "column"),
        ((9, 9), (1, 1), "scalar"),
        ((256 * 512, 512, 1), (4, 256, 512), "full"),
        ((0, 512, 1), (4, 256, 512), "full"),
        ((512, 0, 1), (4, 256, 512), "row"),
        ((256, 1, 0), (4, 256, 512), "column"),
        ((0, 0, 0), (4, 256, 512), "scalar"),
        # One number for each batch is none of them.
        ((1, 0, 0), (4, 256, 512), "other"),
        ((1, 0, 0), (1, 256, 512), "scalar"),
        ((1,), (512,), "other"),
        ((), (), "other"),
    ],
)
def test_pattern_of(stride: tuple[int, ...], size: tuple[int, ...], pattern: Pattern) -> None:
    assert pattern_of(stride, size) == pattern


def test_a_pattern_wants_one_stride_for_each_dimension() -> None:
    with pytest.raises(ValueError, match=r"longer|shorter"):
        pattern_of((1,), (256, 512))


@pytest.mark.parametrize(
    "same",
    [
        pytest.param(replace(GATED, size=(64, 512)), id="rows"),
        pytest.param(replace(GATED, size=(256, 1024)), id="columns"),
        pytest.param(with_read(0, buffer="another"), id="name of an operand"),
        pytest.param(with_read(0, elements=1024), id="elements of an operand"),
        pytest.param(with_write(buffer="another"), id="name of an output"),
        pytest.param(with_read(1, stride=(1024, 1)), id="another row length, as well aligned"),
        pytest.param(with_read(1, offset=64), id="another offset, as well aligned"),
    ],
)
def test_the_signature_is_independent_of_names_and_sizes(same: Epilogue) -> None:
    assert same != GATED
    assert same.signature == GATED.signature


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(GATED, dtype="float16"), id="dtype of the product"),
        pytest.param(replace(GATED, readers=1), id="other readers"),
        pytest.param(replace(GATED, reduction="sum"), id="reduction"),
        pytest.param(replace(GATED, product="other"), id="view of the product"),
        pytest.param(replace(GATED, atomic=True), id="atomic add"),
        pytest.param(replace(GATED, mutates=True), id="mutation"),
        pytest.param(replace(GATED, position="prologue"), id="prologue"),
        pytest.param(
            replace(GATED, steps=(*GATED.steps[:3], Step("sigmoid", (2,)), *GATED.steps[4:])),
            id="operation",
        ),
        pytest.param(
            replace(GATED, steps=(*GATED.steps[:5], Step("mul", (3, 3)), *GATED.steps[6:])),
            id="arguments",
        ),
        pytest.param(
            replace(
                GATED,
                steps=(*GATED.steps[:6], Step("to_dtype", (5,), "float8_e5m2"), GATED.steps[7]),
            ),
            id="value of a step",
        ),
        pytest.param(replace(GATED, reads=(ROW,)), id="number of operands"),
        pytest.param(replace(GATED, reads=(FULL, ROW)), id="order of operands"),
        pytest.param(with_read(0, pattern="column"), id="pattern"),
        pytest.param(with_read(0, dtype="float32"), id="dtype of an operand"),
        pytest.param(with_read(1, stride=(1, 256)), id="transposed operand"),
        pytest.param(with_read(1, stride=(513, 1)), id="alignment of rows"),
        pytest.param(with_read(1, offset=1), id="alignment of the first element"),
        pytest.param(with_read(1, dynamic=True), id="strides of run time"),
        pytest.param(with_write(dtype="int8"), id="dtype of an output"),
        pytest.param(with_write(stride=(1, 256)), id="transposed output"),
        pytest.param(with_write(pattern="other", stride=()), id="pattern of an output"),
    ],
)
def test_the_signature_tells_apart(other: Epilogue) -> None:
    assert other.signature != GATED.signature


def test_every_field_has_a_say() -> None:
    """A field that is added needs a line in one of the two lists above."""
    assert set(Epilogue.__dataclass_fields__) == {
        "size", "dtype", "steps", "reads", "writes", "readers", "reduction", "product", "atomic",
        "mutates", "position",
    }  # fmt: skip
    assert set(Access.__dataclass_fields__) == {
        "pattern", "dtype", "elements", "stride", "offset", "buffer", "dynamic",
    }  # fmt: skip


def test_the_signature_is_that_of_records_of_version_0_1() -> None:
    """It is what commit 53e12c1 computes: with another one, all records of fused products are unknown."""
    assert GATED.signature == "add.relu.mul-477ea68c0080"


def test_the_signature_begins_with_the_operations() -> None:
    assert GATED.operations == ("add", "relu", "mul", "to_dtype")
    head, _, digest = GATED.signature.rpartition("-")
    assert head == "add.relu.mul"
    assert re.fullmatch(r"[0-9a-f]{12}", digest)
    many = replace(GATED, steps=(Step("product"), *[Step("neg", (0,))] * 20))
    assert many.signature.rpartition("-")[0] == ".".join(["neg"] * 8)
    copied = replace(GATED, steps=(Step("product"), Step("store", (0,), 0)))
    assert copied.signature.startswith("copy-")


def test_bytes() -> None:
    product, gate, bias, out = 256 * 512 * 2, 256 * 512 * 2, 512 * 2, 256 * 512
    assert GATED.elements == 256 * 512
    assert GATED.product_bytes == product
    assert [access.bytes for access in GATED.reads] == [bias, gate]
    assert [access.bytes for access in GATED.writes] == [out]


@pytest.mark.parametrize(
    "dtype",
    [
        *(
            "bool",
            "uint8",
            "int8",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e8m0fnu",
        ),
        *(
            "float16",
            "bfloat16",
            "int16",
            "uint16",
            "float32",
            "int32",
            "uint32",
            "float64",
            "int64",
        ),
        *("complex64", "complex128"),
    ],
)
def test_bytes_of_an_element_are_those_of_torch(dtype: str) -> None:
    import torch

    size = getattr(torch, dtype).itemsize
    assert Access("full", dtype, 10).bytes == 10 * size
    assert replace(GATED, dtype=dtype).product_bytes == size * GATED.elements


def test_describe() -> None:
    assert GATED.describe() == "to_dtype(mul(relu(add(product, row)), full), float8_e4m3fn)"
    doubled = replace(
        GATED,
        steps=(
            Step("product"),
            Step("constant", (), 2.0),
            Step("mul", (0, 1)),
            Step("store", (2,), 0),
        ),
    )
    assert doubled.describe() == "mul(product, 2.0)"


def test_describe_without_a_store_says_the_last_step() -> None:
    assert replace(GATED, steps=GATED.steps[:4], writes=()).describe() == "relu(add(product, row))"


def test_describe_ends_at_some_depth() -> None:
    steps = [Step("product"), *(Step("neg", (place,)) for place in range(30))]
    text = replace(GATED, steps=tuple(steps)).describe()
    assert text.count("neg(") == 12
    assert "(...)" in text


def test_what_is_computed_twice_is_computed_once_and_stored_as_often() -> None:
    steps = (
        Step("product"),
        Step("to_dtype", (0,), "float32"),
        Step("relu", (1,)),
        Step("relu", (0,)),
        Step("to_dtype", (2,), "int8"),
        Step("add", (2, 3)),
        Step("store", (5,), 0),
        Step("store", (5,), 0),
    )
    assert Epilogue((4, 8), "float32", steps).merged.steps == (
        Step("product"),
        Step("relu", (0,)),
        Step("to_dtype", (1,), "int8"),
        Step("add", (1, 1)),
        Step("store", (3,), 0),
        Step("store", (3,), 0),
    )
