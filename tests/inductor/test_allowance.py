"""How much of the time of compiles comparisons may take, and what is left to later ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.inductor.allowance import (
    MOST_S,
    Allowance,
    Cost,
    account_of,
    balance_s,
)

ACCOUNT = account_of("e" * 64)


def test_a_later_process_spends_what_others_have_left(tmp_path: Path) -> None:
    first = Allowance(open_store(tmp_path), ACCOUNT)
    assert first.left_s == 0.0
    first.earn(6.0)
    first.earn(4.0)
    first.spend(7.0)
    later = Allowance(open_store(tmp_path), ACCOUNT)
    assert later.left_s == pytest.approx(3.0)
    later.spend(5.0)  # it took longer than was expected
    assert Allowance(open_store(tmp_path), ACCOUNT).left_s == pytest.approx(-2.0)
    assert Allowance(open_store(tmp_path), account_of("f" * 64)).left_s == 0.0


def test_counting_anew_keeps_what_is_saved_up(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    Allowance(store, ACCOUNT).earn(6.0)
    store.add_counts(hits=3, misses=1)
    store.zero_counters()
    assert store.counters() == {ACCOUNT: 6000}
    assert Allowance(open_store(tmp_path), ACCOUNT).left_s == pytest.approx(6.0)
    store.add_counts(hits=1)
    assert store.counters() == {ACCOUNT: 6000, "hits": 1}


def test_a_cache_that_is_not_written_leaves_it_to_its_own_process(tmp_path: Path) -> None:
    store = open_store(tmp_path / "none", memory_only=True)
    Allowance(store, ACCOUNT).earn(6.0)
    assert Allowance(store, ACCOUNT).left_s == pytest.approx(6.0)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("saved_s", "earned_s", "left_s"),
    [
        (0.0, 2.0, 2.0),
        (-3.0, 2.0, -1.0),
        (MOST_S, 2.0, MOST_S + 2.0),
        (MOST_S + 2.0, 2.0, MOST_S + 2.0),
    ],
)
def test_no_more_than_five_minutes_are_saved_up(
    saved_s: float, earned_s: float, left_s: float
) -> None:
    assert balance_s(saved_s, earned_s) == left_s


@pytest.mark.parametrize(
    ("cost", "left_s", "fits"),
    [
        (Cost(compile_s=6.0, run_s=1.0), 7.0, True),
        (Cost(compile_s=6.0, run_s=1.0), 6.9, False),
        # the worker gets ready meanwhile
        (Cost(compile_s=1.0, start_s=4.0, run_s=0.5), 4.4, False),
        (Cost(compile_s=1.0, start_s=4.0, run_s=0.5), 4.5, True),
        # it is ready
        (Cost(compile_s=1.0, start_s=0.0, run_s=0.5), 1.5, True),
        # the search takes four more
        (Cost(compile_s=1.0, start_s=0.0, run_s=0.5, runs=4), 7.4, False),
        (Cost(compile_s=1.0, start_s=0.0, run_s=0.5, runs=4), 7.5, True),
    ],
)
def test_it_is_left_out_where_it_would_take_more(cost: Cost, left_s: float, *, fits: bool) -> None:
    reason = cost.why_left_out(left_s, 0.1)
    assert (reason == "") is fits
    assert fits or f"{left_s:.1f} s are left of the 10% of compile time" in reason


@pytest.mark.parametrize(
    ("left_s", "runs"), [(-1.0, 0), (1.9, 0), (2.0, 1), (4.9, 2), (6.5, 4), (99.0, 4)]
)
def test_a_search_has_as_many_compiles_as_there_is_time_for(left_s: float, runs: int) -> None:
    """What it finds is run once more."""
    assert Cost(compile_s=1.0, run_s=0.5).runs_in(left_s, 4) == runs
