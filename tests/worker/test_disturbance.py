"""What others took of this process's cores while a sample was taken."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from inductor_plugin.worker import cpu_timer, disturbance
from inductor_plugin.worker.disturbance import (
    CoreTime,
    Crowd,
    Look,
    ThreadWaits,
    core_times,
    is_crowded,
    is_disturbed,
    was_idle,
    was_switched,
)

STAT = """cpu  2166268 134980 276963 297629 8212 0 6543 39035 0 0
cpu0 100 10 20 999 999 1 2 7 0 0
cpu1 200 0 0 999 999 0 0 9 0 0
cpu12 300 0 0 0 0 0 0 0 0 0
intr 1 2 3
cpu1 9 9 9 9 9 9 9 9
"""
MS = 1_000_000


def look(at_ms: int, own_ms: int = 0, **cores: tuple[int, int]) -> Look:
    """Return a look at cores ``c0`` and so on, each with busy and stolen milliseconds."""
    times = {int(n[1:]): CoreTime(busy * MS, stolen * MS) for n, (busy, stolen) in cores.items()}
    return Look(at_ms * MS, own_ms * MS, times)


def test_the_system_counts_what_each_core_does() -> None:
    times = core_times(STAT.splitlines(), {0, 1}, 100)
    assert times == {0: CoreTime(1330 * MS, 70 * MS), 1: CoreTime(2000 * MS, 90 * MS)}
    assert core_times(["cpu0 1 2 3"], {0}, 100) == {}  # an old kernel
    assert core_times([], {0}, 100) == {}


def test_the_steal_time_of_one_core_is_enough() -> None:
    before = look(0, c0=(0, 0), c1=(0, 0))
    for stolen_ms, crowded in ((10, False), (20, True)):
        after = look(100, 200, c0=(100, 0), c1=(100, stolen_ms))
        assert is_crowded(before, after, 2, with_others=False) is crowded


@pytest.mark.parametrize(
    ("threads", "others_ms", "crowded"),
    [(2, 40, False), (2, 60, True), (1, 140, False), (1, 160, True), (4, 40, False), (4, 60, True)],
)
def test_others_may_take_the_cores_that_are_free(
    threads: int, others_ms: int, crowded: bool
) -> None:
    before, half = look(0, c0=(0, 0), c1=(0, 0)), others_ms // 2
    after = look(100, 100, c0=(50 + half, 0), c1=(50 + half, 0))
    assert is_crowded(before, after, threads, with_others=True) is crowded
    assert not is_crowded(before, after, threads, with_others=False)


def test_where_nothing_is_counted_nobody_is_there() -> None:
    assert not is_crowded(look(0), look(100), 2, with_others=True)
    same = look(5, c0=(0, 0))
    assert not is_crowded(same, look(5, c0=(9, 9)), 2, with_others=True)


def test_a_core_that_is_given_up_often_is_another_s() -> None:
    assert was_switched(1 * MS, 1)
    assert not was_switched(1 * MS, 0)
    assert not was_switched(100 * MS, 5)
    assert was_switched(100 * MS, 6)


def test_the_cores_are_looked_at_every_100_ms_and_not_across_a_pause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stat, now, crowd = tmp_path / "stat", [0], Crowd()
    ticks = 1000 // os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(disturbance, "_STAT", stat)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])

    def seen(at_ms: int, stolen_ms: int) -> bool:
        stat.write_text(f"cpu0 0 0 0 0 0 0 0 {stolen_ms // ticks} 0 0\n")
        now[0] = at_ms * MS
        return crowd.is_there({0}, 1, with_others=False)

    assert not seen(0, 0)
    assert not seen(50, 50)  # it has not looked
    assert seen(110, 50)
    assert seen(190, 50)  # as 80 ms ago
    assert not seen(220, 50)
    assert not seen(5000, 4000)  # while nothing was measured
    assert seen(5200, 4100)
    stat.unlink()
    assert not seen_without(crowd, now, 5400)


def seen_without(crowd: Crowd, now: list[int], at_ms: int) -> bool:
    now[0] = at_ms * MS
    return crowd.is_there({0}, 1, with_others=False)


@pytest.mark.parametrize("counts", [True, False])
def test_without_the_waits_of_threads_their_switches_count(
    monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    numbers: Iterator[int] = iter(range(0, 1000, 10))
    timer = cpu_timer.CpuTimer()
    monkeypatch.setattr(ThreadWaits, "ns", mock.Mock(return_value={"1": 5} if counts else {}))
    monkeypatch.setattr(cpu_timer, "switches", lambda: next(numbers))
    monkeypatch.setattr(cpu_timer, "own_cores", lambda: frozenset(range(1024)))
    asked: list[bool] = []

    def is_there(_cores: object, _threads: int, *, with_others: bool) -> bool:
        asked.append(with_others)
        return False

    monkeypatch.setattr(timer._crowd, "is_there", is_there)  # pyright: ignore[reportPrivateUsage]
    timer.sample(lambda: None, 1, cold=False)
    assert timer.disturbed is not counts
    assert asked == [not counts]


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_with_more_threads_than_cores_only_what_others_take_disturbs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: float
) -> None:
    """Two cores, four threads that use all that is left to them; ``others`` is how many cores others take."""
    stat, now, tick_ns = tmp_path / "stat", [0], 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    numbers: Iterator[int] = iter(range(0, 1_000_000, 1000))  # they are switched for each other

    def call() -> None:
        now[0] += 150 * MS
        ticks = now[0] // tick_ns
        stat.write_text("".join(f"cpu{core} {ticks} 0 0 0 0 0 0 0 0 0\n" for core in range(2)))

    monkeypatch.setattr(disturbance, "_STAT", stat)
    for clock in ("monotonic_ns", "perf_counter_ns"):
        monkeypatch.setattr(time, clock, lambda: now[0])
    monkeypatch.setattr(time, "process_time_ns", lambda: int((2 - others) * now[0]))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(cpu_timer, "own_cores", lambda: frozenset({0, 1}))
    monkeypatch.setattr(cpu_timer, "switches", lambda: next(numbers))
    timer = cpu_timer.CpuTimer()
    seen: list[bool] = []
    for _ in range(5):
        timer.sample(call, 1, cold=False)
        seen.append(timer.disturbed)
    assert seen == [False, *[others > 0] * 4]  # the first look has none before it


def test_a_crowd_disturbs_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = cpu_timer.CpuTimer()
    monkeypatch.setattr(ThreadWaits, "ns", mock.Mock(return_value={"1": 5}))
    monkeypatch.setattr(Crowd, "is_there", mock.Mock(return_value=True))
    timer.sample(lambda: None, 1, cold=False)
    assert timer.disturbed


def test_the_waits_of_threads_are_read_again_from_open_files(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "schedstat").write_text(text)

    before = set(Path("/proc/self/fd").iterdir())
    waits = ThreadWaits(tmp_path)
    write("11", "900 70 3\n")
    assert waits.ns() == {"11": 70}
    write("11", "950 71 4\n")
    write("12", "5 1 1\n")  # a thread that was started
    (tmp_path / "13").mkdir()  # and what ended at once
    assert waits.ns() == {"11": 71, "12": 1}
    (tmp_path / "11" / "schedstat").unlink()
    assert waits.ns() == {"11": 71, "12": 1}  # by its open file
    write("12", "")
    assert waits.ns() == {"11": 71}
    (tmp_path / "12" / "schedstat").unlink()
    write("12", "6 2 2\n")  # another thread with its number
    assert waits.ns() == {"11": 71, "12": 2}
    waits.close()
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert ThreadWaits(tmp_path / "gone").ns() == {}


def test_a_thread_may_wait_for_a_small_share_of_a_sample() -> None:
    before = {"1": 1_000_000, "2": 5}
    for waited_ns, disturbed in ((70_000, False), (70_001, True)):
        after = {"1": 1_000_000 + waited_ns, "2": 5}
        assert is_disturbed(MS, before, after) is disturbed
    assert is_disturbed(MS, before, {**before, "3": 70_001})  # a thread that was started
    assert not is_disturbed(MS, before, {**before, "3": 40_000, "4": 40_000})  # each of them
    assert not is_disturbed(MS, before, {})


def test_what_a_quota_keeps_threads_from_their_cores_is_no_other_work() -> None:
    """A period of 100 ms, of which a thread runs for 20 ms."""
    before, after = {"1": 0}, {"1": 80 * MS}
    assert is_disturbed(100 * MS, before, after)
    assert not is_disturbed(100 * MS, before, after, 80 * MS)
    assert is_disturbed(100 * MS, before, after, 70 * MS)  # another 10 ms it waited for others
    assert was_idle(100 * MS, 20 * MS)
    assert not was_idle(100 * MS, 20 * MS, 80 * MS)


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("throttled", [True, False])
def test_a_sample_that_a_quota_has_prolonged_is_not_disturbed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, counts: bool, throttled: bool
) -> None:
    """Each thread waits for 80 ms, or has to give up its core, in a sample of 100 ms; for others where the quota is not used up."""
    now, used = [0], [0]

    def call() -> None:
        now[0] += 100 * MS
        used[0] += 20 * MS
        periods = now[0] // (100 * MS)
        usec = 80_000 * periods
        if throttled:
            (tmp_path / "cpu.stat").write_text(f"nr_throttled {periods}\nthrottled_usec {usec}\n")

    monkeypatch.setattr(cpu_timer, "quotas", lambda: {tmp_path: 0.2})
    monkeypatch.setattr(cpu_timer, "own_cores", lambda: frozenset(range(64)))
    monkeypatch.setattr(cpu_timer, "switches", lambda: 64 * now[0] // (100 * MS))
    waits = lambda: {"1": now[0] - used[0] + 1} if counts else {}  # noqa: E731
    monkeypatch.setattr(ThreadWaits, "ns", mock.Mock(side_effect=waits))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(time, "process_time_ns", lambda: used[0])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(Crowd, "is_there", mock.Mock(return_value=False))
    timer = cpu_timer.CpuTimer()
    for _ in range(3):
        assert timer.sample(call, 1, cold=False) == 100.0
        assert timer.disturbed is not throttled


def test_a_process_that_computes_for_half_of_a_sample_is_not_idle() -> None:
    assert was_idle(200 * MS, 99 * MS)
    assert not was_idle(200 * MS, 100 * MS)
    assert not was_idle(60 * MS, 10 * MS)  # 50 ms, as threads wait for each other
    assert was_idle(60 * MS, 9 * MS)
    assert not was_idle(100 * MS, 150 * MS)


@pytest.mark.parametrize(("more", "asked"), [(1, 3), (0, 3), (-1, 0)])
def test_threads_are_asked_how_long_they_waited_where_each_has_a_core(
    monkeypatch: pytest.MonkeyPatch, more: int, asked: int
) -> None:
    """With fewer cores they wait for each other, whoever else is there."""
    calls: list[int] = []

    def waits_ns(_: ThreadWaits) -> dict[str, int]:
        calls.append(1)
        return {"1": 5}

    cores = frozenset(range(torch.get_num_threads() + more))
    monkeypatch.setattr(cpu_timer, "own_cores", lambda: cores)
    monkeypatch.setattr(ThreadWaits, "ns", waits_ns)
    cpu_timer.CpuTimer().sample(lambda: None, 1, cold=False)
    assert len(calls) == asked
