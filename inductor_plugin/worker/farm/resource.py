"""By which resources of a Ray cluster nodes with a device are known. Pure.

An operator starts a node with a resource named after its GPU, as many of it as there are GPUs::

    ray start --address=HEAD:6379 --resources='{"inductor-plugin:NVIDIA_H200": 8}'

Without it a node is known by the type of accelerator that Ray has read from the driver (``accelerator_type:H200``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

PREFIX = "inductor-plugin:"
RAY_PREFIX = "accelerator_type:"
GPU = "GPU"
"""Ray's own resource of all GPUs of a node."""

_OTHER = re.compile(r"[^A-Za-z0-9._-]+")
"""What a name that is typed in a shell and in JSON had better not have."""
_MODEL = re.compile(r"\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)(?![a-z])")
"""The model in CUDA's name of a GPU, as Ray reads it (``NvidiaGPUAcceleratorManager``, 2.60): ``NVIDIA H100 80GB HBM3`` is
an ``H100``. Names of another form (``NVIDIA GeForce RTX 4090``) were read otherwise by earlier versions, and are not mapped."""


def resource_of(device_name: str) -> str:
    """Return the custom resource of a device, by CUDA's name of it: ``inductor-plugin:NVIDIA_H200``."""
    return PREFIX + _OTHER.sub("_", device_name.strip()).strip("_")


def resources_of(device_name: str) -> tuple[str, ...]:
    """Return the resources by which nodes with a device are known, the most exact first.

    A type of accelerator names several GPUs (an ``A100`` has 40 or 80 GB): whether a node fits is asked there.
    """
    match = _MODEL.match(device_name)
    model = match[1].replace(" ", "-") if match else ""
    return (resource_of(device_name), *([RAY_PREFIX + model] if len(model) > 1 else []))


def reserved(
    resources: Mapping[str, float], known_by: Iterable[str], *, on_gpu: bool
) -> dict[str, float]:
    """Return what of a node's resources is reserved to measure there; empty if it is not known to have the device.

    Args:
        resources: The node's.
        known_by: As of `resources_of`.
        on_gpu: Whether the device is one that Ray counts as a GPU.
    """
    names = [name for name in known_by if resources.get(name, 0.0) > 0]
    if not names:
        return {}
    own = {name: 1.0 for name in names if name.startswith(PREFIX)}
    return own | ({GPU: 1.0} if on_gpu and resources.get(GPU, 0.0) >= 1 else {})


def start_command(resource: str) -> str:
    """Return how an operator starts a node of a cluster that has one device of a resource."""
    resources = json.dumps({resource: 1})
    return f"ray start --address=HEAD:6379 --resources='{resources}'"
