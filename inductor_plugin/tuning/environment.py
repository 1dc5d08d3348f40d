"""The environment a timing depends on: machine, libraries, numerical settings; and what of it a worker has to be given."""

from __future__ import annotations

import platform
import sys
from typing import Any

import torch

from inductor_plugin.config import Config
from inductor_plugin.worker import switches
from inductor_plugin.worker.compile_pool import available_bytes
from inductor_plugin.worker.devices import lookup
from inductor_plugin.worker.devices.cuda import convolution_tf32, reduced_precision
from inductor_plugin.worker.jobs import WorkerSettings

_PRECISIONS = {"bf16": "medium", "tf32": "high"}
"""torch's older names of what ``fp32_precision`` names."""


def environment(device: str) -> dict[str, Any]:
    """Return the facts that must be equal for timings on a device to be comparable.

    Args:
        device: ``cpu``, ``cuda:0``, or a device that a package describes.

    Raises:
        DeviceError: The device is not described, or wrongly.
    """
    return {
        "device": lookup.facts_of(device),
        "software": {"torch": str(torch.__version__), **lookup.versions_of(device)},
        "numerics": numerics(device),
    }


def numerics(device: str) -> dict[str, Any]:
    """Return the settings that affect the results of a library kernel."""
    return {
        "float32_matmul_precision": float32_precision(device),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        **lookup.numerics_of(device),
    }


def float32_precision(device: str) -> str:
    """Return ``highest``, ``high`` or ``medium``, as `torch.set_float32_matmul_precision` takes them.

    torch's getter raises once the user has set ``torch.backends.*.fp32_precision`` (torch 2.9 and later), whose own getters
    never do: https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere.

    Args:
        device: A device or its type.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        on_cpu = device.startswith("cpu")
        backend: Any = torch.backends.mkldnn if on_cpu else torch.backends.cuda
        return _PRECISIONS.get(backend.matmul.fp32_precision, "highest")


def provenance(device: str) -> dict[str, Any]:
    """Return facts stored with each timing that do not distinguish environments."""
    facts = {"host": platform.node(), "python": platform.python_version()}
    return facts | lookup.conditions_of(device)


def worker_settings(config: Config, kind: str, device: str) -> WorkerSettings:
    """Return the settings of this process that a worker must share for comparable results."""
    reduced, precision = reduced_precision(), float32_precision(device)
    return WorkerSettings(
        sys_path=tuple(sys.path),
        kind="bench" if kind == "bench" else "compile",
        device=device,
        device_reference=lookup.reference_of(device),
        threads=torch.get_num_threads(),
        idle_s=config.worker_idle_s,
        memory_bytes=_memory_limit(config, device),
        allow_tf32=precision != "highest",
        cudnn_allow_tf32=convolution_tf32(),
        float32_precision=precision,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        reduced_precision=(reduced["fp16"], reduced["bf16"]),
        switches=() if device == "cpu" else switches.differing(),
        kernel_folder="" if config.cache == "off" else str(config.cache_dir),
        trusted_keys=config.trusted_keys,
    )


def _memory_limit(config: Config, device: str) -> int:
    """Return the bytes of private memory a worker may use; 0 for no limit.

    With one an allocation of a greedy candidate fails; without, the out-of-memory killer may choose the user's process. The
    CUDA driver maps far more address space than it uses, so a worker on a GPU is limited by the user's option alone.
    """
    if config.worker_memory_bytes or not lookup.on_host(device):
        return config.worker_memory_bytes
    return available_bytes() * 4 // 5
