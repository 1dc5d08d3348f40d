"""The reference of attention that tests share, against torch's math path, autograd, and the rules by hand."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from inductor_plugin.problem.attention import Mask
from tests.support.attention import reference
from tests.support.attention.reference import backward, forward

MASKS = {
    "none": Mask(),
    "causal": Mask(right=0),
    "causal, bottom right": Mask(right=0, bottom_right=True),
    "left window": Mask(left=5, bottom_right=True),
    "window": Mask(left=4, right=3),
    "diagonal": Mask(left=0, right=0, bottom_right=True),
}
SIZES = ((17, 23), (23, 17), (1, 9), (9, 1))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def by_hand(queries: int, keys: int, mask: Mask) -> torch.Tensor:
    """Each element by the rule itself."""
    shift = keys - queries if mask.bottom_right else 0
    return torch.tensor(
        [
            [
                (mask.left < 0 or j >= i + shift - mask.left)
                and (mask.right < 0 or j <= i + shift + mask.right)
                for j in range(keys)
            ]
            for i in range(queries)
        ]
    )


@pytest.fixture(params=[64 << 20, 1], ids=["one block", "a block a row"])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_BYTES", request.param)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("name", MASKS)
def test_it_is_torchs_math_path_forward_and_backward(name: str):
    torch.manual_seed(0)
    mask = MASKS[name]
    for sq, sk in SIZES:
        q, k, v = drawn(2, 4, sq, 8), drawn(2, 2, sk, 8), drawn(2, 2, sk, 6)
        bias = drawn(4, 1, sk)
        leaves = [tensor.requires_grad_() for tensor in (q, k, v, bias)]
        keep = by_hand(sq, sk, mask)
        with sdpa_kernel(SDPBackend.MATH):
            expected = functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=bias.expand(2, 4, sq, sk).masked_fill(~keep, -math.inf),
                scale=0.3,
                enable_gqa=True,
            )
        do = torch.randn_like(expected)
        gradients = torch.autograd.grad(expected, leaves, do)
        q, k, v, bias = (tensor.detach() for tensor in leaves)
        out, lse = forward(q, k, v, mask=mask, scale=0.3, bias=bias)
        torch.testing.assert_close(out, expected.detach(), rtol=0, atol=1e-14)
        assert (lse == math.inf).equal((~keep.any(-1)).expand_as(lse))
        grads = backward(do, q, k, v, mask=mask, scale=0.3, bias=bias)
        for ours, theirs in zip(grads, gradients, strict=True):
            assert ours is not None
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


def autograd(leaves: list[torch.Tensor], softcap: float) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = leaves
    k, v = (tensor.repeat_interleave(2, 1) for tensor in (k, v))
    scores = softcap * torch.tanh(q @ k.transpose(-1, -2) * q.size(-1) ** -0.5 / softcap)
    scores = scores.masked_fill(~by_hand(q.size(2), k.size(2), Mask(right=2)), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def test_a_cap_and_a_gradient_of_lse_are_what_autograd_makes_of_them():
    torch.manual_seed(0)
    leaves = [drawn(2, 4, 11, 8), drawn(2, 2, 13, 8), drawn(2, 2, 13, 8)]
    out, lse = autograd([leaf.requires_grad_() for leaf in leaves], softcap=0.7)
    do, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    expected = torch.autograd.grad((out, lse), leaves, (do, grad_lse))
    q, k, v = (leaf.detach() for leaf in leaves)
    found_out, found_lse = forward(q, k, v, mask=Mask(right=2), softcap=0.7)
    torch.testing.assert_close(found_out, out.detach(), rtol=0, atol=1e-14)
    torch.testing.assert_close(found_lse, lse.detach(), rtol=0, atol=1e-14)
    gradients = backward(do, q, k, v, mask=Mask(right=2), softcap=0.7, grad_lse=grad_lse)
    assert gradients.dbias is None
    for ours, theirs in zip(gradients, expected, strict=False):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", MASKS)
def test_sequences_behind_one_another_are_the_sequences_alone(name: str):
    torch.manual_seed(0)
    mask = MASKS[name]
    lengths_q, lengths_k = (5, 0, 9, 3), (7, 4, 2, 0)
    cu_q, cu_k = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (lengths_q, lengths_k))
    q, k, v = drawn(17, 4, 8), drawn(13, 2, 8), drawn(13, 2, 6)
    bias, do, grad_lse = drawn(4, 4, 9, 7), drawn(17, 4, 6), drawn(4, 17)
    out, lse = forward(q, k, v, mask=mask, bias=bias, cu_q=cu_q, cu_k=cu_k)
    grads = backward(
        do, q, k, v, mask=mask, bias=bias, cu_q=cu_q, cu_k=cu_k, grad_lse=grad_lse
    )  # fmt: skip
    assert grads.dbias is not None
    for b, (sq, sk) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        i, j = (slice(int(cu[b]), int(cu[b + 1])) for cu in (cu_q, cu_k))
        sequence = [x.transpose(0, 1)[None] for x in (q[i], k[j], v[j])]
        alone = bias[b, :, :sq, :sk][None]
        grad = do[i].transpose(0, 1)[None]
        out_alone, lse_alone = forward(*sequence, mask=mask, bias=alone)
        torch.testing.assert_close(out[i].transpose(0, 1)[None], out_alone)
        torch.testing.assert_close(lse[:, i][None], lse_alone)
        gradients = backward(grad, *sequence, mask=mask, bias=alone, grad_lse=grad_lse[:, i][None])
        for whole, part, at in zip(grads, gradients, (i, j, j), strict=False):
            assert whole is not None
            assert part is not None
            torch.testing.assert_close(whole[at].transpose(0, 1)[None], part)
        assert gradients.dbias is not None
        torch.testing.assert_close(grads.dbias[b, :, :sq, :sk][None], gradients.dbias)


def test_rows_that_see_nothing_give_nothing():
    q, k, v = drawn(1, 2, 6, 4), drawn(1, 1, 3, 4), drawn(1, 1, 3, 4)
    v[..., 0, :] = math.nan  # of a key that rows 4 and 5 do not see; they see none
    out, lse = forward(q, k, v, mask=Mask(left=1))
    assert out[:, :, 4:].eq(0).all()
    assert lse[:, :, 4:].eq(math.inf).all()
    assert lse[:, :, :4].isfinite().all()
    hidden = torch.full((3,), -math.inf, dtype=torch.float64)
    out, lse = forward(q, k, drawn(1, 1, 3, 4), mask=Mask(), bias=hidden)
    assert out.eq(0).all()
    assert lse.eq(math.inf).all()
    gradients = backward(drawn(1, 2, 6, 4), q, k, drawn(1, 1, 3, 4), mask=Mask(), bias=hidden)
    assert all(gradient is not None and gradient.eq(0).all() for gradient in gradients)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("operand", range(3))
def test_what_is_not_finite_goes_where_softmax_takes_it(operand: int, value: float):
    torch.manual_seed(0)
    q, k, v = operands = [drawn(1, 2, 7, 4), drawn(1, 2, 7, 4), drawn(1, 2, 7, 4)]
    operands[operand][0, 1, 3, 2] = value
    scores = (0.5 * q @ k.transpose(-1, -2)).masked_fill(~by_hand(7, 7, Mask(right=0)), -math.inf)
    expected = scores.softmax(-1) @ v
    assert not expected.isfinite().all()
    out, lse = forward(q, k, v, mask=Mask(right=0))
    torch.testing.assert_close(out, expected, equal_nan=True)
    torch.testing.assert_close(lse, scores.logsumexp(-1), equal_nan=True)


def test_it_computes_in_the_type_that_is_asked_for():
    q, k, v = (torch.randn(1, 1, 5, 8, dtype=torch.bfloat16) for _ in range(3))
    for dtype in (torch.float32, torch.float64):
        out, lse = forward(q, k, v, mask=Mask(), dtype=dtype)
        gradients = backward(q, q, k, v, mask=Mask(), dtype=dtype)
        assert {
            out.dtype,
            lse.dtype,
            gradients.dq.dtype,
            gradients.dk.dtype,
            gradients.dv.dtype,
        } == {dtype}
