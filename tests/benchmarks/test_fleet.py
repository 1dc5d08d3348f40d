"""The simulator of a fleet: its clock, and the pipeline's own scheduling on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fleet.clock import Clock
from benchmarks.fleet.simulation import Fleet, Run, simulate
from benchmarks.fleet.times import Times, committed
from benchmarks.fleet.world import Failures

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


def test_a_simulation_follows_from_its_seed_alone(times: Times, small: Run) -> None:
    assert replace(simulate(SMALL, times), real_s=0) == replace(small, real_s=0)
    assert simulate(replace(SMALL, seed=1), times).makespan_s != small.makespan_s


def test_no_schedule_is_shorter_than_the_bound_and_the_pipelines_is_near_it(times: Times) -> None:
    run = simulate(replace(SMALL, candidates=500, workers=5), times)
    assert run.undecided == 0
    assert run.spent.compiled == 500
    assert run.spent.measured == 525  # library kernels, too
    assert run.limited_by == "compiling"
    assert 1.0 <= run.ratio <= 1.1


def test_what_fails_costs_time_and_loses_no_decision(times: Times, small: Run) -> None:
    failing = Failures(compile_crash=0.05, compile_hang=0.005, measure_crash=0.02)
    run = simulate(replace(SMALL, failures=failing), times)
    assert run.undecided == 0
    assert run.spent.lost["compiler crashed"] > 0
    assert run.makespan_s > small.makespan_s


def test_models_one_after_another_leave_the_gpu_idle_between_them(times: Times, small: Run) -> None:
    in_turn = simulate(replace(SMALL, together=False), times)
    assert in_turn.undecided == 0
    assert in_turn.makespan_s > small.makespan_s
