"""Which epilogues can be computed again, and as which views."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import ParsedEpilogue
from inductor_plugin.problem.epilogue_views import NotReplayableError, OperandRead, Write, plan

M, N = 6, 8


def chain(*steps: Step, **facts: Any) -> Epilogue:
    every = (Step("product"), *steps)
    access = Access("full", "float32", M * N, (N, 1))
    whole = Epilogue((M, N), "float32", (*every, Step("store", (len(steps),), 0)), (), (access,))
    return replace(whole, **facts)


@pytest.mark.parametrize(
    ("epilogue", "reason"),
    [
        (chain(reduction="sum"), "reduces (sum)"),
        (chain(atomic=True), "changes a tensor"),
        (chain(mutates=True), "changes a tensor"),
        (chain(product="other"), "another order"),
        (chain(writes=()), "writes nothing"),
        (chain(reads=(Access("other", "float32", 1, buffer="x"),)), "a gather"),
        (chain(Step("masked_subblock", (0,))), "cannot compute the step 'masked_subblock'"),
        (chain(Step("to_dtype_rounded", (0,), "bfloat16")), "emulate_precision_casts"),
        (chain(Step("constant", (), "s0")), "the number s0"),
    ],
)
def test_what_cannot_be_computed_again_is_refused(epilogue: Epilogue, reason: str) -> None:
    sizes = ((M, N),) * len(epilogue.writes)
    with pytest.raises(ValueError, match=re.escape(reason)):
        plan(ParsedEpilogue(epilogue, sizes), [])


def test_strides_that_may_be_unknown_are_those_of_the_operand() -> None:
    reads = (
        Access("row", "float32", N, (0, 1), 0, "operand0"),
        Access("full", "float32", 48, (16, 1), 8, "operand1"),
    )
    operands = [
        {"size": (N,), "stride": (1,), "offset": 0},
        {"size": (M, 16), "stride": (16, 1), "offset": 0},
    ]
    views = plan(ParsedEpilogue(chain(reads=reads), ((M, N),)), operands)
    assert views.reads == (OperandRead(0, None, 0), OperandRead(1, ((0, 16), (-1, 1)), 8))


@pytest.mark.parametrize(
    ("along", "size", "write"),
    [
        ((8, 1), (6, 8), Write((), ())),
        ((1, 6), (6, 8), Write((), ())),
        ((1, 6), (8, 6), Write((1, 0), ())),
        ((1, 6), (2, 4, 6), Write((1, 0), (2, 4, 6))),
        ((8, 1), (2, 3, 8), Write((), (2, 3, 8))),
        ((16, 1), (6, 16), None),
        ((8, 1), (8, 6), None),  # turned, or a view?
        ((8, 1), (6, 9), None),
        ((8, 1), (3, 2, 4), None),
        ((8, 1), (4, 12), Write((), (4, 12))),  # a view, which is no split
    ],
)
def test_a_result_is_turned_or_split_or_refused(
    along: tuple[int, ...], size: tuple[int, ...], write: Write | None
) -> None:
    recorded = ParsedEpilogue(chain(writes=(Access("full", "float32", 48, along),)), (size,))
    if write is None:
        with pytest.raises(ValueError, match="no turned or split product"):
            plan(recorded, [])
        return
    views = plan(recorded, [])
    assert views.writes == (write,)
    assert views.shape == ((2, 3, 8) if size == (2, 3, 8) else ())


def test_a_result_behind_the_first_element_is_refused() -> None:
    """Two products may write halves of one tensor."""
    access = Access("full", "float32", 48, (8, 1), 8)
    with pytest.raises(NotReplayableError, match="no turned or split product"):
        plan(ParsedEpilogue(chain(writes=(access,)), ((6, 8),)), [])


def test_an_operand_read_from_another_element_on_is_no_plain_one() -> None:
    reads = (
        Access("row", "float32", N, (0, 1), 3, "operand0"),
        Access("row", "float32", N, (0, 1), 3, "operand1"),
    )
    operands = [
        {"size": (N,), "stride": (1,), "offset": 0},
        {"size": (N,), "stride": (1,), "offset": 3},
    ]
    views = plan(ParsedEpilogue(chain(reads=reads), ((M, N),)), operands)
    assert views.reads == (OperandRead(0, ((-1, 0), (-1, 1)), 3), OperandRead(1, None, 0))


def test_a_stride_that_no_dimension_of_the_operand_has_is_a_number() -> None:
    reads = (Access("full", "float32", 48, (32, 2), 0, "operand0"),)
    operands = [{"size": (M, 16), "stride": (16, 2), "offset": 0}]
    views = plan(ParsedEpilogue(chain(reads=reads), ((M, N),)), operands)
    assert views.reads == (OperandRead(0, ((-1, 32), (1, 2)), 0),)
