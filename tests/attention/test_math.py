"""`inductor_plugin.attention.math` against float64: masks, windows, shared heads, biases, empty rows."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from inductor_plugin.attention import math as attention_math
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import FORWARD, Mask, arguments
from inductor_plugin.templates.attention_math import AttentionMath
from tests.support.attention import reference

OPS: Any = torch.ops.inductor_plugin
SCALE = 0.25
MASKS = [Mask(), Mask(-1, 0), Mask(-1, 0, True), Mask(5, 3, True), Mask(2, -1)]


def operands(dtype: torch.dtype, kv_heads: int, queries: int, keys: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    q = torch.randn(2, queries, 4, 16, dtype=dtype).transpose(1, 2)
    k = torch.randn(2, kv_heads, keys, 16, dtype=dtype)
    v = torch.randn(2, kv_heads, keys, 24, dtype=dtype)
    return [q, k, v]


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = ((33, 33), (20, 45), (45, 20))
PAIRWISE = [
    (DTYPES[(m + s) % 3], (m + s // 2 + more) % 2 == 1, (4, 2)[(m * s + more) % 2], *SIZES[s], mask)
    for m, mask in enumerate(MASKS)
    for s in range(3)
    for more in ((0, 1) if s == m % 3 else (0,))
]
"""Any two of type, bias, key heads, sizes and mask occur together."""


def test_any_two_of_its_facts_occur_together() -> None:
    columns = list(zip(*((d, b, h, (q, k), m) for d, b, h, q, k, m in PAIRWISE), strict=True))
    for left, other in itertools.combinations(columns, 2):
        together = set(zip(left, other, strict=True))
        assert together == set(itertools.product(left, other))


@pytest.mark.parametrize(
    ("dtype", "biased", "kv_heads", "queries", "keys", "mask"), PAIRWISE, ids=str
)
def test_it_agrees_with_float64(
    dtype: torch.dtype, biased: bool, kv_heads: int, queries: int, keys: int, mask: Mask
) -> None:
    q, k, v = operands(dtype, kv_heads, queries, keys)
    bias = torch.randn(4, queries, keys) if biased else None
    do = torch.randn(2, 4, queries, 24, dtype=dtype)
    wanted, rows = reference.forward(q, k, v, mask=mask, scale=SCALE, bias=bias)
    limit = 2e-5 if dtype == torch.float32 else 4e-2
    call_arguments = (SCALE, mask.left, mask.right, mask.bottom_right)
    out = torch.empty(2, queries, 4, 24, dtype=dtype).transpose(1, 2)
    lse = torch.empty(2, queries, 4).transpose(1, 2)
    more = () if bias is None else (bias,)
    prefix = "bias_" if biased else ""
    getattr(OPS.attention_math, f"{prefix}lse_out")(q, k, v, *more, lse, *call_arguments, out=out)
    alone = torch.empty_like(out)
    getattr(OPS.attention_math, f"{prefix}out")(q, k, v, *more, *call_arguments, out=alone)
    for got in (out, alone):
        torch.testing.assert_close(got.double(), wanted, atol=limit, rtol=limit)
    torch.testing.assert_close(lse.double(), rows, atol=limit, rtol=limit)
    exact = reference.backward(do, q, k, v, mask=mask, scale=SCALE, bias=bias)
    dq, dk, dv = (torch.empty_like(tensor) for tensor in (q, k, v))
    getattr(OPS.attention_math_backward, f"{prefix}out")(
        do, q, k, v, out, lse, *more, dq, dv, *call_arguments, out=dk
    )
    for got, right in zip((dq, dk, dv), exact, strict=False):
        torch.testing.assert_close(got.double(), right, atol=4 * limit, rtol=4 * limit)


def test_another_default_device_changes_nothing() -> None:
    q, k, v = operands(torch.float32, 2, 13, 11)
    inputs = [q, k, v, torch.randn(2, 4, 13, 24)]
    mask = Mask(4, 0, True)
    attention_math._hidden.cache_clear()
    with torch.device("meta"):
        results = gradients(inputs, mask)
    for got, wanted in zip(results, gradients(inputs, mask), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_a_bias_that_hides_a_whole_row_gives_zero() -> None:
    q, k, v = operands(torch.float32, 4, 8, 8)
    bias = torch.zeros(8, 8)
    bias[3] = -torch.inf
    out = torch.empty(2, 4, 8, 24)
    attention_math.attention_math(q, k, v, bias, None, SCALE, -1, -1, False, out=out)
    assert not out[:, :, 3].any()
    assert out[:, :, 4].any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("mask", MASKS[1:], ids=str)
def test_a_key_that_is_hidden_has_no_effect_whatever_it_is(
    mask: Mask, biased: bool, value: float
) -> None:
    q, k, v = operands(torch.float32, 2, 12, 12)
    bias = torch.randn(12, 12) if biased else None
    k[1, 1, 6 if mask.right >= 0 else 3, 0] = value
    call_arguments = (SCALE, mask.left, mask.right, mask.bottom_right)
    wanted = reference.forward(q, k, v, mask=mask, scale=SCALE, bias=bias, dtype=torch.float32)
    out, alone, lse = torch.empty(2, 4, 12, 24), torch.empty(2, 4, 12, 24), torch.empty(2, 4, 12)
    attention_math.attention_math(q, k, v, bias, lse, *call_arguments, out=out)
    attention_math.attention_math(q, k, v, bias, None, *call_arguments, out=alone)
    limits: dict[str, Any] = {"atol": 2e-5, "rtol": 2e-5, "equal_nan": True}
    assert out[1, 2:].isfinite().all(-1).any()
    torch.testing.assert_close((out, lse), wanted, **limits)
    torch.testing.assert_close(alone, wanted[0], **limits)


def gradients(
    operands: list[torch.Tensor], mask: Mask, bias: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Return out, lse, dq, dk and dv, the last operand being do."""
    q, k, v, do = operands
    call_arguments = (SCALE, mask.left, mask.right, mask.bottom_right)
    out, lse = torch.empty_like(do), torch.empty(do.shape[:-1], device=do.device)
    attention_math.attention_math(q, k, v, bias, lse, *call_arguments, out=out)
    dq, dk, dv = (torch.empty_like(tensor) for tensor in (q, k, v))
    attention_math.attention_math_backward(
        do, q, k, v, out, lse, bias, dq, dv, *call_arguments, out=dk
    )
    return [out, lse, dq, dk, dv]


def test_a_hidden_key_reaches_no_gradient_of_keys_seen_by_other_rows() -> None:
    q, k, v = operands(torch.float32, 4, 12, 12)
    k[:, :, 0] = math.nan  # rows 0 to 2 see it, and keys 0 to 2
    _, lse, dq, dk, dv = gradients([q, k, v, torch.randn(2, 4, 12, 24)], Mask(2, 0))
    assert lse[..., :3].isnan().all()
    assert lse[..., 3:].isfinite().all()
    assert dq[:, :, :3].isnan().all()
    assert dk[:, :, 0].isnan().all()
    assert dk[:, :, 3:].isfinite().all()
    assert dv[:, :, 3:].isfinite().all()


def test_a_hidden_value_reaches_no_gradient_where_the_forward_left_it_out() -> None:
    mask = Mask(2, 0)
    q, k, v = operands(torch.float32, 4, 12, 12)
    do = torch.randn(2, 4, 12, 24)
    out, lse, *_ = gradients([q, k, v, do], mask)
    v[:, :, 0] = math.nan
    dq, dk, dv = (torch.empty_like(tensor) for tensor in (q, k, v))
    attention_math.attention_math_backward(
        do, q, k, v, out, lse, None, dq, dv, SCALE, 2, 0, False, out=dk
    )
    assert dq[:, :, :3].isnan().all()
    assert dq[:, :, 3:].isfinite().all()
    assert dk[:, :, 0].isnan().all()
    assert dk[:, :, 1:].isfinite().all()


def test_a_row_that_sees_no_key_is_zero_whatever_the_values_are() -> None:
    q, k, v = operands(torch.float32, 4, 9, 4)
    v[:] = math.nan
    out = torch.empty(2, 9, 4, 24).transpose(1, 2)
    attention_math.attention_math(q, k, v, None, None, SCALE, -1, 0, True, out=out)
    assert out[:, :, :5].eq(0).all()
    assert out[:, :, 5:].isnan().all()


def test_an_infinite_bias_gives_the_lse_of_the_reference() -> None:
    q, k, v = operands(torch.float32, 4, 8, 8)
    bias = torch.randn(8, 8)
    bias[2, 5] = math.inf
    out, lse = torch.empty(2, 4, 8, 24), torch.empty(2, 4, 8)
    attention_math.attention_math(q, k, v, bias, lse, SCALE, -1, -1, False, out=out)
    wanted = reference.forward(q, k, v, mask=Mask(), scale=SCALE, bias=bias, dtype=torch.float32)
    assert lse[:, :, 2].eq(math.inf).all()
    torch.testing.assert_close((out, lse), wanted, atol=2e-5, rtol=2e-5, equal_nan=True)


@pytest.mark.parametrize("mask", [Mask(), Mask(-1, 0)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "added"),
    [
        (torch.float32, torch.float64),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float64),
    ],
    ids=str,
)
def test_a_bias_has_any_type(dtype: torch.dtype, added: torch.dtype, mask: Mask) -> None:
    q, k, v = operands(dtype, 2, 8, 8)
    limit = 4e-5 if dtype == torch.float32 else 8e-2
    for shape in ((8, 8), (1, 8), (8,), (4, 1, 8), (2, 4, 8, 8)):
        do, bias = torch.randn(2, 4, 8, 24, dtype=dtype), torch.randn(shape).to(added)
        results = gradients([q, k, v, do], mask, bias)
        wanted = reference.forward(q, k, v, mask=mask, scale=SCALE, bias=bias)
        exact = reference.backward(do, q, k, v, mask=mask, scale=SCALE, bias=bias)
        for got, right in zip(results, (*wanted, *exact), strict=False):
            torch.testing.assert_close(got.double(), right, atol=limit, rtol=limit)


def problem(device: str = "cpu", **extents: int) -> Problem:
    size = (2, 4, extents.get("queries", 64), 16)
    operand = Operand(size, (size[1] * size[2] * 16, size[2] * 16, 16, 1), "float32", device)
    call_arguments = arguments(
        scale=SCALE, mask=Mask(), softcap=extents.get("softcap", 0), operands=("q", "k", "v")
    )
    texts = tuple((name, repr(value)) for name, value in sorted(call_arguments.items()))
    return Problem(FORWARD, (operand, operand, operand), operand, texts)


def test_the_template_says_why_not() -> None:
    template = AttentionMath()
    assert template.reject(problem()) is None
    assert "CPUs" in str(template.reject(problem("cuda")))
    assert "soft cap" in str(template.reject(problem(softcap=2)))
    assert "MiB of scores" in str(template.reject(problem(queries=8192)))
    (candidate,) = template.candidates(problem())
    assert getattr(candidate.kernel, "op", "") == "inductor_plugin::attention_math.out"
