"""How much a CPU has to read to evict its caches, and what a sample is of."""

from __future__ import annotations

from pathlib import Path

import pytest

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


class Spans(CpuTimer):
    """A timer whose calls take so long, in nanoseconds, with operands in memory and in the caches.

    Attributes:
        taken: Calls of each span, and whether the caches were evicted before.
    """

    def __init__(self, cold_ns: float, warm_ns: float, *disturbed: bool) -> None:
        super().__init__()
        self._times_ns, self._disturbed = {True: cold_ns, False: warm_ns}, disturbed
        self.taken: list[tuple[int, bool]] = []

    def _span(self, call: object, repeats: int, *, cold: bool) -> tuple[float, bool]:
        del call
        self.taken.append((repeats, cold))
        disturbed = self._disturbed[len(self.taken) - 1] if self._disturbed else False
        return repeats * self._times_ns[cold], disturbed


@pytest.mark.parametrize(
    ("cold_ns", "warm_ns", "calls", "sample_ms"),
    [
        (4e6, 1e6, 1, 2.0),
        (50e3, 12.5e3, 2, 0.025),
        (9e3, 1e3, 8, 0.003),
        (0.0, 0.0, 8, 0.0),  # of a clock with coarse steps
    ],
)
def test_a_sample_is_the_geometric_mean_of_operands_in_memory_and_in_the_caches(
    cold_ns: float, warm_ns: float, calls: int, sample_ms: float
) -> None:
    timer = Spans(cold_ns, warm_ns)
    assert timer.sample(print, 2, cold=True) == pytest.approx(sample_ms)
    assert timer.taken == [(1, True), (calls, False)] * 2
    assert timer.sample(print, 5, cold=False) == pytest.approx(warm_ns / 1e6)


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
    timer = Spans(4e6, 1e6, *disturbed)
    timer.sample(print, 2, cold=True)
    assert timer.disturbed == is_disturbed


def test_an_echo_is_called_behind_each_read_of_the_caches_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer, done = CpuTimer(), list[str]()
    monkeypatch.setattr(timer, "_evict", lambda: done.append("evict"))
    call = Echoed(lambda: done.append("call"), lambda: done.append("echo"))
    timer.sample(call, 2, cold=True)
    rounds = "".join(each[0] for each in done)
    assert done[:3] == ["evict", "echo", "call"]
    assert (done.count("evict"), done.count("echo")) == (2, 2)
    assert rounds.count("eec") == 2
    done.clear()
    timer.sample(call, 3, cold=False)
    assert done == ["call"] * 3
