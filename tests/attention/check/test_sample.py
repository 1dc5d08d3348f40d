"""Sampled rows of an attention are those of the whole, and few."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor_plugin.attention.check import sample
from inductor_plugin.problem.attention import Attention, Mask
from tests.support.attention import reference

MASKS = [Mask(), Mask(right=0), Mask(right=0, bottom_right=True), Mask(5, 3, True), Mask(7)]
H, HKV, D, DV = 4, 2, 16, 24


def problem(mask: Mask, softcap: float, *, varlen: bool) -> tuple[Attention, dict[str, Any]]:
    """Return facts of the gradient, and its operands."""
    torch.manual_seed(0)
    more: dict[str, Any] = {"bias": torch.randn(1, H, 40, 31)}
    lead, sq, sk = (2, H), 40, 31
    if varlen:
        more = {"cu_q": torch.tensor([0, 5, 5, 45]), "cu_k": torch.tensor([0, 20, 30, 61])}
        x = {name: torch.randn(45, H, w) for name, w in (("q", D), ("do", DV))}
        x |= {name: torch.randn(61, HKV, w) for name, w in (("k", D), ("v", DV))}
        lead, sq, sk = (3, H), 45, 61
    else:
        x = {name: torch.randn(2, H, 40, w) for name, w in (("q", D), ("do", DV))}
        x |= {name: torch.randn(2, HKV, 31, w) for name, w in (("k", D), ("v", DV))}
    names = ("do", "q", "k", "v", *more)
    facts = Attention(True, lead[0], H, HKV, sq, sk, D, DV, 0.3, mask, softcap, names, "float32")
    return facts, {**x, **more}


@pytest.mark.parametrize("varlen", [False, True], ids=["dense", "varlen"])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_sampled_rows_are_those_of_the_whole(mask: Mask, softcap: float, varlen: bool) -> None:
    facts, x = problem(mask, softcap, varlen=varlen)
    more: dict[str, Any] = {"mask": mask, "scale": 0.3, "softcap": softcap}
    more |= {name: x.get(name) for name in ("bias", "cu_q", "cu_k")}
    out, lse = reference.forward(x["q"], x["k"], x["v"], **more)
    dq, dk, dv, _ = reference.backward(x["do"], x["q"], x["k"], x["v"], **more)
    whole = {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    gradient = sample.Sampler(facts, x)
    forward = sample.Sampler(forward_of(facts), x)
    _, exact = sample.exact_rows(facts, x)
    parts = [*forward.queries(), *gradient.queries(), *gradient.keys(exact)]
    assert {part.output for part in parts} == set(whole)
    for part in parts:
        rows = sample.sequences(facts, part.output, whole[part.output], x)
        torch.testing.assert_close(rows[part.sequence][part.head, part.rows], part.values)
        assert bool((part.scale[part.values.abs().amax(-1) > 0] > 0).all())


def forward_of(facts: Attention) -> Attention:
    return replace(facts, backward=False)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (40, 9), (9, 40), (1, 7), (7, 1)])
def test_rows_and_keys_that_see_nothing_are_known(mask: Mask, queries: int, keys: int) -> None:
    facts, _ = problem(mask, 0.0, varlen=False)
    seen = reference.visible(queries, keys, mask)
    cpu = torch.device("cpu")
    blind = sample.fully_masked_rows(facts, queries, keys, cpu)
    assert torch.equal(blind, ~seen.any(1))
    assert torch.equal(sample.unattended_keys(facts, queries, keys, cpu), ~seen.any(0))


def test_borders_of_tiles_and_both_ends_are_among_few_positions() -> None:
    assert sample.positions(5, 8) == [0, 1, 2, 3, 4]
    chosen = sample.positions(4096, 32)
    assert len(chosen) <= 32
    assert {0, 15, 16, 63, 64, 65, 127, 4094, 4095} <= set(chosen)
    assert max(b - a for a, b in itertools.pairwise(chosen)) < 400
    assert sample.spread(3, 8) == [0, 1, 2]
    assert sample.spread(64, 8) == [0, 9, 18, 27, 36, 45, 54, 63]


def test_a_long_attention_costs_few_rows() -> None:
    facts, _ = problem(Mask(right=0), 0.0, varlen=False)
    x = {"q": torch.randn(3, 4, 700, 8), "k": torch.randn(3, 2, 700, 8)}
    x["v"] = x["k"]
    parts = list(sample.Sampler(forward_of(facts), x).queries())
    assert sum(len(part.rows) for part in parts if part.output == "out") <= 256
    assert {part.sequence for part in parts} == {0, 1, 2}
    assert {part.head for part in parts} == {0, 1, 2, 3}
