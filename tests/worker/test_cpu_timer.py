"""How much a CPU has to read to evict its caches, and what a sample is of."""

from __future__ import annotations

import ctypes
import functools
import time
import weakref
from pathlib import Path
from unittest import mock

import pytest
import torch

from inductor_plugin.worker import cpu_timer
from inductor_plugin.worker.affinity import Throttling, own_cores
from inductor_plugin.worker.cpu_timer import CpuCache, CpuTimer, TimedCall, caches, evicting_bytes
from inductor_plugin.worker.disturbance import Crowd, ThreadWaits
from inductor_plugin.worker.echo import Echoed, behind_others, in_new_memory

MIB = 1 << 20


def machine(cores: int, l2_mib: int, l3_mib: int, cores_of_l3: int) -> list[CpuCache]:
    """Return the caches of each core: its own of levels 1 and 2, and a slice of level 3."""
    described: list[CpuCache] = []
    for core in range(cores):
        first = core - core % cores_of_l3
        described += [
            CpuCache(1, 32 << 10, str(core)),
            CpuCache(2, l2_mib * MIB, str(core)),
            CpuCache(3, l3_mib * MIB, f"{first}-{first + cores_of_l3 - 1}"),
        ]
    return described


@pytest.mark.parametrize(
    ("known", "mib"),
    [
        pytest.param(machine(64, 1, 32, 8), 64 + 8 * 32, id="EPYC, eight slices"),
        pytest.param(machine(56, 2, 105, 56), 56 * 2 + 105, id="Sapphire Rapids"),
        pytest.param(machine(4, 1, 16, 4), 32, id="small"),
        pytest.param(machine(96, 1, 96, 8), 512, id="EPYC, stacked"),
        pytest.param([], 32, id="unknown"),
    ],
)
def test_all_caches_of_the_cores_are_evicted(known: list[CpuCache], mib: int) -> None:
    assert evicting_bytes(known) == mib * MIB


def test_a_container_may_show_no_caches_or_some(tmp_path: Path) -> None:
    assert caches([0, 1], tmp_path) == []
    for core, index, files in (
        (0, 0, {"level": "2", "size": "2048K", "shared_cpu_list": "0"}),
        (0, 1, {"level": "3", "size": "1M", "shared_cpu_list": "0-1"}),
        (1, 0, {"level": "3", "size": "1M", "shared_cpu_list": "0-1"}),
        (1, 1, {"level": "4", "size": "much", "shared_cpu_list": "0-1"}),
        (1, 2, {"level": "2"}),
        (2, 0, {"level": "2", "size": "2048K", "shared_cpu_list": "2"}),
    ):
        folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
    assert set(caches([0, 1], tmp_path)) == {
        CpuCache(2, 2 * MIB, "0"),
        CpuCache(3, MIB, "0-1"),
    }


def test_this_machine_is_within_bounds() -> None:
    assert 32 * MIB <= evicting_bytes(caches(own_cores())) <= 512 * MIB


class Scripted(CpuTimer):
    """A timer whose calls take so long, in nanoseconds, with operands in memory and in the caches.

    Attributes:
        taken: How many calls were timed in a row.
    """

    def __init__(self, cold_ns: int, warm_ns: int, *disturbed: bool) -> None:
        super().__init__()
        self._times_ns, self._disturbed, self._is_evicted = (cold_ns, warm_ns), disturbed, False
        self.taken: list[int] = []

    def _evict(self) -> None:
        self._is_evicted = True

    def _timed(
        self, call: object, repeats: int, first: object = None, most: int = 0
    ) -> list[TimedCall]:
        del call, first, most
        time_ns, self._is_evicted = self._times_ns[not self._is_evicted], False
        self.taken.append(repeats)
        disturbed = self._disturbed[len(self.taken) - 1] if self._disturbed else False
        times_ns = [time_ns, *(4 * time_ns for _ in range(repeats - 1))]
        return [TimedCall(each_ns, disturbed) for each_ns in times_ns]


@pytest.mark.parametrize(
    ("cold_ns", "warm_ns", "warm_calls", "sample_ms"),
    [
        (9_000_000, 4_000_000, 1, 6.0),
        (5_000_000, 50_000, 2, 0.5),
        (9_000, 1_000, 2, 0.003),
        (0, 0, 2, 0.0),
    ],
)
def test_a_sample_is_the_geometric_mean_of_operands_in_memory_and_in_the_caches(
    cold_ns: int, warm_ns: int, warm_calls: int, sample_ms: float
) -> None:
    timer = Scripted(cold_ns, warm_ns)
    assert timer.sample(print, 2, cold=True) == pytest.approx(sample_ms)
    assert timer.taken == [1, warm_calls] * 2
    assert timer.sample(print, 5, cold=False) == pytest.approx(warm_ns / 5 / 1e6)  # of all in a row


@pytest.mark.parametrize(
    ("disturbed", "is_disturbed"),
    [
        ((True, False, False, True), True),
        ((True, False, False, False), False),
        ((False, True, False, False), False),
    ],
)
def test_a_sample_is_calm_if_both_its_parts_are(
    disturbed: tuple[bool, ...], is_disturbed: bool
) -> None:
    timer = Scripted(4_000_000, 1_000_000, *disturbed)
    timer.sample(print, 2, cold=True)
    assert timer.disturbed == is_disturbed


def test_what_is_called_before_a_call_is_an_echo_behind_a_read_and_else_the_call_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither is timed: it brings back code, and wakes threads that sleep while the system's files are read."""
    timer, done = CpuTimer(), list[str]()
    monkeypatch.setattr(timer, "_evict", lambda: done.append("evict"))
    monkeypatch.setattr(cpu_timer, "_MOST_CALLS", 2)  # whatever else runs here

    def echo() -> None:
        done.append("echo")
        time.sleep(0.2)

    timed_ms = timer.sample(Echoed(lambda: done.append("call"), echo), 2, cold=True)
    assert done == ["evict", "echo", *["call"] * 4] * 2
    assert timed_ms < 0.05  # of a call of 0.1 us and one of 200 ms it is 0.14
    done.clear()
    timer.sample(lambda: done.append("call"), 1, cold=True)
    assert done == ["evict", *["call"] * 4]
    done.clear()
    timer.sample(Echoed(lambda: done.append("call"), echo), 3, cold=False)
    assert done == ["call"] * 3


class Waiting:
    """Calls that take so long, in nanoseconds, and for which a thread waits or does not; the clock and the system's counts are theirs.

    Attributes:
        done: How many calls there were.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *calls: tuple[int, bool]) -> None:
        self.done, self._calls, self._now_ns, self._waited_ns = 0, calls, 0, 5
        patch.setattr(cpu_timer, "own_cores", lambda: frozenset(range(1024)))
        patch.setattr(cpu_timer, "quotas", dict[Path, float])
        patch.setattr(ThreadWaits, "ns", mock.Mock(side_effect=lambda: {"1": self._waited_ns}))
        patch.setattr(Crowd, "is_there", mock.Mock(return_value=False))
        patch.setattr(time, "perf_counter_ns", lambda: self._now_ns)

    def __call__(self) -> None:
        time_ns, waits = self._calls[self.done]
        self.done += 1
        self._now_ns += time_ns
        self._waited_ns += waits * time_ns


@pytest.mark.parametrize(
    ("calls", "sample_ms", "is_disturbed"),
    [
        # The echo, the call with operands in memory; the call that wakes threads, those with operands in the caches.
        pytest.param(
            [(90, True), (40, False), (90, True), (10, False), (12, False)], 20, False, id="untimed"
        ),
        pytest.param(
            [(9, False), (40, True), (9, False), (10, False), (12, True)], 20, True, id="memory"
        ),
        pytest.param(
            [(9, False), (40, False), (9, False), (5, True), (12, False), (10, False)],
            20,
            False,
            id="a warm one",
        ),
        pytest.param(
            [(9, False), (40, False), (9, False), *[(11, True)] * 4, (12, False), (10, False)],
            20,
            False,
            id="warm ones",
        ),
        pytest.param(
            [(9, False), (40, False), (9, False), *[(9, True)] * 5, (10, False)],
            20,
            False,
            id="one calm",
        ),
        pytest.param(
            [(9, False), (40, False), (9, False), *[(10, True)] * 6], 20, True, id="all warm ones"
        ),
    ],
)
def test_each_call_is_judged_for_itself_and_others_follow_until_two_are_calm(
    calls: list[tuple[int, bool]],
    sample_ms: float,
    *,
    is_disturbed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = Waiting(monkeypatch, *((100_000 * time_ns, waits) for time_ns, waits in calls))
    timer = CpuTimer()
    monkeypatch.setattr(timer, "_evict", lambda: None)
    assert timer.sample(Echoed(waiting, waiting), 1, cold=True) == pytest.approx(sample_ms / 10)
    assert (timer.disturbed, waiting.done) == (is_disturbed, len(calls))


def test_calls_in_a_row_are_judged_as_one_and_nothing_is_read_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may wait for 50 us; a hundred may not, each."""
    waiting = Waiting(monkeypatch, *[(40_000, True)] * 100)
    timer = CpuTimer()
    assert timer.sample(waiting, 100, cold=False) == pytest.approx(0.04)
    assert timer.disturbed


def test_without_the_waits_of_threads_they_are_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = mock.Mock(return_value={})
    monkeypatch.setattr(ThreadWaits, "ns", asked)
    CpuTimer()._timed(lambda: None, 2, first=lambda: None)  # pyright: ignore[reportPrivateUsage]
    assert asked.call_count == 1


def test_a_quota_that_ends_between_two_reads_is_no_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 80 ms: the thread's wait is counted after it, and the quota's before."""
    now_ms = [0]
    waits, kept = iter([0, 0, 80]), [0, 0, 0, 80, 80, 80]
    monkeypatch.setattr(cpu_timer, "own_cores", lambda: frozenset(range(1024)))
    counted = mock.Mock(side_effect=lambda: {"1": next(waits) * 10**6 + 1})
    monkeypatch.setattr(ThreadWaits, "ns", counted)
    used_up = mock.Mock(side_effect=[Throttling(1, ms * 10**6) for ms in kept])
    monkeypatch.setattr(cpu_timer, "throttling", used_up)
    monkeypatch.setattr(Crowd, "is_there", mock.Mock(return_value=False))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now_ms[0] * 10**6)

    def call() -> None:
        now_ms[0] += 100

    (timed,) = CpuTimer()._timed(call, 1)  # pyright: ignore[reportPrivateUsage]
    assert not timed.is_disturbed


def test_the_output_of_an_echo_is_free_for_the_next_call() -> None:
    """As in a graph, where the memory of one layer's output is that of a later one."""
    outputs: list[weakref.ref[torch.Tensor]] = []
    is_first_there: list[bool] = []

    def call() -> torch.Tensor:
        is_first_there.extend(output() is not None for output in outputs)
        result = torch.empty(4)
        outputs.append(weakref.ref(result))
        return result

    CpuTimer()._timed(call, 1, first=call)  # pyright: ignore[reportPrivateUsage]
    assert is_first_there == [False]


def operator(read: torch.Tensor, written: torch.Tensor, factor: int, *, out: torch.Tensor) -> None:
    """Write to two tensors."""
    SEEN.append((read.data_ptr(), written, out))
    written.copy_(read)
    torch.mul(read, factor, out=out)


SEEN: list[tuple[int, torch.Tensor, torch.Tensor]] = []


def test_what_a_call_writes_is_new_memory_of_the_same_strides() -> None:
    SEEN.clear()
    read, written, out = torch.ones(3, 4), torch.zeros(3, 4), torch.zeros(4, 3).T
    call = in_new_memory(functools.partial(operator, read, written, 2, out=out), {1})
    call()
    call()
    for address, second, result in SEEN:
        assert address == read.data_ptr()
        assert (second.stride(), result.stride()) == ((4, 1), (1, 3))
        assert bool((result == 2).all())
    assert len({each.data_ptr() for _, *pair in SEEN for each in pair}) == 4
    assert not written.any()
    assert not out.any()


def test_a_call_that_returns_its_result_or_binds_addresses_is_left_as_it_is() -> None:
    for call in (functools.partial(torch.neg, torch.ones(2)), lambda: None):
        assert in_new_memory(call, ()) is call


def test_the_allocator_has_nothing_left_of_an_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    library = mock.Mock()

    def trim(pad: int) -> None:
        done.append(f"trim {pad}")

    library.malloc_trim.side_effect = trim
    monkeypatch.setattr(ctypes, "CDLL", mock.Mock(return_value=library))
    echo = behind_others(lambda: done.append("echo"))
    Echoed(lambda: done.append("call"), echo).echo()
    assert done == ["echo", "trim 0"]
    del library.malloc_trim  # musl
    echo()
    assert done[-1] == "echo"
