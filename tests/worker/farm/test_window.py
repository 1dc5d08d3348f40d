"""How many tasks of a process may be at a cluster that others use, too."""

from __future__ import annotations

import pytest

from inductor_plugin.worker.farm.window import FIRST, Load, Window, next_window


def test_the_window_doubles_what_it_adds_as_long_as_cpus_are_free() -> None:
    window, flying, sizes = Window(), 0, list[int]()
    while flying < 1000:
        window = next_window(window, Load(1000 - flying, flying), 1000, flying)
        sizes.append(window.most)
        flying = min(window.most, 1000)
    assert sizes == [8, 24, 56, 120, 248, 504, 1016]
    assert window.opens
    for _ in range(100):  # some are free for long
        window = next_window(window, Load(1, 1000), 1000, 1000)
    assert (window.most, window.step) == (1031, 1031)
    assert not next_window(window, Load(0, 1000), 1000, 1031).opens


def test_no_more_is_added_than_is_free_and_a_few_ahead() -> None:
    assert next_window(Window(24, 32), Load(free=3, running=20), 64, 24).most == 24 + 3 + 2


@pytest.mark.parametrize("load", [None, Load(free=1000, running=0), Load(free=0, running=1000)])
def test_a_small_cluster_gets_what_it_runs_and_a_task_more(load: Load | None) -> None:
    assert next_window(Window(), load, 2, 0).most == 3


def test_without_free_cpus_what_runs_and_a_few_stay_and_the_rest_goes_slowly() -> None:
    """A node says that a task runs when its worker has started."""
    assert next_window(Window(100, 64), Load(0, 90), 320, 96) == Window(100, FIRST)
    assert next_window(Window(100, 64), Load(0, 10), 320, 96) == Window(84, FIRST)
    assert next_window(Window(1), Load(0, 0), 320, 1) == Window(10)  # a few, whatever runs


def test_after_a_pause_it_begins_with_few_again() -> None:
    assert next_window(Window(1000, 512), Load(1000, 0), 1000, 0) == Window(FIRST, 2 * FIRST)


def test_those_who_have_few_and_those_who_have_many_come_to_have_equally_many() -> None:
    """Whatever order Ray takes them in, each has a share of the CPUs about as large as its share of the tasks."""
    cpus, windows = 960, [Window(40), Window(920)]
    for _ in range(60):
        total = sum(window.most for window in windows)
        running = [round(window.most * cpus / total) for window in windows]
        windows = [
            next_window(window, Load(0, runs), cpus, window.most)
            for window, runs in zip(windows, running, strict=True)
        ]
    few, many = (window.most for window in windows)
    assert abs(few - many) <= 48
    assert few + many >= cpus
