"""The environment a timing depends on: machine, libraries, numerical settings."""

from __future__ import annotations

import platform
from typing import Any

import torch

from inductor_plugin.worker.devices import lookup

_PRECISIONS = {"bf16": "medium", "tf32": "high"}
"""torch's older names of what ``fp32_precision`` names."""


def environment(device: str) -> dict[str, Any]:
    """Return the facts that must be equal for timings on a device to be comparable.

    Args:
        device: ``cpu``, ``cuda:0``, or a device that a package describes.

    Raises:
        DeviceError: Nobody describes the device, or wrongly.
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
