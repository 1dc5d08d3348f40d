"""Ranks of a job on gloo, each a process: they share the tuning out, and run the same kernels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning.pins.document import read_file
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
    each = "pins-{rank}.json"
    said = run_ranks(2, tmp_path, graphs=2, products=2, record=each, verify=True)
    decided = decisions(said)
    assert len(decided) == 4
    assert [len(same) for same in decided.values()] == [1] * 4
    assert tuned(said) == 4
    assert sum(each["stats"]["benchmarked"] for each in said.values()) == 8
    assert max(each["error"] for each in said.values()) < 1e-5
    assert (tmp_path / "pins-0.json").read_bytes() == (tmp_path / "pins-1.json").read_bytes()
    assert [each["report"]["difference"] for each in said.values()] == ["", ""]


EIGHT: dict[str, Any] = {"graphs": 8, "products": 3}
"""A job of eight ranks and 24 problems."""
THREE: dict[str, Any] = {"graphs": 3, "products": 2, "host": True}
"""A job of three ranks and 6 problems, whose rank 0 serves the store."""
TIMEOUT_S = 20.0
"""Time-out of jobs with faults; those without have a minute, in which a busy machine lets every rank run."""
STORE_S = 30.0
"""Time in which the job's store has to answer, whatever the time-out of ranks."""
LATE_S = 10.0
"""By so much a rank may look late, on two cores that run eight."""
_SILENT = re.compile(r"no sign of life for (\d+) s")
BUSY, BUSY_S = 1.5, 10.0
"""How many times as long a job may take, and how much longer, on two cores."""


def limit_s(calm: Said, timeouts: int) -> float:
    """Return the seconds in which a job with faults has to end, by the same one without: time-outs are what it may take longer."""
    return BUSY * max(each["seconds"] for each in calm.values()) + BUSY_S + timeouts * TIMEOUT_S


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """Return the folder of a job of eight ranks without faults, and what they said; they have one cache, and record together."""
    folder = tmp_path_factory.mktemp("eight")
    more = {"record": "pins.json", "parts": "parts.json", "taste": True}
    return folder, run_ranks(8, folder, shared_cache=True, verify=True, **more, **EIGHT)


def test_eight_ranks_tune_twenty_four_problems_in_all_and_record_one_file(
    eight: tuple[Path, Said],
) -> None:
    folder, said = eight
    decided = decisions(said)
    assert len(decided) == 24
    assert [len(same) for same in decided.values()] == [1] * 24
    # What runs on all ranks is to the taste of the one that has decided it.
    odd = [winner for ((winner, by, _),) in decided.values() if by % 2]
    assert 0 < sum(winner.startswith("rivals") for winner in odd) == len(odd) < 24
    assert tuned(said) == 24
    assert sum(each["stats"]["benchmarked"] for each in said.values()) == 48
    assert [each["report"]["difference"] for each in said.values()] == [""] * 8
    assert max(each["error"] for each in said.values()) < 1e-5
    # Each rank begins with another graph: to the second file it has added three decisions.
    for name in ("pins", "parts"):
        assert [file.name for file in folder.glob(f"*{name}*")] == [f"{name}.json"]
        pins = read_file(folder / f"{name}.json").pins.values()
        assert len(pins) == 24
        recorded = {f"{pin.op}/{pin.digest}": pin.winner for pin in pins}
        for each in said.values():
            assert {key: winner for key, (winner, *_) in each["decisions"].items()} == recorded


def test_a_rank_that_is_killed_one_that_is_stopped_and_one_that_skips_cost_a_time_out(
    eight: tuple[Path, Said], tmp_path: Path
) -> None:
    lost = {2, 5}
    faults: dict[str, Any] = {"kill": 2, "stop": 5, "skip": 3, "timeout_s": TIMEOUT_S}
    said = run_ranks(8, tmp_path, lost=lost, **faults, **EIGHT)
    assert set(said) == set(range(8)) - lost
    decided = decisions(said)
    assert len(decided) == 24
    assert [len(same) for same in decided.values()] == [1] * 24
    assert max(each["error"] for each in said.values()) < 1e-5
    # What each of the two ranks held has its library kernel: a share of what was undecided.
    given_up = [why for same in decided.values() for _, _, why in same if "no sign of life" in why]
    for rank in lost:
        assert 1 <= sum(f"without rank {rank}," in why for why in given_up) <= 3
    silent_s = [float(_SILENT.findall(why)[0]) for why in given_up]
    assert min(silent_s) >= TIMEOUT_S
    assert max(silent_s) <= TIMEOUT_S + LATE_S
    # Both are lost in the same seconds, and their time-outs run at once.
    assert max(each["seconds"] for each in said.values()) < limit_s(eight[1], timeouts=1)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Return what the ranks of a job of three without faults said."""
    said = run_ranks(3, tmp_path_factory.mktemp("three"), **THREE)
    assert [len(same) for same in decisions(said).values()] == [1] * 6
    assert tuned(said) == 6
    return said


@pytest.mark.parametrize("fault", ["stop", "kill"])
def test_a_job_whose_store_goes_with_rank_0_ends_with_library_kernels_after_a_time_out(
    fault: str, three: Said, tmp_path: Path
) -> None:
    faults: dict[str, Any] = {fault: 0, "timeout_s": TIMEOUT_S}
    said = run_ranks(3, tmp_path, lost={0}, **faults, **THREE)
    assert set(said) == {1, 2}
    for each in said.values():
        assert each["error"] < 1e-5
        # All ranks need what rank 0 held, and nobody can say any more what runs there.
        lost = [
            why for _, _, why in each["decisions"].values() if "the store of the job is lost" in why
        ]
        assert lost
        warned = [text for text in each["warnings"] if "store of the job is lost" in text]
        assert len(warned) == 1
    assert max(each["seconds"] for each in said.values()) < limit_s(three, timeouts=0) + STORE_S


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
