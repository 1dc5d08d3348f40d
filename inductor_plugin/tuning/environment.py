"""The environment a timing depends on: machine, libraries, numerical settings."""

from __future__ import annotations

import functools
import importlib
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.worker import switches

_TORCH: Any = torch
"""For what torch has no public name of."""
_PRECISIONS = {"bf16": "medium", "tf32": "high"}
"""torch's older names of what ``fp32_precision`` names."""


def environment(device: str) -> dict[str, Any]:
    """Return the facts that must be equal for timings on a device to be comparable.

    Args:
        device: ``cpu``, or a CUDA device such as ``cuda:0``.
    """
    return {
        # The user may change the number of threads at any time; the rest is constant and cached.
        "device": {**_cpu(), "threads": torch.get_num_threads()}
        if device.startswith("cpu")
        else dict(_cuda(device)),
        "software": _software(device),
        "numerics": numerics(device),
    }


def numerics(device: str) -> dict[str, Any]:
    """Return the settings that affect the results of a library kernel."""
    settings: dict[str, Any] = {
        "float32_matmul_precision": float32_precision(device),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if not device.startswith("cpu"):
        settings["cudnn_allow_tf32"] = convolution_tf32()
        for name, (reduced, split_k) in reduced_precision().items():
            settings[f"{name}_reduced"] = reduced
            if not split_k:  # the default is True, as in all earlier records
                settings[f"{name}_split_k"] = split_k
        # Only those that the user has changed: earlier versions know no other fields, and their records are to be found.
        settings |= dict(switches.differing())
    return settings


def reduced_precision() -> dict[str, tuple[bool, bool]]:
    """Return for fp16 and bf16 whether cuBLAS may reduce in lower precision, and whether it may split K.

    The public getters return the first alone; both are set as ``allow_fp16_reduced_precision_reduction = (False, False)``.
    """
    found: dict[str, tuple[bool, bool]] = {}
    for name in ("fp16", "bf16"):
        getter = getattr(_TORCH._C, f"_get_cublas_allow_{name}_reduced_precision_reduction", None)
        value: Any = True if getter is None else getter()
        if isinstance(value, bool):  # this torch has one flag
            value = (value, True)
        found[name] = bool(value[0]), bool(value[1])
    return found


def float32_precision(device: str) -> str:
    """Return ``highest``, ``high`` or ``medium``, as `torch.set_float32_matmul_precision` takes them.

    torch's getter raises once the user has set ``torch.backends.*.fp32_precision`` (torch 2.9 and later), whose own getters
    never do: https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere.

    Args:
        device: ``cpu``, or a CUDA device or its type.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        on_cpu = device.startswith("cpu")
        backend: Any = torch.backends.mkldnn if on_cpu else torch.backends.cuda
        return _PRECISIONS.get(backend.matmul.fp32_precision, "highest")


def convolution_tf32() -> bool:
    """Return True if float32 convolutions may round their operands to TF32, as torch lets cuDNN do by default."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # as of `float32_precision`
        cudnn: Any = torch.backends.cudnn
        return cudnn.conv.fp32_precision == "tf32"


def provenance(device: str) -> dict[str, Any]:
    """Return facts stored with each timing that do not distinguish environments."""
    facts: dict[str, Any] = {"host": platform.node(), "python": platform.python_version()}
    if not device.startswith("cpu"):
        facts |= _clocks(device)
    return facts


@functools.cache
def _cpu() -> dict[str, Any]:
    return {
        "type": "cpu",
        "name": _cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "arch": platform.machine(),
    }


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown"
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    family = re.search(r"^model\s*:\s*(\d+)$", text, re.MULTILINE)
    name = match.group(1).strip() if match else platform.processor() or "unknown"
    return f"{name} (model {family.group(1)})" if family else name


@functools.cache
def _cuda(device: str) -> dict[str, Any]:
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
def _software(device: str) -> dict[str, Any]:
    versions: dict[str, Any] = {"torch": str(torch.__version__)}
    if device.startswith("cpu"):
        versions |= _build_libraries()
        return versions
    versions["cuda"] = str(torch.version.cuda)
    versions["cudnn"] = torch.backends.cudnn.version()
    versions["driver"] = _driver()
    versions["cublas"] = _installed("nvidia-cublas", "nvidia-cublas-cu12")
    versions["triton"] = _installed("triton", "pytorch-triton")
    versions["cutlass"] = _installed("nvidia-cutlass")
    return versions


def _build_libraries() -> dict[str, str]:
    """Return the versions of oneDNN, MKL and OpenMP, which only `torch.__config__.show()` reports."""
    text = torch.__config__.show()
    versions: dict[str, str] = {}
    for name, pattern in (
        ("mkl", r"Math Kernel Library Version ([\w.\- ]+?)(?: for|,|$)"),
        ("onednn", r"MKL-DNN v([\w.]+)"),
        ("openmp", r"OpenMP (\d+)"),
    ):
        match = re.search(pattern, text, re.MULTILINE)
        versions[name] = match.group(1).strip() if match else "none"
    return versions


def _installed(*names: str) -> str:
    # importlib.metadata takes 40 ms to import and is needed on CUDA machines only.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    for name in names:
        with suppress(PackageNotFoundError):
            return version(name)
    return "none"


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    match = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", text)
    return match.group(1) if match else "unknown"


def _clocks(device: str) -> dict[str, Any]:
    try:
        return {
            "sm_clock_mhz": torch.cuda.clock_rate(device),
            "power_w": torch.cuda.power_draw(device) / 1000,
        }
    except (RuntimeError, ImportError, OSError, _nvml_error()) as error:
        # NVML is missing or does not report it: a MIG slice of a GPU has no power reading.
        return {"clocks": f"unknown ({type(error).__name__})"}


def _nvml_error() -> type[Exception]:
    """Return the class of NVML's errors, which is not a RuntimeError."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return RuntimeError
    return pynvml.NVMLError
