"""NaN in an operand goes where the formulas take it, and nowhere else."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from inductor_plugin.attention.check.poison import nan_leaks, nan_sites
from inductor_plugin.problem.attention import Attention, Mask
from tests.support.attention import reference

MASKS = [Mask(), Mask(right=0), Mask(left=3, right=1, bottom_right=True)]
LENGTHS = [(12, 9)] * 2
H, HKV, D = 4, 2, 8


def facts_of(mask: Mask, *, backward: bool) -> Attention:
    names = ("do", "q", "k", "v") if backward else ("q", "k", "v")
    return Attention(backward, 2, H, HKV, 12, 9, D, D, 0.3, mask, 0.0, names, "float32")


def outputs(facts: Attention) -> dict[str, list[torch.Tensor]]:
    """Return what the reference gives with NaN planted, by sequence: [heads, rows, width]."""
    torch.manual_seed(0)
    x = {name: torch.randn(2, H, 12, D) for name in ("do", "q")}
    x |= {name: torch.randn(2, HKV, 9, D) for name in ("k", "v")}
    for site in nan_sites(facts, LENGTHS):
        x[site.operand][site.sequence, site.head, site.row, 0] = math.nan
    more: dict[str, Any] = {"mask": facts.mask, "scale": 0.3}
    if facts.backward:
        dq, dk, dv, _ = reference.backward(x["do"], x["q"], x["k"], x["v"], **more)
        return {"dq": list(dq), "dk": list(dk), "dv": list(dv)}
    out, lse = reference.forward(x["q"], x["k"], x["v"], **more)
    return {"out": list(out), "lse": list(lse[..., None])}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_the_formulas_do_what_is_asked_and_nothing_hidden_passes(
    mask: Mask, backward: bool
) -> None:
    facts = facts_of(mask, backward=backward)
    planted = nan_sites(facts, LENGTHS)
    assert [fault.operand for fault in planted] == ["do" if backward else "q", "k"]
    for name, output in outputs(facts).items():
        assert nan_leaks(facts, LENGTHS, planted, name, output, library=False) == ""
        numbers = [part.nan_to_num(0.0, 0.0, 0.0) for part in output]
        for library in (False, True):
            wrong = nan_leaks(facts, LENGTHS, planted, name, numbers, library=library)
            may_be_number = library and name == "lse"  # FlashAttention 2
            assert ("is a number where an operand is NaN" in wrong) is not may_be_number
        leaked = [part.clone() for part in output]
        leaked[0][H - 1 if name not in ("dk", "dv") else HKV - 1, -1] = math.nan
        assert "where all it depends on are numbers" in nan_leaks(
            facts, LENGTHS, planted, name, leaked, library=True
        )


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("mask", [*MASKS[1:], Mask(left=2)], ids=repr)
def test_rows_that_do_not_see_the_key_stay_as_they_are(mask: Mask, backward: bool) -> None:
    facts = facts_of(mask, backward=backward)
    planted = nan_sites(facts, LENGTHS)
    place = planted[-1]
    sees = reference.visible(12, 9, mask)
    assert sees[:, place.row].any()
    apart = ~sees[:, place.row] & sees.any(-1)
    row = int(apart.nonzero()[0])
    for name, output in outputs(facts).items():
        if name in ("dk", "dv"):
            continue
        output[place.sequence][place.head * (H // HKV), row] = math.nan
        wrong = nan_leaks(facts, LENGTHS, planted, name, output, library=False)
        if name == "dq":
            assert wrong == ""
        else:
            assert f"numbers (sequence 1, head {place.head * (H // HKV)}, row {row})" in wrong


def test_nothing_is_planted_where_no_query_sees_a_key() -> None:
    facts = facts_of(Mask(right=0, bottom_right=True), backward=False)
    assert nan_sites(facts, [(0, 5), (5, 0)]) == ()
    first, second = nan_sites(facts, [(0, 5), (5, 3)])
    assert (first.sequence, first.row, second.sequence, second.head) == (1, 4, 1, HKV - 1)
