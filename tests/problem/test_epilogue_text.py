"""An epilogue as the note of a record: nothing is lost on the way there and back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import decode, dump, encode, load

EPILOGUE = Epilogue(
    size=(4, 8),
    dtype="bfloat16",
    steps=(
        Step("product"),
        Step("load", (), 0),
        Step("to_dtype", (1,), "float32"),
        Step("add", (0, 2)),
        Step("constant", (), 0.1),
        Step("maximum", (3, 4)),
        Step("store", (5,), 0),
        Step("load", (), 1),
        Step("where", (7, 3, 5)),
        Step("store", (8,), 1),
    ),
    reads=(
        Access("row", "bfloat16", 8, (0, 1), 3, "operand0"),
        Access("full", "bool", 32, (1, 4), 0, "operand1", dynamic=True),
    ),
    writes=(Access("full", "bfloat16", 32, (8, 1)), Access("full", "bfloat16", 32, (8, 1))),
    readers=2,
)
SIZES = ((4, 8), (2, 2, 8))


def test_a_note_is_read_as_it_was_written() -> None:
    for epilogue in (
        EPILOGUE,
        replace(EPILOGUE, reduction="sum", product="other"),
        replace(EPILOGUE, atomic=True),
        replace(EPILOGUE, mutates=True, readers=0, reads=(), size=(2, 4, 8)),
    ):
        loaded = load(dump(epilogue, SIZES))
        assert loaded.epilogue == epilogue
        assert loaded.sizes == SIZES
        assert loaded.epilogue.signature == epilogue.signature


def test_buffers_are_called_by_their_place() -> None:
    """Two reads of one buffer are of one operand, whatever the graph calls it."""
    first, second = EPILOGUE.reads
    reads = tuple(
        replace(access, buffer=name)
        for access, name in ((second, "buf9"), (first, "x"), (second, "x"))
    )
    loaded = load(dump(replace(EPILOGUE, reads=reads), SIZES))
    assert [read.buffer for read in loaded.epilogue.reads] == ["operand0", "operand1", "operand1"]


def test_a_note_is_for_people() -> None:
    lines = dump(EPILOGUE, SIZES)
    assert lines["version"] == "1"
    assert lines["product"] == "bfloat16 full size=4,8 readers=2"
    assert lines["read 0"] == "bfloat16 row operand=0 elements=8 stride=0,1 offset=3"
    assert lines["write 1"] == "bfloat16 full size=2,2,8 elements=32 stride=8,1 offset=0"
    assert lines["step 2"] == "to_dtype 1 = float32"
    assert lines["step 5"] == "maximum 3 4"


@pytest.mark.parametrize("value", [0.1, -2, 448.0, True, False, math.inf, -math.inf, "s0 + 1"])
def test_constants_keep_their_value_and_their_kind(value: float | str) -> None:
    changed = replace(EPILOGUE, steps=(Step("constant", (), value),))
    constant = load(dump(changed, SIZES)).epilogue.steps[0].value
    assert (constant, type(constant)) == (value, type(value))


def test_what_cannot_be_read_is_said() -> None:
    lines = dump(EPILOGUE, SIZES)
    with pytest.raises(ValueError, match="noted in form '2', not 1"):
        load({**lines, "version": "2"})
    del lines["step 3"]
    with pytest.raises(ValueError, match="lacks 'step 3'"):
        load(lines)
    with pytest.raises(ValueError, match="lacks 'product'"):
        load({"version": "1"})


@pytest.mark.parametrize("value", [0.1, -2, True, math.inf, -math.inf])
def test_constants_keep_their_value_in_json_without_its_extensions(value: float) -> None:
    steps = (Step("product"), Step("constant", (), value), Step("to_dtype", (1,), "float32"))
    text = encode(replace(EPILOGUE, steps=steps))
    assert "Infinity" not in text
    assert [step.value for step in decode(text).steps] == [None, value, "float32"]
