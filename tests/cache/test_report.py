"""What reports say of a record: the order of its candidates, their marks, and the records near to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache import report
from inductor_plugin.cache.report import Outline
from tests.support.cache.records import decision, measured, record


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_500_000, "1.5 MB"),
        (10**9, "1.0 GB"),
        (10**12, "1.0 TB"),
        (10**16, "10000.0 TB"),
    ],
)
def test_sizes_have_a_readable_unit(size_bytes: int, text: str) -> None:
    assert report.size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.23456, "1.235 ms"),
        (3, "3 ms"),
        (True, "-"),
        (None, "-"),
        ("1", "-"),
        (float("inf"), "-"),
        (10**400, "-"),
    ],
)
def test_what_is_no_number_is_a_dash(value: object, text: str) -> None:
    assert report.number_text(value, " ms") == text
    assert report.time_text(1e300) == "-"


def rows_of(*rows: Any, **fields: Any) -> list[list[str]]:
    """Return the words of each line of a record's candidates, without the heads."""
    lines = report.candidates_text(record(*rows, **fields)).splitlines()
    return [line.split() for line in lines[1:]]


def test_candidates_that_ran_come_first_by_their_times_then_those_that_failed() -> None:
    rows = (
        measured("slow", 2.0, description=""),
        measured("fast", 1.0, description=""),
        measured("wrong", 0.5, status="wrong", description=""),
        measured("dead", None, status="hung", description="", reason="no answer"),
    )
    chosen = replace(decision("fast"), library="slow")
    assert rows_of(*rows, decision=chosen) == [
        ["runs", "1", "0.1", "1.00x", "2", "ok", "fast"],
        ["lib", "2", "0.1", "2.00x", "2", "ok", "slow"],
        ["-", "-", "-", "0", "hung", "dead:", "no", "answer"],
        ["0.5", "0.1", "0.50x", "2", "wrong", "wrong"],
    ]
    (first, *_) = rows_of(*rows, decision=replace(chosen, winner="slow"))
    assert first[0] == "1"  # the fastest does not run
    stays = replace(decision("slow"), library="slow")
    assert rows_of(rows[0], decision=stays)[0][:2] == ["runs", "lib"]
    noisy = measured("a", 1.0, spread_ms=2.0)
    assert rows_of(noisy)[0] == ["1", "2", "1.00x", "2", "ok,", "noisy", "a", "block_m=32"]


def outline(name: str, **problem: Any) -> Outline:
    return Outline(name, f"mm of {name}", problem)


def test_the_nearest_record_is_another_one_that_differs_in_the_fewest_fields() -> None:
    kept = record(digest="k", problem=1)
    near = outline("z", **{**kept.problem, "size": [7, 7]})
    far = outline("a", **{**kept.problem, "size": [7, 7], "op": "bmm"})
    itself = outline("k", **kept.problem)
    assert report.nearest(kept, [far, near, itself]) == near
    assert report.nearest(kept, [itself]) is None
    alike = replace(near, digest="b")
    assert report.nearest(kept, [near, alike]) == report.nearest(kept, [alike, near]) == alike


@pytest.mark.parametrize(("count", "more"), [(8, ""), (9, "  and 1 more"), (11, "  and 3 more")])
def test_of_many_differences_eight_are_shown(count: int, more: str) -> None:
    kept = record(measured("a"), environment="here")
    other = {f"field{number:02}": number for number in range(count)}
    explained = report.explanation(kept, [], {"here": {}, "there": other}, ["there"])
    said = report.explanation_text(kept, explained).splitlines()
    start = said.index("Environment there also has this problem; it differs in:")
    shown = said[start + 1 :]
    assert shown[0] == "  field00: 0 -> '(absent)'"
    assert shown[8:] == ([more] if more else [])
    assert "There is no other record of mm in this environment." in said


def test_an_environment_that_lacks_the_problem_or_is_alike_says_so() -> None:
    kept = record(measured("a"), environment="here")
    environments = {"here": {"x": 1}, "there": {"x": 1}}
    explained = report.explanation(kept, [], environments, ["here"])
    said = report.explanation_text(kept, explained)
    assert "Environment there does not have this problem; it differs in:\n  nothing" in said
    assert "Environment here" not in said
    assert "Runs: nothing decided" in said
    assert "Why:  nothing is decided yet\n" in said
