"""Ranks of a job on gloo, each a process: they share the tuning out, and run the same kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks.processes import run_ranks

pytestmark = pytest.mark.slow  # `tests/inductor/graph/test_ranks.py` has two ranks in one process

Said = dict[int, dict[str, Any]]


def decisions(said: Said) -> dict[str, set[tuple[str, int, str]]]:
    """Return what runs for each problem on all ranks, who has decided it, and why."""
    result: dict[str, set[tuple[str, int, str]]] = {}
    for each in said.values():
        for name, (winner, by, why) in each["decisions"].items():
            result.setdefault(name, set()).add((winner, by, why))
    return result


def tuned(said: Said) -> int:
    """Return how many problems were tuned in the whole job."""
    return sum(each["stats"]["ranks_tuned"] for each in said.values())


def test_two_ranks_tune_each_problem_once_and_record_the_same_file(tmp_path: Path) -> None:
    said = run_ranks(2, tmp_path, graphs=2, products=2, record=True, verify=True)
    decided = decisions(said)
    assert len(decided) == 4
    assert [len(same) for same in decided.values()] == [1] * 4
    assert tuned(said) == 4
    assert sum(each["stats"]["benchmarked"] for each in said.values()) == 8
    assert max(each["error"] for each in said.values()) < 1e-5
    assert (tmp_path / "pins-0.json").read_bytes() == (tmp_path / "pins-1.json").read_bytes()
    assert [each["report"]["difference"] for each in said.values()] == ["", ""]


def test_eight_ranks_tune_twenty_four_problems_in_all(tmp_path: Path) -> None:
    said = run_ranks(8, tmp_path, graphs=8, products=3, record=True, verify=True)
    decided = decisions(said)
    assert len(decided) == 24
    assert [len(same) for same in decided.values()] == [1] * 24
    assert tuned(said) == 24
    assert sum(each["stats"]["benchmarked"] for each in said.values()) == 48
    assert len({(tmp_path / f"pins-{rank}.json").read_bytes() for rank in range(8)}) == 1
    assert [each["report"]["difference"] for each in said.values()] == [""] * 8
    assert max(each["error"] for each in said.values()) < 1e-5


def test_a_rank_that_is_killed_one_that_is_stopped_and_one_that_skips_cost_a_time_out(
    tmp_path: Path,
) -> None:
    lost, faults = {2, 5}, {"kill": 2, "stop": 5, "skip": 3}
    said = run_ranks(8, tmp_path, lost=lost, graphs=8, products=3, timeout_s=20.0, **faults)
    assert set(said) == set(range(8)) - lost
    decided = decisions(said)
    assert len(decided) == 24
    assert [len(same) for same in decided.values()] == [1] * 24
    assert max(each["error"] for each in said.values()) < 1e-5
    # What the two ranks held has its library kernel: a share of what was undecided each.
    given_up = [why for same in decided.values() for _, _, why in same if "no sign of life" in why]
    assert 2 <= len(given_up) <= 2 * 3


def test_a_rank_that_is_stopped_and_goes_on_takes_what_was_decided_without_it(
    tmp_path: Path,
) -> None:
    said = run_ranks(2, tmp_path, continued={1}, graphs=2, products=2, timeout_s=8.0, stop=1)
    decided = decisions(said)
    assert len(decided) == 4
    assert [len(same) for same in decided.values()] == [1] * 4
    # It had measured, or was about to: what it held is the library kernel, on itself, too.
    given_up = [by for same in decided.values() for _, by, why in same if "no sign of life" in why]
    assert given_up
    assert set(given_up) == {0}
    assert max(each["error"] for each in said.values()) < 1e-5


def test_a_process_group_that_is_initialized_again_begins_anew(tmp_path: Path) -> None:
    said = run_ranks(2, tmp_path, graphs=2, products=2, again=True)
    decided = decisions(said)
    assert len(decided) == 4
    assert [len(same) for same in decided.values()] == [1] * 4
    assert tuned(said) == 8  # the caches of the second time are empty
    assert not any("lost" in why for same in decided.values() for _, _, why in same)
    assert max(each["error"] for each in said.values()) < 1e-5


def test_ranks_with_other_options_are_warned_and_compared(tmp_path: Path) -> None:
    options = {"never_slower_margin": 1.5}
    said = run_ranks(2, tmp_path, graphs=1, products=2, verify=True, odd=1, odd_options=options)
    assert tuned(said) == 4  # each side by itself
    (text,) = {each["report"]["difference"] for each in said.values()}
    fact = "option never_slower_margin is '1.5' on rank 1, '1.02' on rank 0"
    assert fact in text
    assert "decide apart" in text
    warned = [text for each in said.values() for text in each["warnings"] if "apart" in text]
    assert len(warned) == 1
    assert "option never_slower_margin" in warned[0]
    assert max(each["error"] for each in said.values()) < 1e-5


def test_a_rank_that_may_not_measure_runs_what_the_other_tunes(tmp_path: Path) -> None:
    options = {"policy": "cached"}
    said = run_ranks(
        2, tmp_path, graphs=2, products=2, verify=True, odd=1, odd_options=options, timeout_s=20.0
    )
    decided = decisions(said)
    assert [len(same) for same in decided.values()] == [1] * 4
    assert said[1]["stats"]["ranks_tuned"] == said[1]["stats"]["benchmarked"] == 0
    assert [each["report"]["difference"] for each in said.values()] == ["", ""]
    assert max(each["error"] for each in said.values()) < 1e-5


@pytest.mark.parametrize("model", ["fsdp", "tensor"])
def test_models_of_several_ranks_train_as_one_process(model: str, tmp_path: Path) -> None:
    said = run_ranks(2, tmp_path, model=model, verify=True)
    for each in said.values():
        ours, alone = each["losses"]
        assert ours == pytest.approx(alone, rel=1e-5)
        assert each["report"]["difference"] == ""
    decided = decisions(said)
    assert len(decided) >= 4
    assert [len(same) for same in decided.values()] == [1] * len(decided)
    assert tuned(said) == len(decided)
