"""How much a CPU has to read to evict its caches, and what a sample is of."""

from __future__ import annotations

import time
import weakref
from pathlib import Path

import pytest
import torch

from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.cpu_timer import CpuCache, CpuTimer, caches, evicting_bytes
from inductor_plugin.worker.echo import Echoed

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

    def _timed(self, call: object, repeats: int, first: object = None) -> tuple[list[int], bool]:
        del call, first
        time_ns, self._is_evicted = self._times_ns[not self._is_evicted], False
        self.taken.append(repeats)
        disturbed = self._disturbed[len(self.taken) - 1] if self._disturbed else False
        return [time_ns, *(4 * time_ns for _ in range(repeats - 1))], disturbed


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
    assert timer.sample(print, 5, cold=False) == pytest.approx(17 / 5 * warm_ns / 1e6)


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
