"""Gradients of attention in blocks, where a bias and a soft-cap meet."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import pytest
import torch

from inductor_plugin.attention import blockwise
from inductor_plugin.attention.blockwise import ScoreParams
from inductor_plugin.problem.attention import Mask
from tests.support.attention import reference

MASK = Mask(left=5, right=2, bottom_right=True)


@pytest.mark.parametrize("bias_shape", [(2, 4, 9, 13), (4, 1, 13)], ids=str)
def test_a_bias_is_added_after_the_cap_and_its_gradient_has_no_slope(
    bias_shape: tuple[int, ...],
) -> None:
    torch.manual_seed(0)
    sizes = ((2, 4, 9, 6), (2, 4, 9, 8), (2, 2, 13, 8), (2, 2, 13, 6), bias_shape)
    do, q, k, v, bias = (torch.randn(*size, dtype=torch.float64) for size in sizes)
    params = ScoreParams(MASK, 0.9, softcap=0.7)
    out, lse = blockwise.forward(q, k, v, params, bias=bias)
    gradients = blockwise.backward(do, q, k, v, out, lse, params, bias=bias, bias_grad=True)
    expected = reference.backward(do, q, k, v, mask=MASK, scale=0.9, softcap=0.7, bias=bias)
    torch.testing.assert_close(tuple(gradients), tuple(expected), rtol=0, atol=1e-12)
