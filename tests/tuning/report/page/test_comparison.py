from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning.report.page.comparison import compared
from tests.support.repository import REPOSITORY

RESULTS = sorted((REPOSITORY / "benchmarks" / "results").rglob("*.json"))

Row = dict[str, Any]


def in_rows(left: list[Row], right: list[Row]) -> tuple[list[list[Any]], int]:
    return compared({"rows": left}, {"rows": right})


def test_what_two_results_name_alike_is_compared() -> None:
    left = {"rows": [{"name": "a", "ms": 2.0}, {"name": "b", "ms": 1.0}], "gone": 1, "none": 0}
    right = {"rows": [{"name": "b", "ms": 3.0}, {"name": "a", "ms": 1.0}], "new": 2, "none": 0}
    assert compared(left, right) == (
        [["rows > a > ms", 2, 1, 0.5], ["rows > b > ms", 1, 3, 3], ["none", 0, 0, None]],
        0,
    )


def test_rows_of_one_name_are_told_apart_by_further_texts() -> None:
    rows = [{"name": "mm", "dtype": "bf16", "ms": 1}, {"name": "mm", "dtype": "fp32", "ms": 9}]
    assert in_rows(rows, rows[::-1]) == (
        [["rows > mm bf16 > ms", 1, 1, 1], ["rows > mm fp32 > ms", 9, 9, 1]],
        0,
    )


def test_rows_are_told_apart_by_parameters_and_not_by_results() -> None:
    def row(depth: int, registers: int) -> Row:
        return {"kernel": "fwd", "depth": depth, "run_ms": 1, "dtype": "bf16", "regs": registers}

    rows, left_out = in_rows([row(64, 90), row(128, 91)], [row(128, 90), row(64, 91)])
    assert [each for each in rows if each[0].endswith("regs")] == [
        ["rows > fwd 64 > regs", 90, 91, 1.011],
        ["rows > fwd 128 > regs", 91, 90, 0.989],
    ]
    assert left_out == 0


def test_a_shape_tells_rows_apart() -> None:
    rows = [
        {"size": [n, 4], "what": "forward", "ms": 1.0 + n, "samples_ms": [1, 2]} for n in range(2)
    ]
    known, left_out = in_rows(rows, rows[::-1])
    assert [each[0] for each in known if each[0].endswith("ms")] == [
        "rows > forward 0x4 > ms",
        "rows > forward 1x4 > ms",
    ]
    assert all(left == right for _, left, right, _ in known)
    assert left_out == 0


@pytest.mark.parametrize("turned", [False, True])
def test_rows_that_nothing_tells_apart_are_left_out_and_counted(turned: bool) -> None:
    twice = [{"name": "mm", "ms": 1}, {"name": "mm", "ms": 9}, {"name": "bmm", "ms": 2}]
    once = [{"name": "bmm", "ms": 4}, {"name": "mm", "ms": 1}]
    rows, left_out = in_rows(once, twice) if turned else in_rows(twice, once)
    assert [row[0] for row in rows] == ["rows > bmm > ms"]
    assert left_out == (1 if turned else 2)


def test_rows_without_a_name_are_compared_by_their_place() -> None:
    rows, _ = in_rows([{"s": 1.0}, {"s": 2.0}], [{"s": 2.0}])
    assert rows == [["rows > 0 > s", 1, 2, 2]]
    assert compared({"a": [1, [2]]}, {"a": [1, [4], 5]})[0] == [
        ["a > 0", 1, 1, 1],
        ["a > 1 > 0", 2, 4, 2],
    ]


def test_a_name_with_the_separator_is_not_the_path_that_reads_like_it() -> None:
    assert compared({"a > b": 1}, {"a": {"b": 2}}) == ([], 0)


def test_a_ratio_that_is_no_number_is_left_out_of_a_comparison() -> None:
    left, right = {"small": 1e-300, "whole": 3}, {"small": 1e300, "whole": 10**308}
    rows, _ = compared(left, right)
    assert rows[0] == ["small", 1e-300, 1e300, None]
    json.dumps(rows, allow_nan=False)


def test_numbers_are_compared_however_deep_they_are() -> None:
    content: dict[str, Any] = {"ms": 1}
    for _ in range(3000):
        content = {"in": content}
    assert len(compared(content, content)[0]) == 1
    rows: list[Row] = [{"name": content, "op": "mm", "ms": 1}] * 2
    assert in_rows(rows, rows[:1]) == ([], 4)


ODD: list[Any] = [float("nan"), 10**400, [[[[[]]]]], {"samples_ms": ["x"]}]


@pytest.mark.parametrize("value", ODD)
def test_odd_values_are_no_numbers(value: Any) -> None:
    assert compared({"a": value}, {"a": value}) == ([], 0)
    row = {"name": value, "op": "mm"}
    json.dumps(in_rows([row, row], [row]), allow_nan=False)


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_committed_result_is_equal_to_itself(file: Path) -> None:
    stored: Any = json.loads(file.read_text())
    content: dict[str, Any] = {"rows": stored} if isinstance(stored, list) else stored
    rows, _ = compared(content, content)
    assert rows
    assert all(left == right for _, left, right, _ in rows)


def test_kernels_of_two_versions_are_compared_with_their_own() -> None:
    left, right = (
        json.loads((REPOSITORY / "benchmarks" / "results" / f"{name}.json").read_text())
        for name in ("attention_triton", "attention_triton_3_6")
    )
    rows, left_out = compared(left, right)
    depths = [row for row in rows if row[0].endswith("head_dim")]
    assert depths
    assert all(left == right for _, left, right, _ in depths)
    assert left_out == 0
