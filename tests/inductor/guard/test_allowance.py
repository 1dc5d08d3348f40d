"""How much of the time of compiles comparisons may take."""

from __future__ import annotations

import pytest

from inductor_plugin.inductor.guard.allowance import Allowance, Cost


def test_comparisons_take_no_more_than_their_share() -> None:
    allowance = Allowance()
    assert allowance.left_s(0.1) == 0.0
    allowance.earn(60.0)
    allowance.earn(40.0)
    allowance.spend(7.0)
    assert allowance.left_s(0.1) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("cost", "left_s", "fits"),
    [
        (Cost(compile_s=6.0, run_s=1.0), 7.0, True),
        (Cost(compile_s=6.0, run_s=1.0), 6.9, False),
        (
            Cost(compile_s=1.0, start_s=4.0, run_s=0.5),
            4.4,
            False,
        ),  # the worker gets ready meanwhile
        (Cost(compile_s=1.0, start_s=4.0, run_s=0.5), 4.5, True),
    ],
)
def test_it_is_left_out_where_it_would_take_more(cost: Cost, left_s: float, *, fits: bool) -> None:
    reason = cost.why_left_out(left_s, 0.1)
    assert (reason == "") is fits
    assert fits or f"{left_s:.1f} s are left of the 10% of compile time" in reason
