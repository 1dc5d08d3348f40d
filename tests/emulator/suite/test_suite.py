"""Every case of every kernel in its schedules, and the committed table of what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from inductor_plugin.problem.target import target
from tests.emulator.kernels import build, gemm
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.races.touched import RaceError
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import row as row_module
from tests.emulator.suite.__main__ import is_done
from tests.emulator.suite.cases import products, templates
from tests.emulator.suite.entry import Entry, entries, with_fence
from tests.emulator.suite.row import Row, counts_of, differing
from tests.support.attention import backward_cases, forward_cases
from tests.support.repository import REPOSITORY

ENTRIES = entries()
TOGETHER = 8
"""Cases whose kernels are compiled as one unit."""


def sampled(place: int, schedules: Sequence[Schedule]) -> list[Schedule]:
    """Return a case's schedules in tests: by its place the earliest or the latest, and for every third case one of the others.

    That leaves a sixth of all runs; `python -m tests.emulator.suite` runs all of them for the committed table, in which no row may
    get old (`test_each_case_has_a_whole_row_of_today_s_source`).
    """
    ends = [schedule for schedule in schedules if schedule in (EAGER, LATE)]
    others = [schedule for schedule in schedules if schedule not in ends]
    turn = place // 3
    return [ends[place % len(ends)], *(others[turn % len(others)] for _ in range(place % 3 == 0))]


RUNS = [
    (name, schedule)
    for place, (name, entry) in enumerate(ENTRIES.items())
    for schedule in sampled(place, entry.schedules)
]


def test_the_digest_of_the_emulator_is_of_all_its_folders_but_those_of_kernels() -> None:
    folder = REPOSITORY / "tests" / "emulator"
    with_modules = {path.parent.name for path in folder.glob("*/*.py")}
    kernels = {"kernels", "suite", "recorded", "held_out"}
    assert set(row_module.EMULATOR) == with_modules - kernels


def test_no_committed_row_is_wrong_or_of_no_case() -> None:
    rows = row_module.read()
    assert rows
    for name, row in rows.items():
        entry = ENTRIES[name]
        assert (row.family, row.kernel, row.gpu) == (entry.family, entry.kernel, entry.gpu)
        assert set(row.errors) <= {str(schedule) for schedule in entry.schedules}
        assert all(error <= 1 for error in row.errors.values()), name


def test_each_case_has_a_whole_row_of_today_s_source() -> None:
    rows = row_module.read()
    left = [name for name, entry in ENTRIES.items() if not is_done(entry, rows.get(name))]
    assert left == [], "python -m tests.emulator.suite --case NAME"


@pytest.mark.parametrize("page", ["README.md", "tests/emulator/README.md"])
def test_pages_say_how_many_cases_there_are(page: str) -> None:
    text = " ".join((REPOSITORY / page).read_text(encoding="utf-8").split())
    assert f"{len(ENTRIES)} cases" in text


def test_what_a_kernel_reads_and_writes_is_at_least_its_operands_and_not_much_more() -> None:
    row = row_module.read()["sm80 one A for all"]
    m, n, k, batch = 65, 72, 40, 3
    once = 2 * batch * (m * k + k * n)
    assert once < row.counts["global read"] <= 2 * once
    assert row.counts["global written"] == 2 * batch * m * n
    assert row.counts["tensor operations"] >= 2 * batch * m * n * k


@pytest.fixture(scope="module")
def units(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Return the neighbours with which a case's kernel is compiled, among the cases that run: of a unit it takes half the time."""
    compiled = {f"{name}-{schedule}": name for name, schedule in RUNS if ENTRIES[name].make}
    cases = (item.name.partition("[")[2][:-1] for item in request.session.items)
    names = list(dict.fromkeys(compiled[case] for case in cases if case in compiled))
    groups = [names[first : first + TOGETHER] for first in range(0, len(names), TOGETHER)]
    return {name: group for group in groups for name in group}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "schedule"), RUNS, ids=str)
def test_a_kernel_is_right(
    runtime: Runtime, units: dict[str, list[str]], name: str, schedule: Schedule
) -> None:
    entry = ENTRIES[name]
    configs = [ENTRIES[each].config for each in units.get(name, ())]
    build.libraries([config for config in configs if config is not None], runtime.cudart)
    verdict = entry.run(runtime, schedule)
    assert verdict.error <= 1
    assert verdict.changed == 0
    assert entry.undone(verdict) == []
    if schedule == EAGER and (row := row_module.read().get(name)) is not None:
        assert differing(row, counts_of(verdict.launches)) == {}


@pytest.mark.slow
def test_the_fence_that_cutlass_lacks_is_looked_for(runtime: Runtime) -> None:
    """Without what `entry.with_fence` adds, a case is refused (docs/upstream/sm100_mbarrier_fence.md)."""
    product = products.CASES["sm100 bias of a row, two pairs of SMs"]
    gpu = target(product.gpu)
    with pytest.raises(RaceError, match=r"uses the mbarrier at .* an mbarrier\.init of"):
        gemm.run(runtime, product.case, gpu, WATCHED)
    with runtime.edited(with_fence):
        assert gemm.run(runtime, product.case, gpu, WATCHED).share <= 1


RECORDED = {"global read": 100_000, "global written": 3200, "shared read": 10, "local read": 0}
ROW = Row("sm90", "a case", "a kernel", "H100", "a source", counts=RECORDED, ptx="a digest")


@pytest.mark.parametrize(
    ("now", "far"),
    [
        ({"global read": 200_000, "shared read": 20, "local read": 4},) * 2,
        ({"global read": 110_000, "shared read": 16}, {}),
        ({"global read": 79_000, "global written": 100},) * 2,
        ({"global read": 81_000, "global written": 2600, "shared read": 8}, {}),
    ],
)
def test_a_kernel_that_moves_much_more_or_less_is_found(
    now: dict[str, int], far: dict[str, int]
) -> None:
    wanted = {name: (RECORDED[name], count) for name, count in far.items()}
    assert differing(ROW, {**RECORDED, **now}) == wanted


def test_stores_of_rows_that_counted_each_lane_may_be_fewer_and_not_more() -> None:
    old = replace(ROW, ptx="")
    assert differing(old, {**RECORDED, "global written": 100, "shared read": 1}) == {}
    assert differing(old, {**RECORDED, "global written": 9000}) == {"global written": (3200, 9000)}
    assert differing(old, {**RECORDED, "global read": 100}) == {"global read": (100_000, 100)}
    without = {name: count for name, count in RECORDED.items() if name != "global read"}
    assert differing(old, without) == {"global read": (100_000, 0)}


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


def test_every_case_runs_with_either_end_of_its_warps_ahead_and_in_two_random_orders() -> None:
    for name, entry in ENTRIES.items():
        assert {EAGER, LATE, WATCHED} <= set(entry.schedules), name
        ahead = [schedule.ahead for schedule in entry.schedules]
        assert set(ahead) == {"none", "first", "last", "random"}, name
        seeds = {schedule.seed for schedule in entry.schedules if schedule.ahead == "random"}
        assert len(seeds) == ahead.count("random") == 2, name


def test_the_sampled_schedules_leave_none_out() -> None:
    for family in {entry.family for entry in ENTRIES.values()}:
        cases = [(place, e) for place, e in enumerate(ENTRIES.values()) if e.family == family]
        run = {schedule for place, entry in cases for schedule in sampled(place, entry.schedules)}
        assert run == {schedule for _, entry in cases for schedule in entry.schedules}, family
