"""Epilogues that are replayed: the same numbers, and compiled the same epilogue again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor_plugin.ops.epilogue_eval import OPERATIONS, evaluate
from inductor_plugin.ops.epilogue_replay import SIGNS, replay
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import ParsedEpilogue, dump, load
from inductor_plugin.repro.call import Refused
from inductor_plugin.repro.epilogue import (
    REPLAYED,
    EpilogueText,
    epilogue_of,
    read_text,
    write_text,
)
from inductor_plugin.repro.operand import OperandText
from tests.support.graphs.epilogues import CASES, MORE, K, M, N
from tests.support.graphs.with_epilogues import Shape, lowered

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

ALL = {one.name: one for one in (*CASES, *MORE)}
FACTORS = (Shape((M, K), torch.float32), Shape((K, N), torch.float32))


def operand(shape: Shape) -> OperandText:
    stride = shape.stride or torch.empty(shape.size, device="meta").stride()
    dtype = str(shape.dtype).removeprefix("torch.")
    return OperandText(shape.size, tuple(stride), 0, dtype, "cpu", constant=False, opaque="")


def function(
    text: EpilogueText, recorded: ParsedEpilogue, wide: torch.dtype | None = None
) -> Callable[..., Any]:
    """Return a product with the lines of an epilogue, without what else reads the product."""
    lines = [*text.lines[:-1], text.lines[-1].removesuffix(", product")]
    code = "\n    ".join([f"def after({', '.join(('product', *text.names))}, wide=None):", *lines])
    compute = replay(dump(recorded.epilogue, recorded.sizes))
    names: dict[str, Any] = {"torch": torch, "epilogue": compute}
    exec(code, names)

    def call(a: Any, b: Any, *operands: Any) -> Any:
        out = names["after"](torch.mm(a, b), *operands, wide=wide)
        return out if isinstance(out, tuple) else (out,)

    return call


@functools.cache
def written(name: str, dtype: torch.dtype) -> tuple[ParsedEpilogue, EpilogueText, list[Shape]]:
    """Return a case as its note has it, as it is written, and the shapes of all operands."""
    case = ALL[name]
    graph, shapes = case.graph(dtype)
    epilogue, traced = lowered(graph, shapes, case.readers)
    inputs = [one.name for one in traced.graph.nodes if one.op == "placeholder"]
    # The operands of a problem are in the order in which the epilogue reads them.
    read = dict.fromkeys(one.buffer for one in epilogue.reads)
    order = [*shapes[:2], *(shapes[inputs.index(one)] for one in read)]
    told = load(dump(epilogue, [(M, N)] * len(epilogue.writes)))
    call = epilogue_of(told, [operand(one) for one in order[2:]])
    return told, call, order


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_the_lines_become_the_same_epilogue_again(name: str, dtype: torch.dtype) -> None:
    told, call, shapes = written(name, dtype)
    again, _ = lowered(function(call, told), shapes, ALL[name].readers)
    assert again.steps == told.epilogue.steps
    assert again.signature == told.epilogue.signature


@pytest.mark.parametrize("name", ALL)
def test_the_lines_compute_what_the_epilogue_does(name: str) -> None:
    told, call, shapes = written(name, torch.float32)
    torch.manual_seed(5)
    a, b = torch.randn(M, K) / 8, torch.randn(K, N)
    operands = [torch.randn(one.size).abs() + 0.5 for one in shapes[2:]]
    wanted = evaluate(told.epilogue, a @ b, operands)
    found = function(call, told)(a, b, *operands)
    assert [one.dtype for one in found] == [one.dtype for one in wanted]
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), two.float(), rtol=1e-5, atol=1e-6)
    wide = [one.double() for one in (a, b, *operands)]
    for one, two in zip(function(call, told, torch.float64)(*wide), wanted, strict=True):
        assert one.dtype == torch.float64
        off = (one - two.double()).abs()
        # What is rounded to whole numbers, or to a few bits, may fall on either side.
        coarse = call.jumps or call.outputs[0].startswith("float8")
        assert off.max() <= (1 if coarse else 2e-4 * one.abs().max())
        assert off.mean() <= 1e-4 * one.abs().max()


def test_exact_results_are_not_rounded_on_the_way() -> None:
    told, call, shapes = written("gelu", torch.bfloat16)
    given = [torch.randn(one.size, dtype=torch.float64) for one in shapes]
    (exact,) = function(call, told, torch.float64)(*given)
    assert exact.dtype == torch.float64
    assert not torch.equal(exact, exact.bfloat16().double())
    _, call, _ = written("int8", torch.bfloat16)
    assert call.jumps
    assert call.outputs == ("int8",)


def test_whatever_is_computed_elsewhere_can_be_replayed() -> None:
    assert set(OPERATIONS) <= REPLAYED
    assert all(one in SIGNS or one == "to_dtype" or hasattr(torch, one) for one in REPLAYED)


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
        (chain(Step("masked_subblock", (0,))), "cannot write the step 'masked_subblock'"),
        (chain(Step("to_dtype_rounded", (0,), "bfloat16")), "emulate_precision_casts"),
        (chain(Step("constant", (), "s0")), "the number s0"),
    ],
)
def test_what_no_line_says_is_refused(epilogue: Epilogue, reason: str) -> None:
    sizes = ((M, N),) * len(epilogue.writes)
    with pytest.raises(Refused) as refused:
        epilogue_of(ParsedEpilogue(epilogue, sizes), [])
    assert reason in str(refused.value)


def test_numbers_stand_where_a_call_takes_none() -> None:
    """Python would turn a sum round; a function of two tensors takes no number in front."""
    for op, values in (
        ("add", (1, 0)),
        ("sub", (1, 0)),
        ("truediv", (1, 0)),
        ("maximum", (1, 0)),
        ("minimum", (0, 1)),
        ("lt", (1, 0)),
    ):
        epilogue = chain(Step("constant", (), 0.5), Step(op, values))
        told = ParsedEpilogue(epilogue, ((M, N),))
        call = epilogue_of(told, [])
        a, b = torch.randn(M, K), torch.randn(K, N)
        (found,) = function(call, told)(a, b)
        (wanted,) = evaluate(epilogue, a @ b, [])
        torch.testing.assert_close(found, wanted)
        again, _ = lowered(function(call, told), FACTORS)
        done = [one for one in again.steps if one.op not in ("product", "constant", "store")]
        assert (done[0].op == op) or op in ("truediv", "lt")


PRODUCT = (6, 8)


@pytest.mark.parametrize(
    ("size", "stride", "read", "offset", "text"),
    [
        ((8,), (1,), (0, 1), 0, "x"),
        ((), (), (0, 0), 0, "x"),
        ((6, 8), (16, 1), (16, 1), 0, "x"),
        ((6,), (1,), (1, 0), 0, "torch.as_strided(x, product.shape, (1, 0), 0)"),
        ((8, 6), (6, 1), (1, 6), 0, "torch.as_strided(x, product.shape, (1, x.stride(0)), 0)"),
        ((6, 16), (16, 1), (16, 1), 8, "torch.as_strided(x, product.shape, (x.stride(0), 1), 8)"),
        (
            (2, 3, 8),
            (24, 8, 1),
            (8, 1),
            0,
            "torch.as_strided(x, product.shape, (x.stride(1), 1), 0)",
        ),
    ],
)
def test_an_operand_is_read_where_the_epilogue_reads_it(
    size: tuple[int, ...], stride: tuple[int, ...], read: tuple[int, ...], offset: int, text: str
) -> None:
    operand = OperandText(size, stride, 0, "float32", "cpu", constant=False, opaque="")
    assert read_text("x", operand, PRODUCT, Access("full", "float32", 48, read, offset)) == text
    flat = torch.arange(operand.fields("x", 1)["elements"], dtype=torch.float32)
    names = {"torch": torch, "x": torch.as_strided(flat, size, stride)}
    names["product"] = torch.empty(PRODUCT)
    wanted = torch.as_strided(flat, PRODUCT, read, offset)
    assert torch.equal(torch.broadcast_to(eval(text, names), PRODUCT), wanted)


@pytest.mark.parametrize(
    ("along", "size", "text"),
    [
        ((8, 1), (6, 8), ""),
        ((1, 6), (6, 8), ""),
        ((1, 6), (8, 6), ".permute(1, 0).contiguous()"),
        ((1, 6), (2, 4, 6), ".permute(1, 0).contiguous().view(-1, 4, 6)"),
        ((8, 1), (2, 3, 8), ".view(-1, 3, 8)"),
        ((8, 1), (48,), ".view(-1)"),
        ((16, 1), (6, 16), None),
        ((8, 1), (8, 6), None),  # turned, or a view?
    ],
)
def test_a_result_is_turned_as_it_lies(
    along: tuple[int, ...], size: tuple[int, ...], text: str | None
) -> None:
    assert write_text(PRODUCT, along, size) == text
    if text:
        value = torch.arange(math.prod(PRODUCT)).view(PRODUCT)
        turned = eval(f"value{text}", {"value": value})
        assert tuple(turned.shape) == size
        # Where element [m, n] must be: at the strides along the product.
        assert torch.equal(torch.as_strided(turned, PRODUCT, along), value)
