"""The simulator of a fleet: its clock, and the pipeline's own scheduling on it."""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

import benchmarks.fleet.__main__ as program
from benchmarks.fleet.clock import Clock
from benchmarks.fleet.ranks import Job, simulate_ranks
from benchmarks.fleet.remote import requests_of
from benchmarks.fleet.simulation import Fleet, Run, simulate
from benchmarks.fleet.times import RESULTS, Times, committed
from benchmarks.fleet.world import Failures
from benchmarks.harness.repository import REPOSITORY

PASSIVE = (
    *(
        "tests/benchmarks/test_fleet.py",
        "inductor_plugin/autoload.py",
        "inductor_plugin/version.py",
    ),
    *("inductor_plugin/cache/document.py", "inductor_plugin/cache/key.py"),
    *("inductor_plugin/cost/host.py", "inductor_plugin/kernels", "inductor_plugin/problem"),
    *("inductor_plugin/tuning/report", "inductor_plugin/worker/devices/lookup.py"),
    "inductor_plugin/worker/farm/places.py",
)
"""What a simulation runs, too, and which takes no simulated time and decides nothing: it names, describes and writes down."""
SMALL = Fleet(workers=10, gpus=1, candidates=200, problems=5)


@pytest.fixture(scope="module")
def times() -> Times:
    return committed()


@pytest.fixture(scope="module")
def small(times: Times) -> Run:
    return simulate(SMALL, times)


def test_simulated_threads_wait_in_simulated_time() -> None:
    clock = Clock()
    threads, seen = clock.threading(), list[tuple[str, float]]()
    changed, event = threads.Condition(), threads.Event()

    def waits() -> None:
        with changed:
            seen.append(("in time", changed.wait(timeout=1.0)))
            seen.append(("late", changed.wait(timeout=1.0)))
        seen.append(("set", event.wait(timeout=100.0)))
        seen.append(("now", clock.now))

    def wakes() -> None:
        clock.sleep(0.5)
        with changed:
            changed.notify_all()
        clock.sleep(50.0)
        event.set()

    threads.Thread(target=waits).start()
    threads.Thread(target=wakes).start()
    clock.run(lambda: len(seen) == 4)
    assert seen == [("in time", True), ("late", False), ("set", True), ("now", 50.5)]


def test_a_simulation_in_which_all_threads_wait_for_ever_ends() -> None:
    clock = Clock()
    event = clock.threading().Event()
    clock.spawn(event.wait)
    with pytest.raises(RuntimeError, match="every thread waits"):
        clock.run(lambda: False)


def test_the_measured_times_are_those_of_the_results(times: Times) -> None:
    assert len(times.cutlass_s) == 44
    assert 5 < sum(times.cutlass_s) / 44 < 20
    assert 1 < sum(times.triton_s) / len(times.triton_s) < 3
    assert all(0.01 < seconds < 1 for seconds in times.measure_s)
    assert times.batch_s([28.836] * 8) == pytest.approx(61.16, rel=0.01)  # as compiled


def test_a_simulated_queue_gives_entries_in_order_and_ends_its_wait_in_time() -> None:
    clock = Clock()
    entries, seen = clock.queue().SimpleQueue(), list[tuple[str, float]]()

    def takes() -> None:
        for _ in range(2):
            seen.append((entries.get(timeout=2.0), clock.now))
        with pytest.raises(queue.Empty):
            entries.get(timeout=2.0)
        seen.append(("nothing", clock.now))

    def puts() -> None:
        clock.sleep(1.0)
        entries.put("first")
        entries.put("second")

    clock.spawn(takes)
    clock.spawn(puts)
    clock.run(lambda: len(seen) == 3)
    assert seen == [("first", 1.0), ("second", 1.0), ("nothing", 3.0)]


def test_a_simulation_whose_threads_look_once_a_second_ends_too() -> None:
    clock = Clock()

    def looks() -> None:
        while True:
            clock.sleep(1.0)

    clock.spawn(looks)
    with pytest.raises(RuntimeError, match="has not ended after 10 simulated seconds"):
        clock.run(lambda: False, limit_s=10.0)


def test_a_simulation_follows_from_its_seed_alone(times: Times, small: Run) -> None:
    local = simulate(replace(SMALL, farm=False), times)
    assert replace(simulate(replace(SMALL, farm=False), times), real_s=0) == replace(
        local, real_s=0
    )
    assert simulate(replace(SMALL, farm=False, seed=1), times).makespan_s != local.makespan_s
    # The farm keeps its jobs in a set: which of two copies at once is first is not said.
    assert simulate(SMALL, times).makespan_s == pytest.approx(small.makespan_s, rel=0.02)


@pytest.mark.parametrize("farm", [True, False])
def test_no_schedule_is_shorter_than_the_bound_and_the_pipelines_is_near_it(
    farm: bool, times: Times
) -> None:
    run = simulate(replace(SMALL, candidates=500, workers=5, farm=farm), times)
    assert run.undecided == 0
    assert run.spent.compiled == 500
    assert run.spent.measured == 525  # library kernels, too
    assert run.limited_by == "compiling"
    assert 1.0 <= run.over <= run.ratio <= 1.1


@pytest.mark.parametrize("farm", [True, False])
def test_with_more_workers_than_kernels_the_longest_chain_rules(farm: bool, times: Times) -> None:
    """A worker's start, the longest compile, a screening, the finals: more workers gain nothing."""
    run = simulate(Fleet(workers=300, gpus=10, candidates=200, problems=5, farm=farm), times)
    assert run.undecided == 0
    assert run.chain_s > 2 * run.bound_s
    assert run.ratio > 2
    assert 1.0 <= run.over <= 1.1


def test_the_committed_fleets_are_near_the_bound_where_a_worker_has_a_hundred_kernels() -> None:
    rows: list[dict[str, Any]] = json.loads((RESULTS / "fleet.json").read_text())["runs"]
    grid = [row for row in rows if row["what"] == "grid" and row["workers"] <= 1000]
    many = [row for row in grid if row["candidates"] >= 100 * row["workers"]]
    assert sorted(row["workers"] for row in many) == 4 * [1] + 3 * [10] + 2 * [100] + [1000]
    assert all(1.0 <= row["ratio"] <= 1.1 for row in many)
    assert all(1.0 <= row["over"] <= 1.25 for row in grid)


def test_the_chain_is_that_of_kernels_compiled_alone(times: Times, small: Run) -> None:
    """A batch is the scheduler's own choice: it excuses nothing."""
    longest_s = times.worker_s + max(times.cutlass_s)
    assert small.chain_s < longest_s + 1.0
    assert small.least_s >= times.worker_s + small.spent.compile_s / SMALL.workers


def test_the_long_jobs_of_a_process_do_not_wait_for_the_short_ones_of_others(times: Times) -> None:
    """Six processes on 100 CPUs."""
    run = simulate(Fleet(workers=100, gpus=6, candidates=1000), times)
    assert run.undecided == 0
    assert 1.0 <= run.over <= 1.25


def test_touches_of_locks_are_counted_alike_however_many_are_simulated(times: Times) -> None:
    """Those of builds, and those of problems, which are touched in another way."""
    each, some = (simulate(Fleet(30, 4, 300, touch_s=s), times) for s in (1.0, 10.0))
    assert each.makespan_s == pytest.approx(some.makespan_s, rel=0.01)
    each_touch, some_touch = (run.spent.requests["touch a lock"] for run in (each, some))
    assert each_touch > 2000
    assert some_touch == pytest.approx(each_touch, rel=0.02)
    assert {**each.spent.requests, "touch a lock": 0} == {**some.spent.requests, "touch a lock": 0}


def test_the_farm_starts_a_job_that_hangs_a_second_time(times: Times) -> None:
    failing = replace(SMALL, seed=1, failures=Failures(compile_hang=0.02))
    farm, pool = (simulate(replace(failing, farm=farm), times) for farm in (True, False))
    assert farm.undecided == pool.undecided == 0
    assert farm.makespan_s < 120 < pool.makespan_s  # the limit of a compile
    assert pool.spent.lost["compiler hung"] > 0
    assert farm.spent.given_up_s > 0


@pytest.mark.parametrize("farm", [True, False])
def test_what_fails_costs_time_and_loses_no_decision(farm: bool, times: Times) -> None:
    failing = Failures(
        compile_crash=0.05, compile_hang=0.005, measure_crash=0.02, node_lost=0.05 * farm
    )
    calm = simulate(replace(SMALL, farm=farm), times)
    run = simulate(replace(SMALL, farm=farm, failures=failing), times)
    assert run.undecided == 0
    assert run.spent.lost["compiler crashed"] > 0
    assert bool(run.spent.lost["node lost"]) == farm
    assert run.makespan_s > calm.makespan_s


def test_models_one_after_another_leave_the_gpu_idle_between_them(times: Times, small: Run) -> None:
    at_once = simulate(replace(SMALL, together=True), times)
    assert at_once.undecided == 0
    assert at_once.makespan_s < small.makespan_s


def test_ranks_tune_each_problem_once_and_the_requests_of_all_are_counted(times: Times) -> None:
    run = simulate_ranks(Job(ranks=8, problems=24), times)
    assert run.tuned == 24
    assert 1.0 <= run.makespan_s / run.bound_s <= 1.5
    assert run.requests["compare_set"] >= 2 * 24  # claims and decisions
    assert run.most_in_a_s >= run.requests.total() / (run.makespan_s + 1)


def test_a_rank_starts_its_compile_worker_once(times: Times) -> None:
    """Four ranks tune six problems each; a start for each problem would take 120 s longer."""
    job = Job(ranks=4, problems=24)
    without, run = (simulate_ranks(job, replace(times, worker_s=s)) for s in (0.0, 20.0))
    assert run.bound_s == pytest.approx(without.bound_s + 20.0)
    assert without.makespan_s + 19.0 < run.makespan_s < without.makespan_s + 30.0


def test_requests_to_a_remote_are_those_of_the_product() -> None:
    """Nothing is there (6), nor what the first editions left (6), then the edition is written, read back twice and looked for; the
    environment once for all of them."""
    assert requests_of(10) == {"read, cold": 150, "write, cold": 10, "read, warm": 20}


def test_a_run_that_was_stopped_goes_on_where_its_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, simulated = tmp_path / "fleet.json", list[Fleet]()

    def counting(fleet: Fleet, times: Times) -> Run:
        simulated.append(fleet)
        if len(simulated) == 2:
            raise KeyboardInterrupt
        return simulate(fleet, times)

    monkeypatch.setattr(program, "simulate", counting)
    monkeypatch.setattr(program, "_RANK_PROBLEMS", 6)
    words = [
        "fleet",
        "--workers",
        "10,20",
        "--candidates",
        "60",
        "--ranks",
        "2",
        "--out",
        str(file),
    ]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(KeyboardInterrupt):
        program.main()
    program.main()
    assert [fleet.workers for fleet in simulated] == [10, 20, 20]
    rows: list[dict[str, Any]] = json.loads(file.read_text())["runs"]
    assert [row["what"] for row in rows] == ["grid", "grid", "ranks"]
    for row in rows[:2]:
        assert row["over"] == pytest.approx(row["makespan_s"] / row["least_s"], rel=0.05)
    program.main()
    assert len(simulated) == 3
    # Another product's ranks are no reason to simulate the fleets again.
    digests = {places: program.code_digest(places) for places in program.SOURCES.values()}
    digests[program.SOURCES["ranks"]] = "of another program"
    monkeypatch.setattr(program, "code_digest", digests.__getitem__)
    ranks = mock.Mock(side_effect=simulate_ranks)
    monkeypatch.setattr(program, "simulate_ranks", ranks)
    program.main()
    assert (len(simulated), ranks.call_count) == (3, 1)
    assert json.loads(file.read_text())["runs"] == rows
    monkeypatch.setattr(program, "code_digest", mock.Mock(return_value="of one more"))
    program.main()
    assert len(simulated) == 5


def test_a_row_that_is_kept_has_the_requests_of_one_that_is_simulated(small: Run) -> None:
    """Those of a kept one follow from the makespan that it has, which is rounded."""
    fields = program.row(program.GRID, SMALL, replace(small, makespan_s=10.04))
    remote = program.remote_fields(SMALL.candidates, fields["makespan_s"])
    assert remote.items() <= fields.items()


def test_rows_of_one_kind_can_be_simulated_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.json"
    for only in ("half as many GPUs", "grid"):
        words = ["fleet", "--workers", "100", "--candidates", "60", "--ranks", "", "--only", only]
        monkeypatch.setattr("sys.argv", [*words, "--out", str(file)])
        program.main()
    rows: list[dict[str, Any]] = json.loads(file.read_text())["runs"]
    assert [(row["what"], row["gpus"]) for row in rows] == [("half as many GPUs", 1), ("grid", 3)]


@pytest.mark.parametrize("kind", program.SOURCES)
def test_the_sources_of_the_rows_are_those_that_a_simulation_runs(
    kind: str, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, spawn = set[str](), Clock.spawn

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            ran.add(frame.f_code.co_filename)

    def noting(clock: Clock, run: Callable[[], object]) -> Any:
        def noted() -> None:
            sys.setprofile(note)  # a greenlet does not take over its parent's
            run()

        return spawn(clock, noted)

    monkeypatch.setattr(Clock, "spawn", noting)
    failures = Failures(compile_crash=0.05, compile_hang=0.02, measure_crash=0.05)
    before = sys.getprofile()
    try:
        if kind == "ranks":
            simulate_ranks(Job(ranks=4, problems=12), times)
        else:
            for farm in (True, False):
                simulate(Fleet(10, 2, 80, problems=2, farm=farm, failures=failures), times)
    finally:
        sys.setprofile(before)
    files = {Path(name) for name in ran if Path(name).is_relative_to(REPOSITORY)}
    assert len(files) > 10
    known = [REPOSITORY / place for place in (*program.SOURCES[kind], *PASSIVE)]
    assert [file for file in files if not any(map(file.is_relative_to, known))] == []
