"""What torch's `DeviceInterface` and its module of a device say: the only module that asks them."""

from __future__ import annotations

import importlib
from typing import Any

import torch


def interface_of(device: str) -> Any:
    """Return torch's interface of a device; None if it has none.

    Args:
        device: ``npu``, ``npu:0`` ...
    """
    # Dynamo takes a second to import where no compile has done so yet.
    interfaces: Any = importlib.import_module("torch._dynamo.device_interface")
    try:
        return interfaces.get_interface_for_device(device.partition(":")[0])
    except NotImplementedError:
        return None


def count(device: str) -> int:
    """Return how many devices of a type there are; 0 where torch does not know the type."""
    interface = interface_of(device)
    if interface is None or not interface.is_available():
        return 0
    try:
        return int(interface.device_count())
    except NotImplementedError:
        return 1


def start(device: str) -> None:
    """Make a device current, and wait until it works."""
    interface = interface_of(device)
    if interface is not None:
        interface.set_device(torch.device(device).index or 0)
        interface.synchronize(device)


def module_of(device: str) -> Any:
    """Return torch's module of a device, such as ``torch.npu``; None if it has none."""
    return getattr(torch, device.partition(":")[0], None)


def give_back(device: str) -> None:
    """Let torch's allocator of a device give its unused memory back, if it can."""
    empty = getattr(module_of(device), "empty_cache", None)
    if empty is not None:
        empty()
