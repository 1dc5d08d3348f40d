"""What a comparison of graphs says beside other work, and what it leaves as it was."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

from inductor_plugin.cache import open_store
from inductor_plugin.cache.graph import TUNED
from inductor_plugin.inductor.allowance import Allowance, Cost, account_of
from inductor_plugin.inductor.graph.record import is_cut, is_firm
from inductor_plugin.inductor.guard import schedule
from inductor_plugin.inductor.guard.bench import CallsTooLongError, NotComparedError
from inductor_plugin.inductor.guard.comparison import Comparison
from inductor_plugin.tuning import validity
from inductor_plugin.tuning.validity import attempts
from tests.support.compile import fresh
from tests.support.fakes.referee import (
    Referee,
    choose_otherwise,
    graph_record,
    judge,
    rivals_win,
    run,
)

__all__ = ["fresh", "rivals_win"]  # the fixtures
pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is disturbed is measured and compared again by the next compile."""
    monkeypatch.setattr(validity, "AGAIN_S", -1.0)


@pytest.mark.parametrize(
    ("disturbed", "again_s", "count", "hits"),
    [(True, -1.0, 2, 0), (True, 1e6, 1, 1), (False, 1e6, 1, 1)],
)
def test_a_comparison_beside_other_work_is_made_again(
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    disturbed: bool,
    again_s: float,
    count: int,
    hits: int,
) -> None:
    """Inductor's cache has the graph only until then: out of it, it is not lowered, nor compared."""
    monkeypatch.setattr(validity, "AGAIN_S", again_s)
    compared: list[int] = []

    def compare(*_: Any) -> Comparison:
        compared.append(1)
        return Comparison((1.0,) * 5, (1.0,) * 5, disturbed=disturbed)

    judge(monkeypatch, compare)
    counters.clear()
    with inductor_config.patch(fx_graph_cache=True):
        assert [run(cache_dir), run(cache_dir)] == [2, 2]
    assert len(compared) == count
    assert counters["inductor"]["fxgraph_cache_hit"] == hits
    record = graph_record(cache_dir)
    assert is_firm(record) is not disturbed
    assert attempts(record.candidates[TUNED]) == (count if disturbed else 0)
    if disturbed and hits:  # nor is it where Inductor's cache is off
        assert run(cache_dir) == 2
        assert len(compared) == count


def test_a_comparison_beside_other_work_replaces_no_other(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph was slower with a choice; that other choices have been made since is no reason to try it unguarded."""
    Referee(monkeypatch, allowed=1)
    assert run(cache_dir) == 1
    choose_otherwise(cache_dir)
    before = graph_record(cache_dir)
    judge(monkeypatch, mock.Mock(return_value=Comparison((1.0,) * 5, (1.0,) * 5, disturbed=True)))
    assert run(cache_dir) == 1
    assert graph_record(cache_dir) == before
    Referee(monkeypatch, allowed=2)
    assert run(cache_dir) == 2
    decision = graph_record(cache_dir).decision
    assert decision is not None
    assert decision.winner == TUNED


def test_what_is_given_up_beside_other_work_is_searched_again(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def disturbed_search(*_: Any) -> Comparison:
        compared.append(1)
        return Comparison((2.0,) * 5, (1.0,) * 5, disturbed=len(compared) > 1)

    judge(monkeypatch, disturbed_search)
    assert run(cache_dir) == 0
    assert not is_firm(graph_record(cache_dir))
    Referee(monkeypatch, allowed=1)
    assert run(cache_dir) == 1
    assert is_firm(graph_record(cache_dir))


def test_a_graph_that_was_left_out_is_compared_once_there_is_time(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a warm start finds it in Inductor's cache."""
    referee = Referee(monkeypatch, allowed=1)
    counters.clear()
    options: dict[str, Any] = {"verify_graph_share": 0.0}
    with inductor_config.patch(fx_graph_cache=True):
        assert [run(cache_dir, **options), run(cache_dir, **options)] == [2, 2]
        assert (referee.compared, counters["inductor"]["fxgraph_cache_hit"]) == ([], 1)
        store = open_store(cache_dir)
        account = account_of(next(store.iter_records()).environment)
        Allowance(store, account).earn(1e4)
        assert run(cache_dir, **options) == 1
        assert (referee.compared, counters["inductor"]["fxgraph_cache_hit"]) == ([2, 1, 1], 1)
        assert Allowance(store, account).left_s < 1e4
        assert run(cache_dir, **options) == 1
        assert counters["inductor"]["fxgraph_cache_hit"] == 2


@pytest.mark.parametrize(
    ("need_s", "asked", "count"), [(60.0, "auto", 2), (601.0, "auto", 1), (60.0, "on", 1)]
)
def test_a_graph_whose_calls_take_too_long_is_compared_once_there_is_time_for_them(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, need_s: float, asked: str, count: int
) -> None:
    """The allowance has it here; what no later compile has time for either stays in Inductor's cache."""
    error = CallsTooLongError("16 calls of 4 s take longer than 50 s", need_s)
    compare = mock.Mock(side_effect=error)
    judge(monkeypatch, compare)
    counters.clear()
    with inductor_config.patch(fx_graph_cache=True):
        assert [run(cache_dir, verify_graph=asked) for _ in range(2)] == [2, 2]
    assert compare.call_count == count
    assert counters["inductor"]["fxgraph_cache_hit"] == 2 - count


def test_each_comparison_that_fails_again_is_repeated_later(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's cache keeps how many have failed, and each is due at once here."""
    asked: list[int] = []

    def wait_s(failures: int) -> float:
        asked.append(failures)
        return -1.0

    monkeypatch.setattr(schedule, "failure_wait_s", wait_s)
    judge(monkeypatch, mock.Mock(side_effect=NotComparedError("crashed")))
    with inductor_config.patch(fx_graph_cache=True):
        assert [run(cache_dir) for _ in range(3)] == [2, 2, 2]
    assert asked == [1, 2, 3]


def test_a_search_that_there_is_no_time_for_is_made_later(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    referee = Referee(monkeypatch, allowed=1)
    with monkeypatch.context() as short:
        short.setattr(Cost, "runs_in", mock.Mock(return_value=0))
        assert run(cache_dir) == 0
    assert referee.compared == [2]
    assert is_cut(graph_record(cache_dir))
    assert run(cache_dir) == 1
    assert not is_cut(graph_record(cache_dir))
