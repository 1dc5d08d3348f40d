"""`fmha` on a GPU without torch.compile: what FlashAttention is refused, and called with."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from inductor_plugin.attention import flash
from inductor_plugin.attention.arguments import AttentionOperands
from inductor_plugin.attention.blockwise import ScoreParams
from inductor_plugin.attention.flash import flash_backward, flash_forward, why_not_flash, widened
from inductor_plugin.problem.attention import Mask

pytestmark = pytest.mark.compat


def test_flash_attention_is_refused_what_it_cannot_express():
    half = torch.empty(2, 4, 16, 64, dtype=torch.bfloat16)
    square = AttentionOperands(half, half, half)
    keys = torch.empty(2, 2, 32, 64, dtype=torch.bfloat16)
    longer = AttentionOperands(half, keys, keys)
    narrow = half[..., :20]
    plain, top_left = ScoreParams(Mask(), 1.0), ScoreParams(Mask(right=0), 1.0)
    bottom_right = ScoreParams(Mask(left=3, bottom_right=True), 1.0)
    for name, rule in (
        (square, plain),
        (longer, plain),
        (square, top_left),
        (longer, bottom_right),
    ):
        assert why_not_flash(name, rule, (9, 0)) is None
    refused = {
        "compute capability 8.0, this device has 7.5": (square, plain, (7, 5)),
        "not torch.float32": (
            AttentionOperands(half.float(), half.float(), half.float()),
            plain,
            (9, 0),
        ),
        "no bias": (AttentionOperands(half, half, half, bias=half), plain, (9, 0)),
        "no soft-cap": (square, ScoreParams(Mask(), 1.0, softcap=2.0), (9, 0)),
        "head dims 64 and 20 differ": (AttentionOperands(half, half, narrow), plain, (9, 0)),
        "head dim 20 is no multiple": (AttentionOperands(narrow, narrow, narrow), plain, (9, 0)),
        "top-left": (longer, top_left, (9, 0)),
        "must be positive, not 0.0": (square, ScoreParams(Mask(), 0.0), (9, 0)),
        "must be positive, not -0.1": (square, ScoreParams(Mask(), -0.1), (9, 0)),
    }
    for reason, (name, rule, capability) in refused.items():
        assert reason in str(why_not_flash(name, rule, capability))


@pytest.mark.parametrize(
    ("sizes", "sides", "refused"),
    [
        (
            (256, 64),
            (10, -1),
            True,
        ),  # it makes 64 of the right side: query 100 sees no key, and should see all
        (
            (256, 64),
            (-1, 64),
            True,
        ),  # it makes the right side unlimited: query 0 sees all keys, and should see none
        ((256, 64), (-1, 63), False),
        ((256, 64), (10, 0), False),
        ((256, 64), (64, -1), False),  # no limit at all, there as here
        ((66, 64), (10, -1), True),
        ((65, 64), (10, -1), False),  # query 0 sees 64 keys beyond the diagonal, which is all
        ((64, 256), (10, -1), False),
    ],
)
def test_a_window_that_flash_attention_takes_for_another_one_is_refused(
    sizes: tuple[int, int], sides: tuple[int, int], refused: bool
):
    q, k = (torch.empty(2, 4, size, 64, dtype=torch.bfloat16) for size in sizes)
    rule = ScoreParams(Mask(*sides, bottom_right=True), 0.125)
    cu_q, cu_k = (torch.tensor([0, size], dtype=torch.int32) for size in sizes)
    tokens_q, tokens_k = q[0].transpose(0, 1), k[0].transpose(0, 1)
    packed = AttentionOperands(tokens_q, tokens_k, tokens_k, None, cu_q, cu_k)
    for x in (AttentionOperands(q, k, k), packed):
        reason = why_not_flash(x, rule, (9, 0))
        assert ("more queries than keys" in (reason or "")) == refused == bool(reason)


def test_flash_attention_reads_operands_of_8_bits_in_bfloat16():
    narrow = torch.empty(2, 4, 16, 64, dtype=torch.float8_e4m3fn)
    assert (
        widened(tensors := AttentionOperands(narrow, narrow, narrow)) is tensors
    )  # on a CPU nothing asks for it
    with FakeTensorMode():
        q = torch.empty(2, 4, 16, 64, dtype=torch.float8_e4m3fn, device="cuda:0")
        wide = widened(AttentionOperands(q, q, q, max_seqlen_q=3))
        half = AttentionOperands(wide.q, wide.k, wide.v)
        assert widened(half) is half
    assert {tensor.dtype for tensor in (wide.q, wide.k, wide.v)} == {torch.bfloat16}
    assert wide.max_seqlen_q == 3
    assert why_not_flash(wide, ScoreParams(Mask(), 1.0), (9, 0)) is None


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
@pytest.mark.parametrize("varlen", [False, True], ids=["dense", "varlen"])
def test_what_flash_attention_is_called_with_fits_its_schema_and_its_shapes(varlen: bool):
    cu = torch.tensor([0, 10, 32], dtype=torch.int32)
    shapes = ((32, 4, 64), (32, 2, 64)) if varlen else ((2, 4, 16, 64), (2, 2, 32, 64))
    with FakeTensorMode():
        q, k = (torch.empty(shape, dtype=torch.bfloat16, device="cuda:0") for shape in shapes)
        lengths = [torch.empty(3, dtype=torch.int32, device="cuda:0") for _ in "qk"]
        arguments = (
            AttentionOperands(q, k, k, None, lengths[0], lengths[1])
            if varlen
            else AttentionOperands(q, k, k)
        )
        assert cu.shape == lengths[0].shape
        for mask in (Mask(), Mask(right=0, bottom_right=True), Mask(left=4, bottom_right=True)):
            rule = ScoreParams(mask, 0.125)
            out, lse = flash_forward(arguments, rule)
            assert out.shape == q.shape
            assert lse.shape == ((4, 32) if varlen else (2, 4, 16))
            assert lse.dtype == torch.float32
            dq, dk, dv, dbias = flash_backward(out, arguments, out, lse, rule)
            assert (dq.shape, dk.shape, dv.shape) == (q.shape, k.shape, k.shape)
            assert dbias is None


@pytest.mark.parametrize("side", [1 << 32, (1 << 40) + 1])
def test_the_sides_of_a_window_fit_its_32_bits(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, int] = {}

    def kernel(*_: object, **keywords: int) -> tuple[Tensor, Tensor]:
        given.update(keywords)
        return torch.zeros(1, 4, 4, 64), torch.zeros(1, 4, 4)

    monkeypatch.setattr(flash, "_ATEN", SimpleNamespace(_flash_attention_forward=kernel))
    q = torch.zeros(1, 4, 4, 64)
    flash_forward(AttentionOperands(q, q, q), ScoreParams(Mask(side, 0, True), 0.125))
    assert (given["window_size_left"], given["window_size_right"]) == (2**31 - 1, 0)


def test_flash_attention_gets_dense_cu_seqlens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(Exception):  # noqa: N818  carries the arguments out
        pass

    def kernel(*arguments: object, **_: object) -> None:
        raise Taken(*arguments)

    operators = SimpleNamespace(_flash_attention_forward=kernel, _flash_attention_backward=kernel)
    monkeypatch.setattr(flash, "_ATEN", operators)
    q, lse = torch.zeros(32, 4, 64).bfloat16(), torch.zeros(4, 32)
    cu = torch.tensor([[0, 1], [10, 1], [32, 1]], dtype=torch.int32)[:, 0]
    arguments = AttentionOperands(q, q, q, None, cu, cu)
    rule = ScoreParams(Mask(), 0.125)
    with pytest.raises(Taken) as forward:
        flash_forward(arguments, rule)
    with pytest.raises(Taken) as backward:
        flash_backward(q, arguments, q, lse, rule)
    for boundaries in (forward.value.args[3:5], backward.value.args[6:8]):
        for ends in boundaries:
            assert ends.stride() == (1,)
            assert ends.tolist() == [0, 10, 32]
