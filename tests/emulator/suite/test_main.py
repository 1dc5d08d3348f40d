"""What the suite's command says at its end."""

from __future__ import annotations

from typing import cast

import pytest

from tests.emulator.machine.schedule import EAGER, LATE, Schedule
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.__main__ import left_lines, row_of
from tests.emulator.suite.entry import Entry
from tests.emulator.suite.row import Row, Verdict


def entry_of(family: str, name: str, last: Verdict | None = None) -> Entry:
    """Return a case that is right when it is run early; ``last`` is what is seen of it when it is run late."""

    def run(runtime: Runtime, schedule: Schedule) -> Verdict:
        del runtime
        return last if last is not None and schedule == LATE else Verdict(0.5, 0, [])

    return Entry(family, name, "H100", run, template="triton_decode", schedules=(EAGER, LATE))


def recorded(entry: Entry, *schedules: Schedule, source: str = "") -> Row:
    errors = {str(schedule): 0.5 for schedule in schedules}
    return Row(entry.family, entry.name, "", "H100", source or entry.source, errors)


WHOLE, HALF, OLD, NEW = (entry_of("first", name) for name in ("whole", "half", "old", "new"))
OTHER = entry_of("second", "other")
CASES = (WHOLE, HALF, OLD, NEW, OTHER)
ROWS = {
    "whole": recorded(WHOLE, EAGER, LATE),
    "half": recorded(HALF, EAGER),
    "old": recorded(OLD, EAGER, LATE, source="of before"),
    "other": recorded(OTHER, EAGER, LATE),
}


def test_cases_without_a_whole_row_of_their_source_are_named_by_family() -> None:
    assert left_lines(CASES, ROWS, ()) == [
        "first: 3 of 4 cases still to run\n  half\n  old\n  new",
        "second: 0 of 1 cases still to run",
    ]


def test_a_case_that_was_right_now_is_not_left_and_a_wrong_one_is() -> None:
    assert left_lines((HALF, NEW), ROWS, {"new"}) == ["first: 1 of 2 cases still to run\n  half"]


def test_of_all_cases_again_those_count_that_were_run_now() -> None:
    assert left_lines((WHOLE, NEW), {}, {"new"}) == ["first: 1 of 2 cases still to run\n  whole"]


@pytest.mark.parametrize(
    "last", [Verdict(1.5, 0, []), Verdict(float("nan"), 0, []), Verdict(0.5, 3, [])]
)
def test_a_case_that_is_wrong_in_its_last_schedule_has_no_whole_row(last: Verdict) -> None:
    wrong = entry_of("first", "wrong", last)
    row, text = row_of(cast("Runtime", None), wrong)
    assert text.startswith("late: error ")
    assert row.errors == {"eager": 0.5}
    assert left_lines((wrong,), {"wrong": row}, ()) == ["first: 1 of 1 cases still to run\n  wrong"]
    row, text = row_of(cast("Runtime", None), WHOLE)
    assert (text, row.errors) == ("", {"eager": 0.5, "late": 0.5})
