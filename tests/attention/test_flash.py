"""`fmha` on a GPU without torch.compile: what FlashAttention is refused, and called with."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from inductor_plugin.attention import blockwise, flash, operator
from inductor_plugin.attention.arguments import AttentionOperands
from inductor_plugin.attention.blockwise import BlockwiseGradients, ScoreParams
from inductor_plugin.attention.flash import flash_backward, flash_forward, why_not_flash, widened
from inductor_plugin.attention.gates import DispatchContext
from inductor_plugin.attention.library import KERNELS
from inductor_plugin.problem import dtype_name
from inductor_plugin.problem.attention import Mask
from tests.support.attention.problems import PLAIN

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
        assert why_not_flash(name, rule, (9, 0), backward=False) is None
    refused = {
        "compute capability 7.5, it needs 8.0": (square, plain, (7, 5)),
        "float32 operands": (
            AttentionOperands(half.float(), half.float(), half.float()),
            plain,
            (9, 0),
        ),
        "a bias": (AttentionOperands(half, half, half, bias=half), plain, (9, 0)),
        "a soft cap": (square, ScoreParams(Mask(), 1.0, softcap=2.0), (9, 0)),
        "heads of 64 and values of 20": (AttentionOperands(half, half, narrow), plain, (9, 0)),
        "heads of 20; it takes multiples of 8": (
            AttentionOperands(narrow, narrow, narrow),
            plain,
            (9, 0),
        ),
        "begins at the first key": (longer, top_left, (9, 0)),
        "a scale of 0.0; it takes positive ones": (square, ScoreParams(Mask(), 0.0), (9, 0)),
        "a scale of -0.1; it takes positive ones": (square, ScoreParams(Mask(), -0.1), (9, 0)),
    }
    for reason, (name, rule, capability) in refused.items():
        assert reason in str(why_not_flash(name, rule, capability, backward=False))


@pytest.mark.parametrize(
    ("sizes", "facts", "capability", "reason"),
    [
        ((256, 256), {}, (9, 0), None),
        ((256, 256), {"mask": Mask(-1, 0)}, (8, 6), None),
        ((256, 64), {"mask": Mask(-1, 0)}, (8, 6), "begins at the first key"),
        ((256, 64), {"mask": Mask(10, 0, bottom_right=True)}, (9, 0), None),
        ((256, 64), {"mask": Mask(10, -1, bottom_right=True)}, (9, 0), "more queries than keys"),
        ((256, 256), {}, (7, 5), "compute capability 7.5"),
        ((256, 256), {"dtype": "float32"}, (9, 0), "float32 operands"),
        ((256, 256), {"operands": ("q", "k", "v", "bias")}, (9, 0), "a bias"),
        ((256, 256), {"softcap": 2.0}, (9, 0), "a soft cap"),
        ((256, 256), {"scale": 0.0}, (9, 0), "a scale of 0.0"),
        ((256, 256), {"value_dim": 72}, (9, 0), "values of 72"),
        ((256, 256), {"head_dim": 60, "value_dim": 60}, (9, 0), "heads of 60"),
        ((256, 256), {"head_dim": 264, "value_dim": 264}, (9, 0), "heads of 264"),
        ((256, 256), {"head_dim": 256, "value_dim": 256}, (8, 9), None),
        ((256, 256), {"head_dim": 192, "value_dim": 192, "backward": True}, (8, 9), None),
        ((256, 256), {"head_dim": 256, "value_dim": 256, "backward": True}, (8, 9), "do not fit"),
        ((256, 256), {"head_dim": 256, "value_dim": 256, "backward": True}, (9, 0), None),
    ],
)
def test_an_eager_call_is_refused_what_a_compiled_one_is(
    sizes: tuple[int, int], facts: dict[str, Any], capability: tuple[int, int], reason: str | None
):
    attention = replace(PLAIN, queries=sizes[0], keys=sizes[1], **facts)
    dtype = next(t for t in (torch.bfloat16, torch.float32) if dtype_name(t) == attention.dtype)
    q, k, v, bias = (
        torch.empty(2, 8, *lengths, dtype=dtype, device="meta")
        for lengths in (
            (sizes[0], attention.head_dim),
            (sizes[1], attention.head_dim),
            (sizes[1], attention.value_dim),
            sizes,
        )
    )
    x = AttentionOperands(q, k, v, bias if attention.biased else None)
    rule = ScoreParams(attention.mask, attention.scale, attention.softcap)
    eager = why_not_flash(x, rule, capability, backward=attention.backward)
    context = DispatchContext(capability=capability, square=sizes[0] == sizes[1])
    assert eager == KERNELS["flash"].why_not(attention, context)
    assert (eager is None) if reason is None else (reason in str(eager))


@pytest.mark.parametrize(("capability", "fits"), [((8, 0), True), ((8, 9), False)])
def test_gradients_of_wide_heads_are_flash_attentions_where_its_tiles_fit(
    capability: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []

    def gradients(name: str) -> Any:
        def compute(_do: Tensor, *operands: Any, **_keywords: Any) -> BlockwiseGradients:
            asked.append(name)
            return BlockwiseGradients(q, q, q, None)

        return compute

    def device_capability(_device: object) -> tuple[int, int]:
        return capability

    monkeypatch.setattr(torch.cuda, "get_device_capability", device_capability)
    monkeypatch.setattr(operator, "flash_backward", gradients("flash"))
    monkeypatch.setattr(blockwise, "backward", gradients("blockwise"))
    with FakeTensorMode():
        q = torch.empty(2, 4, 16, 256, dtype=torch.bfloat16, device="cuda:0")
        lse = torch.empty(2, 4, 16, device="cuda:0")
        operator._backward(q, q, q, q, q, lse)
    assert asked == ["flash" if fits else "blockwise"]


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
        reason = why_not_flash(x, rule, (9, 0), backward=False)
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
    assert why_not_flash(wide, ScoreParams(Mask(), 1.0), (9, 0), backward=False) is None


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
