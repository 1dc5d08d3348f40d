# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import pytest
import torch

from inductor_plugin.attention import unfused
from inductor_plugin.problem.attention import Mask
from tests.support.attention import reference

MASK = Mask(left=5, right=2, bottom_right=True)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


@pytest.mark.parametrize("varlen", [False, True], ids=["dense", "varlen"])
def test_the_forward_is_the_reference_for_operands_of_any_type(varlen: bool) -> None:
    torch.manual_seed(0)
    operands = [drawn(2, 4, 9, 8), drawn(2, 2, 13, 8), drawn(2, 2, 13, 6)]
    keywords: dict[str, Any] = {"mask": MASK, "softcap": 0.7, "bias": drawn(4, 1, 13)}
    if varlen:
        operands = [drawn(9, 4, 8), drawn(13, 2, 8), drawn(13, 2, 6)]
        keywords |= {"cu_q": torch.tensor([0, 4, 9]), "cu_k": torch.tensor([0, 13, 13])}
        keywords["bias"] = drawn(4, 5, 13)
    outputs = unfused.forward(*operands, **keywords)
    expected = reference.forward(*operands, **keywords)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-13)


def test_the_gradients_are_those_of_the_reference() -> None:
    torch.manual_seed(0)
    operands = [drawn(2, 4, 9, 6), drawn(2, 4, 9, 8), drawn(2, 2, 13, 8), drawn(2, 2, 13, 6)]
    gradients = unfused.backward(*operands, mask=MASK, scale=0.3)
    expected = reference.backward(*operands, mask=MASK, scale=0.3)
    assert gradients.dbias is None
    torch.testing.assert_close(gradients[:3], expected[:3], rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_computes_in_the_type_that_is_asked_for(dtype: torch.dtype) -> None:
    q, k, v = (drawn(1, 1, 5, 8) for _ in range(3))
    out, lse = unfused.forward(q, k, v, mask=Mask(), dtype=dtype)
    gradients = unfused.backward(q, q, k, v, mask=Mask(), dtype=dtype)
    assert {out.dtype, lse.dtype, gradients.dq.dtype, gradients.dk.dtype, gradients.dv.dtype} == {
        dtype
    }
