"""How often a rank asks the store."""

from __future__ import annotations

import pytest

from inductor_plugin.tuning.ranks.pace import Pace


def pauses(pace: Pace, number: int, *, changed: bool = False) -> list[float]:
    return [pace.ask(float(step), changed=changed) for step in range(number)]


@pytest.mark.parametrize(
    ("world", "shortest_s", "longest_s"), [(2, 0.02, 0.5), (1_000, 0.05, 0.5), (10_000, 0.5, 5.0)]
)
def test_a_rank_asks_less_and_less_while_nothing_changes(
    world: int, shortest_s: float, longest_s: float
) -> None:
    pace = Pace(0, world)
    waits = pauses(pace, 20)
    assert shortest_s * 0.75 <= waits[0] <= shortest_s * 1.25
    assert longest_s * 0.75 <= waits[-1] <= longest_s * 1.25
    assert shortest_s * 0.75 <= pace.ask(0.0, changed=True) <= shortest_s * 1.25


def test_ranks_with_the_same_answers_ask_at_other_times() -> None:
    assert len({pauses(Pace(rank, 8), 3)[-1] for rank in range(8)}) == 8


def test_it_is_time_to_ask_at_first_and_after_the_pause() -> None:
    pace = Pace(0, 2)
    assert pace.due(0.0)
    pause_s = pace.ask(0.0, changed=False)
    assert (pace.due(0.9 * pause_s), pace.due(1.1 * pause_s)) == (False, True)
