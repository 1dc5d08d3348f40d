"""Epilogues as lines of Python: the same numbers, and compiled the same epilogue again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor_plugin.ops.epilogue_eval import OPERATIONS, evaluate
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import ParsedEpilogue, dump, load
from inductor_plugin.repro.call import Call
from inductor_plugin.repro.epilogue import FUNCTIONS, INFIX, with_epilogue
from inductor_plugin.repro.operand import Made
from tests.support.epilogue_graphs import Shape, lowered
from tests.support.epilogues import CASES, MORE, K, M, N

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

ALL = {one.name: one for one in (*CASES, *MORE)}
MM = Call("torch.mm(a, b)", ("a", "b"))
FACTORS = (Shape((M, K), torch.float32), Shape((K, N), torch.float32))


def made(shape: Shape) -> Made:
    stride = shape.stride or torch.empty(shape.size, device="meta").stride()
    dtype = str(shape.dtype).removeprefix("torch.")
    return Made(shape.size, tuple(stride), 0, dtype, "cpu", constant=False, opaque="")


def function(call: Call, lines: Sequence[str]) -> Callable[..., Any]:
    """Return a function with the lines of a call, without what else reads the product."""
    whole = [f"product = {call.body}", *lines[:-1], lines[-1].removesuffix(", product")]
    text = "\n    ".join([f"def call({', '.join(call.names)}):", *whole])
    names: dict[str, Any] = {"torch": torch, "WIDE": torch.float64}
    exec(text, names)

    def listed(*given: Any) -> Any:
        out = names["call"](*given)
        return out if isinstance(out, tuple) else (out,)

    return listed


def written(name: str, dtype: torch.dtype) -> tuple[Epilogue, Call, list[Shape]]:
    """Return a case as Inductor has it, as it is written from its note, and the shapes of all operands."""
    case = ALL[name]
    graph, shapes = case.graph(dtype)
    epilogue, traced = lowered(graph, shapes, case.readers)
    inputs = [one.name for one in traced.graph.nodes if one.op == "placeholder"]
    # The operands of a problem are in the order in which the epilogue reads them.
    read = dict.fromkeys(one.buffer for one in epilogue.reads)
    order = [*shapes[:2], *(shapes[inputs.index(one)] for one in read)]
    told = load(dump(epilogue, [(M, N)] * len(epilogue.writes)))
    call = with_epilogue(MM, [made(one) for one in order], told)
    assert isinstance(call, Call), call
    return epilogue, call, order


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_the_lines_become_the_same_epilogue_again(name: str, dtype: torch.dtype) -> None:
    epilogue, call, shapes = written(name, dtype)
    again, _ = lowered(function(call, call.lines), shapes, ALL[name].readers)
    assert again.steps == epilogue.steps
    assert again.signature == epilogue.signature


@pytest.mark.parametrize("name", ALL)
def test_the_lines_compute_what_the_epilogue_does(name: str) -> None:
    epilogue, call, shapes = written(name, torch.float32)
    torch.manual_seed(5)
    a, b = torch.randn(M, K) / 8, torch.randn(K, N)
    operands = [torch.randn(one.size).abs() + 0.5 for one in shapes[2:]]
    wanted = evaluate(epilogue, a @ b, operands)
    found = function(call, call.lines)(a, b, *operands)
    assert [one.dtype for one in found] == [one.dtype for one in wanted]
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), two.float(), rtol=1e-5, atol=1e-6)
    wide = [one.double() for one in (a, b, *operands)]
    for one, two in zip(function(call, call.exact_lines)(*wide), wanted, strict=True):
        assert one.dtype == torch.float64
        off = (one - two.double()).abs()
        # What is rounded to whole numbers, or to a few bits, may fall on either side.
        coarse = call.jumps or call.outputs[0].startswith("float8")
        assert off.max() <= (1 if coarse else 2e-4 * one.abs().max())
        assert off.mean() <= 1e-4 * one.abs().max()


def test_exact_results_are_not_rounded_on_the_way() -> None:
    _, call, _ = written("gelu", torch.bfloat16)
    assert any("torch.bfloat16" in line for line in call.lines)
    assert not any("torch." in line and ".to(torch." in line for line in call.exact_lines)
    _, call, _ = written("int8", torch.bfloat16)
    assert any(".to(torch.int8)" in line for line in call.exact_lines)
    assert call.jumps
    assert call.outputs == ("int8",)


def test_whatever_is_computed_elsewhere_can_be_written() -> None:
    assert set(OPERATIONS) <= {*INFIX, *FUNCTIONS}
    assert all(hasattr(torch, one) for one in FUNCTIONS)


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
    found = with_epilogue(MM, [made(one) for one in FACTORS], ParsedEpilogue(epilogue, sizes))
    assert isinstance(found, str)
    assert reason in found


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
        call = with_epilogue(
            MM, [made(one) for one in FACTORS], ParsedEpilogue(epilogue, ((M, N),))
        )
        assert isinstance(call, Call)
        a, b = torch.randn(M, K), torch.randn(K, N)
        (found,) = function(call, call.lines)(a, b)
        (wanted,) = evaluate(epilogue, a @ b, [])
        torch.testing.assert_close(found, wanted)
        again, _ = lowered(function(call, call.lines), FACTORS)
        done = [one for one in again.steps if one.op not in ("product", "constant", "store")]
        assert (done[0].op == op) or op in ("truediv", "lt")
