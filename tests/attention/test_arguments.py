"""Borders of what a call of `fmha` may be, which its shapes and lengths decide."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from inductor_plugin.attention.arguments import (
    TYPES,
    AttentionOperands,
    check,
    check_window,
    read_lengths,
)
from inductor_plugin.problem.attention import NARROW
from inductor_plugin.templates import attention_math
from inductor_plugin.templates.cutlass_attention.config import ELEMENTS
from inductor_plugin.templates.triton_attention.facts import DTYPES
from tests.support.attention.calls import cumulated

pytestmark = pytest.mark.compat


def packed(**facts: Any) -> AttentionOperands:
    """Return sequences of 1 and 1 queries, and of 4 and 7 keys."""
    given: dict[str, Any] = {
        "q": torch.ones(2, 4, 8),
        "k": torch.ones(11, 2, 8),
        "v": torch.ones(11, 2, 6),
        "cu_seqlens_q": cumulated(1, 1),
        "cu_seqlens_k": cumulated(4, 7),
    }
    return AttentionOperands(**{**given, **facts})


def dense(**facts: Any) -> AttentionOperands:
    q, k, v = torch.ones(2, 4, 5, 8), torch.ones(2, 2, 7, 8), torch.ones(2, 2, 7, 6)
    given: dict[str, Any] = {"q": q, "k": k, "v": v, **facts}
    return AttentionOperands(**given)


def refusal(x: AttentionOperands, softcap: float = 0.0, window: tuple[int, int] = (-1, -1)) -> str:
    """Return why a call is refused, empty if it is not."""
    try:
        check(x, window, softcap)
        read_lengths(x)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("longest_q", "longest_k", "reason"),
    [
        (None, None, ""),
        (1, 7, ""),
        (1, None, ""),  # decoding: keys are longer than queries
        (None, 7, ""),
        (7, 7, ""),
        (7, 6, "sequence 1 of cu_seqlens_k has 7 tokens, and max_seqlen_k is 6"),
        (0, 7, "max_seqlen_q is 0; it is the length of the longest sequence, 1 or more"),
        (1, 0, "max_seqlen_k is 0; it is the length of the longest sequence, 1 or more"),
    ],
)
def test_queries_and_keys_have_longest_sequences_of_their_own(
    longest_q: int | None, longest_k: int | None, reason: str
) -> None:
    x = packed(max_seqlen_q=longest_q, max_seqlen_k=longest_k)
    assert reason in refusal(x)
    assert bool(reason) is bool(refusal(x))


def test_lengths_cannot_be_read_into_a_cuda_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert read_lengths(packed()) is not None  # on a CPU
    with FakeTensorMode():
        q, cu = torch.empty(4, 2, 64, device="cuda:0"), torch.empty(3, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="max-autotune-no-cudagraphs"):
        read_lengths(AttentionOperands(q, q, q, None, cu, cu))


def test_lengths_are_where_sequences_begin_and_end() -> None:
    lengths = read_lengths(packed())
    assert lengths is not None
    assert (lengths.queries, lengths.keys) == ([(0, 1), (1, 2)], [(0, 4), (4, 11)])
    assert read_lengths(dense()) is None
    empty = packed(cu_seqlens_q=cumulated(0, 2))  # a sequence without queries
    assert refusal(empty) == ""
    before = packed(cu_seqlens_k=cumulated(4, 5))
    assert "cu_seqlens_k ends at 9, before the end of k, which has 11 tokens" in refusal(before)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((1, 7), ""),
        ((1, 1), ""),
        ((1, 9), ""),
        ((3, 7), ""),
        ((2, 4, 1, 7), ""),
        ((1, 6), "bias (1, 6) ends before the longest sequence, which has 7 tokens"),
        ((3, 4, 1, 7), "does not broadcast to [batch, heads, queries, keys], which is (2, 4)"),
        ((2, 2, 1, 7), "does not broadcast"),
    ],
)
def test_a_bias_of_sequences_has_a_row_for_the_longest(size: tuple[int, ...], reason: str) -> None:
    why = refusal(packed(bias=torch.ones(size)))
    assert reason in why
    assert bool(reason) is bool(why)


@pytest.mark.parametrize(
    ("size", "fits"),
    [
        ((2, 4, 5, 7), True),
        ((1, 4, 1, 7), True),
        ((5, 1), True),
        ((7,), True),
        ((2, 1, 5, 5), False),
        ((4, 4, 5, 7), False),
        ((2, 2, 5, 7), False),
        ((1, 2, 4, 5, 7), False),
    ],
)
def test_a_bias_is_broadcast_to_the_scores(size: tuple[int, ...], *, fits: bool) -> None:
    assert (refusal(dense(bias=torch.ones(size))) == "") is fits


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"v": torch.ones(3, 2, 7, 6)}, "the batch of q (2, 4, 5, 8) and v (3, 2, 7, 6) differ"),
        ({"q": torch.ones(2, 4, 5, 0)}, "its head_dim is 0"),
        ({"k": torch.ones(2, 0, 7, 8), "v": torch.ones(2, 0, 7, 6)}, "its heads is 0"),
        ({"q": torch.ones(2, 1, 5, 8)}, "has 1 heads and k (2, 2, 7, 8) has 2"),
        (
            {"q": torch.ones(0, 4, 5, 8), "k": torch.ones(0, 2, 7, 8), "v": torch.ones(0, 2, 7, 6)},
            "",
        ),
    ],
)
def test_operands_share_what_they_have_to(facts: dict[str, Any], reason: str) -> None:
    assert reason in refusal(dense(**facts))
    assert bool(reason) is bool(refusal(dense(**facts)))


@pytest.mark.parametrize("name", ["k", "v", "bias", "cu_seqlens_q", "cu_seqlens_k"])
def test_each_operand_is_on_the_device_of_q(name: str) -> None:
    x = packed(bias=torch.ones(1, 7))
    moved = replace(x, **{name: getattr(x, name).to("meta")})
    assert f"q is on cpu and {name} on meta" in refusal(moved)


def test_numbers_have_borders() -> None:
    for softcap, fits in ((0.0, True), (30.0, True), (math.inf, False), (math.nan, False)):
        assert (refusal(dense(), softcap) == "") is fits
    for window, fits in (((-1, 0), True), ((0, -1), True), ((-2, 0), False), ((0, -2), False)):
        assert (refusal(dense(), window=window) == "") is fits
    check_window((-(1 << 63), (1 << 63) - 1))
    for beyond in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(ValueError, match="more than 64 bits"):
            check_window((0, beyond))


def test_operands_may_be_of_every_dtype_that_a_template_takes() -> None:
    taken = {*ELEMENTS, *DTYPES, NARROW, *attention_math._DTYPES}
    assert {getattr(torch, dtype) for dtype in taken} <= {*TYPES}
