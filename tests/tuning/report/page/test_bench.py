from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache.document import is_array, is_object
from inductor_plugin.tuning.report.page.bench import (
    MOST_ARMS,
    MOST_COLUMNS,
    MOST_ROWS,
    bench,
)
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
            "columns_left_out": 0,
        }
    ]


def test_what_is_within_rows_is_columns_and_tables() -> None:
    rows = [
        {"name": "a", "inner": {"ms": 1.5, "deep": {"n": 2}}, "times": [1, 2], "grid": [[1], [2]]},
        {"name": "b", "arms": [{"arm": "x", "ms": 3}, {"arm": "y", "ms": 4}, 5]},
        6,
    ]
    first, second = bench({"rows": rows})["tables"]
    names = ["name", "inner.ms", "inner.deep.n", "times", "grid", "value"]
    assert first["columns"] == names
    assert first["rows"][0] == ["a", 1.5, 2, "1, 2", "1, 2", None]
    assert first["rows"][2] == [*[None] * 5, 6]
    assert second["name"] == "rows > arms"
    assert second["columns"] == ["of", "arm", "ms", "value"]
    assert second["rows"] == [["b", "x", 3, None], ["b", "y", 4, None], ["b", None, None, 5]]


def test_an_object_of_objects_in_a_row_is_a_table_by_key() -> None:
    rows = [{"shape": "a", "arms": {"ours": {"ms": 1}, "stock": {"ms": 2, "n": 3}}}]
    _, second = bench({"rows": rows})["tables"]
    assert second["columns"] == ["of", "key", "ms", "n"]
    assert second["rows"] == [["a", "ours", 1, None], ["a", "stock", 2, 3]]


def test_lists_of_values_are_figures_in_few_words() -> None:
    content: dict[str, Any] = {
        "few": [1.0, 2.5],
        "many": list(range(101)),
        "texts": ["t"] * 14,
        "lists": [[1, 2], [3]],
        "empty": [],
    }
    assert bench(content)["figures"] == [
        ["few", "1, 2.5"],
        ["many", "101 values from 0 to 100, median 50"],
        ["texts", "14 values: " + ", ".join(["t"] * 12) + " ..."],
        ["lists > 0", "1, 2"],
        ["lists > 1", "3"],
        ["empty", "none"],
    ]


def test_fields_beside_samples_are_figures() -> None:
    arms = {"ours": {"samples_ms": [1.0], "flops": 7, "build": {"seconds": 2}}}
    assert bench({"arms": arms})["figures"] == [
        ["arms > ours > flops", 7],
        ["arms > ours > build > seconds", 2],
    ]


def test_values_are_shown_however_deep_they_are() -> None:
    content: dict[str, Any] = {"ms": 1}
    for _ in range(3000):
        content = {"in": content}
    ((path, value),) = bench(content)["figures"]
    assert (path.count(" > "), value) == (3000, 1)


def test_what_is_left_out_is_counted() -> None:
    rows = [{f"column {n}": n for n in range(MOST_COLUMNS + 3)}] * (MOST_ROWS + 2)
    figures = {f"figure {n}": n for n in range(MOST_ROWS + 4)}
    samples = {"a": {"samples_ms": [1.0, None, "x"]}, "b": {"samples_ms": [None]}}
    known = bench({"rows": rows, "samples": samples, **figures})
    (table,) = known["tables"]
    assert (table["left_out"], table["columns_left_out"]) == (2, 3)
    assert (len(table["rows"]), len(table["columns"])) == (MOST_ROWS, MOST_COLUMNS)
    assert (len(known["figures"]), known["left_out"]) == (MOST_ROWS, 4 + 3)


def leaves(value: Any) -> int:
    if is_object(value):
        return sum(map(leaves, value.values()))
    return sum(map(leaves, value)) if is_array(value) else 1


def lists_of_values(value: Any) -> int:
    """Return how many values are in lists, which the page may say in few words."""
    if is_object(value):
        return sum(map(lists_of_values, value.values()))
    if not is_array(value):
        return 0
    inner = [each for each in value if is_object(each) or is_array(each)]
    return len(value) - len(inner) + sum(map(lists_of_values, inner))


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_every_value_of_a_committed_result_is_in_the_page(file: Path) -> None:
    content: Any = json.loads(file.read_text())
    content = content if is_object(content) else {"rows": content}
    known = bench(content)
    assert known["left_out"] == 0
    assert all(not each["left_out"] and not each["columns_left_out"] for each in known["tables"])
    cells = sum(len(each["rows"]) * len(each["columns"]) for each in known["tables"])
    samples = sum(len(values) for each in known["samples"] for _, values in each["rows"])
    assert len(known["figures"]) + cells + samples >= leaves(content) - lists_of_values(content)


def test_so_many_arms_that_no_page_could_draw_them_are_counted() -> None:
    """A browser gives up on a call with 200,000 arguments, which are the names of arms here."""
    arms = {f"arm {number}": {"samples_ms": [1.0, 2.0]} for number in range(MOST_ARMS + 3)}
    known = bench(arms)
    (shown,) = known["samples"]
    assert (len(shown["rows"]), known["left_out"]) == (MOST_ARMS, 6)


def test_arms_with_samples_are_drawn_together() -> None:
    arms = {"ours": {"samples_ms": [1.0, 2.0]}, "stock": {"samples_ms": [3.0]}, "seconds": 4}
    known = bench({"networks": {"bert": arms}})
    assert known["samples"] == [
        {"name": "networks > bert", "rows": [["ours", [1, 2]], ["stock", [3]]]}
    ]
    assert known["figures"] == [["networks > bert > seconds", 4]]


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
