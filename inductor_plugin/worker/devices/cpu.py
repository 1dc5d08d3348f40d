"""The CPU, as `Device` describes one."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from inductor_plugin.config.variables import openmp_settings
from inductor_plugin.device import Device, Json
from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.cpu_timer import CpuTimer


def facts(_device: str) -> dict[str, Json]:
    """Return what has to be equal for timings to be comparable."""
    # The user may change the number of threads at any time; the machine is constant and cached.
    threads, cores, openmp = torch.get_num_threads(), len(own_cores()), openmp_settings()
    unusual: dict[str, Json] = {"openmp": openmp} if openmp else {}
    if cores < threads:  # they wait for each other
        unusual["cores"] = cores
    return {**_machine(), "threads": threads, **unusual}


@functools.cache
def _machine() -> Mapping[str, Json]:
    amx: dict[str, Json] = {"amx": True} if allow_amx() else {}
    return {
        "type": "cpu",
        "name": _name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "arch": platform.machine(),
        **amx,
    }


def allow_amx() -> bool:
    """Let this process use AMX, and return whether it may; a hypervisor can hide AMX on a CPU of the same name.

    Linux grants a process the tiles of AMX on request alone (``arch_prctl(ARCH_REQ_XCOMP_PERM)``); without it, their first
    instruction ends the process with SIGILL. Inductor requests it while it probes instruction sets, which a worker does not.
    """
    return torch.cpu._init_amx()  # pyright: ignore[reportPrivateUsage]


def _start(_device: str) -> None:
    allow_amx()


def _name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown"
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    family = re.search(r"^model\s*:\s*(\d+)$", text, re.MULTILINE)
    name = match.group(1).strip() if match else platform.processor() or "unknown"
    return f"{name} (model {family.group(1)})" if family else name


@functools.cache
def versions() -> Mapping[str, str]:
    """Return the versions of oneDNN, MKL and OpenMP, which only `torch.__config__.show()` reports."""
    text = torch.__config__.show()
    named: dict[str, str] = {}
    for name, pattern in (
        ("mkl", r"Math Kernel Library Version ([\w.\- ]+?)(?: for|,|$)"),
        ("onednn", r"MKL-DNN v([\w.]+)"),
        ("openmp", r"OpenMP (\d+)"),
    ):
        match = re.search(pattern, text, re.MULTILINE)
        named[name] = match.group(1).strip() if match else "none"
    return named


CPU = Device(
    facts,
    versions,
    lambda _device: CpuTimer(),
    turn=lambda _device: "",
    start=_start,
    on_host=True,
    draws=True,
    kept_problems=2,
    warmup=2,
    sample_ms=(1.0, 1.0),
)
