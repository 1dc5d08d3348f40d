"""Ranks of a job that die together, in simulated time."""

from __future__ import annotations

import pytest

from benchmarks.fleet.ranks import TIMEOUT_S, Job, simulate_ranks
from benchmarks.fleet.times import committed


@pytest.mark.parametrize("lost", [1, 2, 8])
def test_ranks_that_die_together_cost_one_time_out(lost: int) -> None:
    """Two ranks are left, which have to decide what the others held, two problems each."""
    run = simulate_ranks(Job(2 + lost, 24, lost=lost), committed())
    # A sixth of it may pass before a rank is looked at again for which no thread waits yet.
    assert TIMEOUT_S <= run.makespan_s < 7 / 6 * TIMEOUT_S + 5.0
    assert run.tuned == 24 - 2 * lost


def test_two_ranks_without_a_lost_one_wait_for_no_time_out() -> None:
    run = simulate_ranks(Job(2, 24), committed())
    assert run.makespan_s < TIMEOUT_S
    assert run.tuned == 24
