from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning.report.page.bench import bench, compared
from tests.support.repository import REPOSITORY

RESULTS = sorted((REPOSITORY / "benchmarks" / "results").glob("*.json"))


def test_lists_of_objects_are_tables_and_numbers_are_figures() -> None:
    content: dict[str, Any] = {
        "machine": {"torch": "2.14"},
        "rows": [{"name": "a", "ms": 1.0, "inside": {}}, {"name": "b", "extra": True}],
    }
    known = bench(content)
    assert known["figures"] == [["machine > torch", "2.14"]]
    assert known["tables"] == [
        {
            "name": "rows",
            "columns": ["name", "ms", "extra"],
            "rows": [["a", 1, None], ["b", None, True]],
            "left_out": 0,
        }
    ]


def test_arms_with_samples_are_drawn_together() -> None:
    arms = {"ours": {"samples_ms": [1.0, 2.0]}, "stock": {"samples_ms": [3.0]}, "seconds": 4}
    known = bench({"networks": {"bert": arms}})
    assert known["samples"] == [
        {"name": "networks > bert", "rows": [["ours", [1, 2]], ["stock", [3]]]}
    ]
    assert known["figures"] == [["networks > bert > seconds", 4]]


def test_what_two_results_name_alike_is_compared() -> None:
    left = {"rows": [{"name": "a", "ms": 2.0}, {"name": "b", "ms": 1.0}], "gone": 1, "none": 0}
    right = {"rows": [{"name": "b", "ms": 3.0}, {"name": "a", "ms": 1.0}], "new": 2, "none": 0}
    assert compared(left, right) == [
        ["rows > a > ms", 2, 1, 0.5],
        ["rows > b > ms", 1, 3, 3],
        ["none", 0, 0, None],
    ]


def test_a_ratio_that_is_no_number_is_left_out_of_a_comparison() -> None:
    left, right = {"small": 1e-300, "whole": 3}, {"small": 1e300, "whole": 10**308}
    rows = compared(left, right)
    assert rows[0] == ["small", 1e-300, 1e300, None]
    json.dumps(rows, allow_nan=False)


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_each_committed_result_is_shown(file: Path) -> None:
    content: Any = json.loads(file.read_text())
    known = bench({"rows": content} if isinstance(content, list) else content)
    assert known["tables"] or known["samples"] or known["figures"]
    json.dumps(known, allow_nan=False)


ODD: list[Any] = [float("nan"), 10**400, [[[[[]]]]], {"samples_ms": ["x"]}]


@pytest.mark.parametrize("value", ODD)
def test_odd_values_are_no_numbers(value: Any) -> None:
    json.dumps(bench({"a": value, "b": {"c": value}}), allow_nan=False)
    assert compared({"a": value}, {"a": value}) == []
