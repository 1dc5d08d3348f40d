"""Every case of every kernel in its schedules, and the committed table of what was seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.emulator.machine.schedule import EAGER, LATE, Schedule
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import row as row_module
from tests.emulator.suite import templates
from tests.emulator.suite.__main__ import is_done
from tests.emulator.suite.entry import Entry, entries
from tests.emulator.suite.row import counts_of
from tests.support.attention import backward_cases, forward_cases

ENTRIES = entries()
_UNSEEN = ("sm100", "tree")
"""Families that have not been run whole: of them, the cases of the committed table are tests (`python -m tests.emulator.suite`)."""
_OLD = ("fmha", "sm80", "sm90", "triton")
"""Families with rows of the committed table that are of another source than today's, not of all schedules, or without a time."""


def sampled(place: int, schedules: Sequence[Schedule]) -> list[Schedule]:
    """Return a case's schedules in tests: the earliest, the latest, and by the case's place one of the others.

    That halves the number of tests; `python -m tests.emulator.suite` runs all schedules for the committed table.
    """
    always = [schedule for schedule in schedules if schedule in (EAGER, LATE)]
    others = [schedule for schedule in schedules if schedule not in always]
    return [*always, others[place % len(others)]] if others else always


RUNS = [
    (name, schedule)
    for place, (name, entry) in enumerate(ENTRIES.items())
    if entry.family not in _UNSEEN or name in row_module.read()
    for schedule in sampled(place, entry.schedules)
]
MORE = 1.25
"""A count may grow by this factor and by `_FEW`: another version of nvcc schedules other instructions."""
_FEW = 4096
"""At most half of the count: what doubles is seen, however little it is."""


def test_no_committed_row_is_wrong_or_of_no_case() -> None:
    rows = row_module.read()
    assert rows
    for name, row in rows.items():
        entry = ENTRIES[name]
        assert (row.family, row.kernel, row.gpu) == (entry.family, entry.kernel, entry.gpu)
        assert set(row.errors) <= {str(schedule) for schedule in entry.schedules}
        assert all(error <= 1 for error in row.errors.values()), name
        assert row.family in _OLD or is_done(entry, row), name


def test_families_of_old_rows_have_one() -> None:
    rows = row_module.read()
    old = {row.family for name, row in rows.items() if not is_done(ENTRIES[name], row)}
    assert set(_OLD) <= old


def test_families_that_are_not_run_whole_have_cases_without_a_row() -> None:
    rows = row_module.read()
    whole = {entry.family for entry in ENTRIES.values()} - {
        entry.family for name, entry in ENTRIES.items() if name not in rows
    }
    assert whole.isdisjoint(_UNSEEN)
    assert "fmha" in whole


def test_what_a_kernel_reads_and_writes_is_at_least_its_operands_and_not_much_more() -> None:
    row = row_module.read()["sm80 one A for all"]
    m, n, k, batch = 65, 72, 40, 3
    once = 2 * batch * (m * k + k * n)
    assert once < row.counts["global read"] <= 2 * once
    assert row.counts["global written"] == 2 * batch * m * n
    assert row.counts["tensor operations"] >= 2 * batch * m * n * k


@pytest.mark.slow
@pytest.mark.parametrize(("name", "schedule"), RUNS, ids=str)
def test_a_kernel_is_right(runtime: Runtime, name: str, schedule: Schedule) -> None:
    entry = ENTRIES[name]
    verdict = entry.run(runtime, schedule)
    assert verdict.error <= 1
    assert verdict.changed == 0
    if schedule == EAGER and (row := row_module.read().get(name)) is not None:
        grown = larger(row.counts, counts_of(verdict.launches))
        assert not grown, f"more than recorded: {grown}"


def larger(recorded: dict[str, int], now: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return what has grown beyond its record: before and now."""
    return {
        name: (recorded.get(name, 0), count)
        for name, count in now.items()
        if count > MORE * recorded.get(name, 0) + min(_FEW, recorded.get(name, 0) // 2)
    }


def test_a_kernel_that_moves_twice_as_much_is_found() -> None:
    recorded = {"global read": 100_000, "shared read": 10, "local read": 0}
    assert larger(recorded, {"global read": 200_000, "shared read": 20, "local read": 4}) == {
        "global read": (100_000, 200_000),
        "shared read": (10, 20),
        "local read": (0, 4),
    }
    assert larger(recorded, {"global read": 110_000, "shared read": 16, "local read": 0}) == {}


def test_each_family_has_cases() -> None:
    families: dict[str, list[Entry]] = {}
    for entry in ENTRIES.values():
        families.setdefault(entry.family, []).append(entry)
    assert set(families) == {"sm80", "sm90", "sm100", "tree", "fmha", "triton"}
    templates = {entry.template for entry in families["triton"]}
    for template in templates - {"triton_persistent_tma", "triton_fp8"}:
        gpus = {entry.gpu for entry in families["triton"] if entry.template == template}
        assert gpus == {"A100", "H100", "B200"}, template


def test_no_mask_that_hides_nothing_is_run_in_place_of_one() -> None:
    for gpu in templates.GPUS.values():
        masks = [
            trial.case.mask for trial in templates.forwards(gpu).values() if trial.group == "masks"
        ]
        assert forward_cases.MASKS[-1] not in masks
        kinds = {(mask.left >= 0, mask.right >= 0, mask.bottom_right) for mask in masks}
        assert len(kinds) == len(masks) == 7


def test_all_gradients_of_the_fast_tests_and_each_kind_of_mask_run_somewhere() -> None:
    chosen = [
        trial for gpu in templates.GPUS.values() for trial in templates.backwards(gpu).values()
    ]
    left = [trial for trial in backward_cases.fast() if trial not in chosen]
    assert {trial.group for trial in left} == {"masks"}
    masks = [trial.case.mask for trial in chosen if trial.group == "masks"]
    assert {(mask.left >= 0, mask.right >= 0, mask.bottom_right) for mask in masks} >= {
        (left, right, corner)
        for left in (False, True)
        for right in (False, True)
        for corner in (False, True)
        if left or right or not corner
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ENTRIES if ", multiprocessors: " in name])
def test_blocks_of_few_multiprocessors_take_several_tiles(runtime: Runtime, name: str) -> None:
    count = int(name.partition(", multiprocessors: ")[2].partition(",")[0])
    (launch,) = ENTRIES[name].run(runtime, EAGER).launches
    whole = name.replace(f", multiprocessors: {count}", "")
    (of_all,) = ENTRIES[whole].run(runtime, EAGER).launches
    assert launch.shape.grid == (count, 1, 1)
    assert of_all.shape.blocks > count
    assert launch.traffic["global written"] == of_all.traffic["global written"]


def test_the_sampled_schedules_leave_none_out() -> None:
    for family in {entry.family for entry in ENTRIES.values()}:
        cases = [(place, e) for place, e in enumerate(ENTRIES.values()) if e.family == family]
        run = {schedule for place, entry in cases for schedule in sampled(place, entry.schedules)}
        assert run == {schedule for _, entry in cases for schedule in entry.schedules}, family
