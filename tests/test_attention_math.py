"""`inductor_plugin.attention_math` against float64: masks, windows, shared heads, biases, empty rows."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest
import torch

from inductor_plugin import attention_math, attention_reference
from inductor_plugin.attention import FORWARD, Mask, arguments
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.templates.attention_math import AttentionMath

OPS: Any = torch.ops.inductor_plugin
SCALE = 0.25
MASKS = [Mask(), Mask(-1, 0), Mask(-1, 0, True), Mask(5, 3, True), Mask(2, -1)]


def operands(dtype: torch.dtype, kv_heads: int, queries: int, keys: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    q = torch.randn(2, queries, 4, 16, dtype=dtype).transpose(1, 2)
    k = torch.randn(2, kv_heads, keys, 16, dtype=dtype)
    v = torch.randn(2, kv_heads, keys, 24, dtype=dtype)
    return [q, k, v]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(33, 33), (20, 45), (45, 20)])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_it_agrees_with_float64(
    dtype: torch.dtype, biased: bool, kv_heads: int, queries: int, keys: int, mask: Mask
) -> None:
    q, k, v = operands(dtype, kv_heads, queries, keys)
    bias = torch.randn(4, queries, keys) if biased else None
    do = torch.randn(2, 4, queries, 24, dtype=dtype)
    wanted, rows = attention_reference.forward(q, k, v, mask=mask, scale=SCALE, bias=bias)
    limit = 2e-5 if dtype == torch.float32 else 4e-2
    told = (SCALE, mask.left, mask.right, mask.bottom_right)
    out = torch.empty(2, queries, 4, 24, dtype=dtype).transpose(1, 2)
    lse = torch.empty(2, queries, 4).transpose(1, 2)
    more = () if bias is None else (bias,)
    prefix = "bias_" if biased else ""
    assert (
        getattr(OPS.attention_math, f"{prefix}lse_out")(q, k, v, *more, lse, *told, out=out) is out
    )
    alone = torch.empty_like(out)
    getattr(OPS.attention_math, f"{prefix}out")(q, k, v, *more, *told, out=alone)
    for got in (out, alone):
        torch.testing.assert_close(got.double(), wanted, atol=limit, rtol=limit)
    torch.testing.assert_close(lse.double(), rows, atol=limit, rtol=limit)
    exact = attention_reference.backward(do, q, k, v, mask=mask, scale=SCALE, bias=bias)
    dq, dk, dv = (torch.empty_like(one) for one in (q, k, v))
    getattr(OPS.attention_math_backward, f"{prefix}out")(
        do, q, k, v, out, lse, *more, dq, dv, *told, out=dk
    )
    for got, right in zip((dq, dk, dv), exact, strict=False):
        torch.testing.assert_close(got.double(), right, atol=4 * limit, rtol=4 * limit)


def test_a_bias_that_hides_a_whole_row_gives_zero() -> None:
    q, k, v = operands(torch.float32, 4, 8, 8)
    bias = torch.zeros(8, 8)
    bias[3] = -torch.inf
    out = torch.empty(2, 4, 8, 24)
    attention_math.attention_math(q, k, v, bias, None, SCALE, -1, -1, False, out=out)
    assert not out[:, :, 3].any()
    assert out[:, :, 4].any()


def problem(device: str = "cpu", **extents: int) -> Problem:
    size = (2, 4, extents.get("queries", 64), 16)
    one = Operand(size, (size[1] * size[2] * 16, size[2] * 16, 16, 1), "float32", device)
    told = arguments(
        scale=SCALE, mask=Mask(), softcap=extents.get("softcap", 0), operands=("q", "k", "v")
    )
    texts = tuple((name, repr(value)) for name, value in sorted(told.items()))
    return Problem(FORWARD, (one, one, one), one, texts)


def test_the_template_says_why_not() -> None:
    template = AttentionMath()
    assert template.reject(problem()) is None
    assert "CPUs" in str(template.reject(problem("cuda")))
    assert "soft cap" in str(template.reject(problem(softcap=2)))
    assert "MiB of scores" in str(template.reject(problem(queries=8192)))
    (candidate,) = template.candidates(problem())
    assert getattr(candidate.kernel, "op", "") == "inductor_plugin::attention_math.out"
