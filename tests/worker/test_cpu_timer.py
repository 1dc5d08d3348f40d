"""How much a CPU has to read to evict its caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.cpu_timer import CpuCache, caches, evicting_bytes

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
