"""The cores of this process, also where OpenMP has pinned the thread that loaded it to one of them, and its quota of their time.

With ``OMP_PROC_BIND``, ``OMP_PLACES`` or ``GOMP_CPU_AFFINITY`` libgomp does so when it is loaded (``gomp_init_affinity`` in its
affinity.c), and each process and thread that this thread starts has that core only. The places that OpenMP divides the cores
into are what the process had before.

A container may have many cores and a quota of their time: once its threads have used it up, none of them runs until the next period
of 100 ms, as if each waited for a core. Sources: Linux, Documentation/admin-guide/cgroup-v2.rst (``cpu.max``, ``cpu.stat``) and
Documentation/scheduler/sched-bwc.rst (version 1).
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.config.variables import openmp_pins

_MAPS = Path("/proc/self/maps")
_RUNTIME = re.compile(r"\s(/\S*/lib(?:gomp|iomp5|omp)[-.\w]*\.so[.\d]*)$", re.MULTILINE)
"""The file of an OpenMP runtime that is loaded: GNU's, Intel's, LLVM's."""

_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Throttling:
    """How long the system has kept control groups from their cores since they were made, because a quota was used up.

    Attributes:
        periods: Periods in which it has.
        kept_ns: Nanoseconds, summed over cores.
    """

    periods: int = 0
    kept_ns: int = 0

    def since(self, before: Throttling) -> Throttling:
        """Return what was added."""
        return Throttling(self.periods - before.periods, self.kept_ns - before.kept_ns)


def throttling_in(stat: str) -> Throttling:
    """Return what a group's ``cpu.stat`` says, in either version of control groups; nothing where it does not."""
    values = dict(re.findall(r"^(\w+) (\d+)$", stat, re.MULTILINE))
    kept_ns = values.get("throttled_time") or 1000 * int(values.get("throttled_usec", 0))
    return Throttling(int(values.get("nr_throttled", 0)), int(kept_ns))


def quota_in(quota: str, period: str = "") -> float | None:
    """Return how many cores' time a group has, None if that is not limited.

    Args:
        quota: The text of its ``cpu.max``; with version 1 of control groups, of its ``cpu.cfs_quota_us``.
        period: The text of its ``cpu.cfs_period_us``.
    """
    with suppress(ValueError, ZeroDivisionError):  # "max 100000"
        used_us, of_us = f"{quota} {period}".split()[:2]
        return float(used_us) / float(of_us) if int(used_us) > 0 else None
    return None


def folders_of(own: str, root: Path) -> list[Path]:
    """Return the folders of a process's control groups for CPUs and of those that they are in, as far as they are seen.

    A container may see its own group as the root, under whatever name its host knows it.

    Args:
        own: The text of ``/proc/<pid>/cgroup``.
        root: Where control groups are mounted.
    """
    folders: list[Path] = []
    for line in own.splitlines():
        _, controllers, name = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        mounts = [root / each for each in (controllers, "cpu")] if controllers else [root]
        mount = next((each for each in mounts if each.is_dir()), None)
        if mount is not None:
            group = mount / name.strip("/")
            within = [group, *group.parents]
            folders += within[: within.index(mount) + 1]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def quotas(own: Path = _OWN_GROUPS, root: Path = _GROUPS) -> dict[Path, float]:
    """Return the control groups of this process that have a quota, and how many cores' time that is."""
    limited: dict[Path, float] = {}
    with suppress(OSError, ValueError):
        for folder in folders_of(own.read_text(), root):
            quota = quota_in(_text(folder / "cpu.max")) or quota_in(
                _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
            )
            if quota is not None:
                limited[folder] = quota
    return limited


def throttling(groups: Iterable[Path]) -> Throttling:
    """Return how long groups were kept from their cores; it takes 20 microseconds a group."""
    known = [throttling_in(_text(group / "cpu.stat")) for group in groups]
    return Throttling(sum(each.periods for each in known), sum(each.kept_ns for each in known))


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def own_cores() -> frozenset[int]:
    """Return the numbers of the cores on which this process may run, pinned or not."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return frozenset(range(os.cpu_count() or 1))
    own = frozenset(os.sched_getaffinity(0))
    return own | _places() if openmp_pins() and "torch" in sys.modules else own


@functools.cache
def _places() -> frozenset[int]:
    """Return the cores of all places of the OpenMP runtimes that this process has loaded; none where they pin nothing."""
    with suppress(OSError, AttributeError):  # no such file; a runtime older than OpenMP 4.5
        paths = set(_RUNTIME.findall(_MAPS.read_text(encoding="utf-8", errors="replace")))
        return frozenset(core for path in paths for core in _places_of(path))
    return frozenset()


def _places_of(path: str) -> frozenset[int]:
    """Return the cores of a loaded runtime's places."""
    runtime: Any = ctypes.CDLL(path, mode=ctypes.DEFAULT_MODE | os.RTLD_NOLOAD)
    cores: set[int] = set()
    for place in range(runtime.omp_get_num_places()):
        numbers: Any = (ctypes.c_int * runtime.omp_get_place_num_procs(place))()
        runtime.omp_get_place_proc_ids(place, numbers)
        cores.update(numbers)
    return frozenset(cores)
