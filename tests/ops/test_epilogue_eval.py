"""Epilogues evaluated with torch, against the eager functions they come from."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from inductor_plugin.ops.epilogue_eval import _ROUNDED, OPERATIONS, evaluate
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import decode, encode
from inductor_plugin.templates.cutlass import evt
from inductor_plugin.templates.cutlass.functor import FUNCTORS
from tests.support.graphs.epilogues import CASES, MORE, M, N, eager, epilogue_of

ALL = {case.name: case for case in (*CASES, *MORE)}
FULL = Access("full", "float32", M * N, (N, 1))
PRODUCT = Step("product")


def chain(*steps: Step, reads: tuple[Access, ...] = (), dtype: str = "float32") -> Epilogue:
    """Return an epilogue of these steps behind the product, that stores the last of them."""
    every = (PRODUCT, *steps)
    store = Step("store", (len(every) - 1,), 0)
    write = Access("full", dtype, M * N, (N, 1))
    return Epilogue((M, N), "float32", (*every, store), reads, (write,))


SPECIAL = (
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-30,
    -1e-30,
    3e4,
    -3e4,
    88.0,
    -88.0,
    2.5,
    -3.5,
)


@pytest.mark.parametrize("name", ALL)
def test_an_epilogue_gives_what_eager_does(name: str) -> None:
    case = ALL[name]
    epilogue = epilogue_of(case, torch.float32)
    torch.manual_seed(3)
    product = 4 * torch.randn(M, N)
    product[0, : len(SPECIAL)] = torch.tensor(SPECIAL)
    if any(write.dtype == "int8" for write in epilogue.writes):
        product = product.nan_to_num(nan=1.0)  # torch defines no int8 of NaN
    operands = [torch.randn(shape.size).abs() + 0.5 for shape in case.shapes(torch.float32)]
    actual = evaluate(decode(encode(epilogue)), product, operands)
    wanted = eager(case, product, operands)
    assert len(actual) == len(wanted)
    for result, expected in zip(actual, wanted, strict=True):
        assert result.dtype == expected.dtype
        torch.testing.assert_close(
            result.float(), expected.float(), rtol=1e-5, atol=4e-6, equal_nan=True
        )


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("relu", F.relu),
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
        ("exp", torch.exp),
        ("erf", torch.erf),
        ("round", torch.round),
        ("trunc", torch.trunc),
    ],
)
def test_special_values_are_those_of_eager(op: str, function: torch.nn.Module) -> None:
    product = torch.tensor([[math.nan, math.inf, -math.inf, 0.5, 1.5, -2.5, -0.0]])
    (actual,) = evaluate(chain(Step(op, (0,))), product, [])
    torch.testing.assert_close(actual, function(product), equal_nan=True)


def test_sixteen_bit_operands_are_computed_with_in_float32() -> None:
    """1 + 2^-9 is no bfloat16: a sum that was rounded would be 1."""
    read = Access("row", "bfloat16", N, (0, 1))
    steps = (Step("load", (), 0), Step("add", (0, 1)), Step("to_dtype", (2,), "bfloat16"))
    epilogue = chain(*steps, Step("to_dtype", (3,), "float32"), reads=(read,))
    (actual,) = evaluate(epilogue, torch.full((M, N), 2.0**-9), [torch.ones(1, N).bfloat16()])
    assert torch.equal(actual, torch.full((M, N), 1 + 2.0**-9))


def test_whole_sums_stay_whole_until_they_are_converted() -> None:
    epilogue = chain(
        Step("to_dtype", (0,), "float32"), Step("constant", (), 0.5), Step("mul", (1, 2))
    )
    product = torch.tensor([[2**24 + 2, -3]], dtype=torch.int32)
    (actual,) = evaluate(epilogue, product, [])
    assert torch.equal(actual, torch.tensor([[2**23 + 1.0, -1.5]]))


def test_what_nobody_computes_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing computes 'lgamma'"):
        evaluate(chain(Step("lgamma", (0,))), torch.zeros(M, N), [])
    with pytest.raises(ValueError, match="reads 1 tensors, not 0"):
        evaluate(chain(Step("load", (), 0), reads=(FULL,)), torch.zeros(M, N), [])


def test_whatever_a_kernel_computes_is_computed_here_too() -> None:
    assert set(FUNCTORS) - {"number"} == set(OPERATIONS)


@pytest.mark.parametrize("value", [0.1, -2, math.inf, -math.inf, 448])
def test_text_keeps_constants(value: float) -> None:
    epilogue = chain(Step("constant", (), value), Step("maximum", (0, 1)))
    assert decode(encode(epilogue)).steps == epilogue.steps
    assert "Infinity" not in encode(epilogue)


def test_text_keeps_not_a_number() -> None:
    value = decode(encode(chain(Step("constant", (), math.nan)))).steps[1].value
    assert isinstance(value, float)
    assert math.isnan(value)


def test_text_says_nothing_of_sizes_and_names() -> None:
    epilogue = chain(Step("load", (), 0), reads=(FULL,))
    other = chain(Step("load", (), 0), reads=(Access("full", "float32", 4, (2, 1), 0, "buf7"),))
    assert encode(epilogue) == encode(other)


def test_a_size_that_is_no_number_is_refused() -> None:
    epilogue = chain(Step("constant", (), "s0"), Step("add", (0, 1)))
    with pytest.raises(ValueError, match="a constant is no number: 's0'"):
        evaluate(epilogue, torch.zeros(M, N), [])


def test_values_stay_in_float32_where_those_of_a_kernel_do() -> None:
    """Of a dtype in one table alone, torch would round what the kernel does not, or the other way round."""
    assert set(_ROUNDED) == set(evt._ROUNDED)
