"""A CUDA device, as `Device` describes one."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.device import Device, Json
from inductor_plugin.version import installed_version
from inductor_plugin.worker import switches
from inductor_plugin.worker.cuda_timer import CudaTimer, uuid_of
from inductor_plugin.worker.occupancy import why_scarce

_TORCH: Any = torch
"""For what torch has no public name of."""


@functools.cache
def facts(device: str) -> Mapping[str, Json]:
    """Return what has to be equal for timings to be comparable."""
    cuda: Any = torch.cuda  # its properties are untyped
    properties = cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
    }


@functools.cache
def versions() -> Mapping[str, Any]:
    """Return the versions of CUDA, its libraries and its compilers."""
    return {
        "cuda": str(torch.version.cuda),
        "cudnn": torch.backends.cudnn.version(),
        "driver": _driver(),
        "cublas": installed_version("nvidia-cublas", "nvidia-cublas-cu12") or "none",
        "triton": installed_version("triton", "pytorch-triton") or "none",
        "cutlass": installed_version("nvidia-cutlass") or "none",
    }


def numerics() -> dict[str, Any]:
    """Return the settings that affect the results of a library kernel."""
    settings: dict[str, Any] = {"cudnn_allow_tf32": convolution_tf32()}
    for name, (reduced, split_k) in reduced_precision().items():
        settings[f"{name}_reduced"] = reduced
        if not split_k:  # the default is True, as in all earlier records
            settings[f"{name}_split_k"] = split_k
    # Only those that the user has changed: earlier versions know no other fields, and their records are to be found.
    return settings | dict(switches.differing())


def reduced_precision() -> dict[str, tuple[bool, bool]]:
    """Return for fp16 and bf16 whether cuBLAS may reduce in lower precision, and whether it may split K.

    The public getters return the first alone; both are set as ``allow_fp16_reduced_precision_reduction = (False, False)``.
    """
    allowed: dict[str, tuple[bool, bool]] = {}
    for name in ("fp16", "bf16"):
        getter = getattr(_TORCH._C, f"_get_cublas_allow_{name}_reduced_precision_reduction", None)
        value: Any = True if getter is None else getter()
        if isinstance(value, bool):  # this torch has one flag
            value = (value, True)
        allowed[name] = bool(value[0]), bool(value[1])
    return allowed


def convolution_tf32() -> bool:
    """Return True if float32 convolutions may round their operands to TF32, as torch lets cuDNN do by default."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # as of `tuning.environment.float32_precision`
        cudnn: Any = torch.backends.cudnn
        return cudnn.conv.fp32_precision == "tf32"


def conditions(device: str) -> dict[str, Any]:
    """Return clock and power as they are now."""
    try:
        return {
            "sm_clock_mhz": torch.cuda.clock_rate(device),
            "power_w": torch.cuda.power_draw(device) / 1000,
        }
    except Exception as error:  # noqa: BLE001  what was measured is worth more than the clock it was measured at
        # NVML is missing or does not report it: a MIG slice has no power reading, and torch 2.11 raises an
        # IndexError where CUDA_VISIBLE_DEVICES is empty (torch/cuda/__init__.py, `_get_nvml_device_index`).
        return {"clocks": f"unknown ({type(error).__name__})"}


def start(device: str) -> None:
    """Make the device current, and create its context: a GPU that cannot be had says so now, not in a candidate's job."""
    # Triton's launcher allocates scratch memory of TMA on the current device (torch 2.11, CachingAutotuner.run).
    torch.cuda.set_device(device)
    torch.cuda.synchronize()


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    match = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", text)
    return match.group(1) if match else "unknown"


CUDA = Device(
    facts,
    versions,
    CudaTimer,
    numerics=numerics,
    conditions=conditions,
    turn=uuid_of,
    scarcity=why_scarce,
    start=start,
    draws=True,
    triton=True,
)
