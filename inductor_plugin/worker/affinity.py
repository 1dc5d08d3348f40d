"""The cores of this process, also where OpenMP has pinned the thread that loaded it to one of them.

With ``OMP_PROC_BIND``, ``OMP_PLACES`` or ``GOMP_CPU_AFFINITY`` libgomp does so when it is loaded (``gomp_init_affinity`` in its
affinity.c), and each process and thread that this thread starts has that core only. The places that OpenMP divides the cores
into are what the process had before.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from inductor_plugin.config.variables import openmp_pins

_MAPS = Path("/proc/self/maps")
_RUNTIME = re.compile(r"\s(/\S*/lib(?:gomp|iomp5|omp)[-.\w]*\.so[.\d]*)$", re.MULTILINE)
"""The file of an OpenMP runtime that is loaded: GNU's, Intel's, LLVM's."""


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
