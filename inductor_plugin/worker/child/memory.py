"""A device's memory while candidates are measured: whose fault it is that it runs out, and giving it back."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from inductor_plugin.device import DEVICES
from inductor_plugin.worker import interface
from inductor_plugin.worker.failure import says_no_device_memory

logger = logging.getLogger(__name__)

_TRIED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_CONTEXT_BYTES = 2 << 30
"""What contexts, modules and library workspaces of this process may take besides tensors: 0.6 GiB on an H200."""


@dataclass(frozen=True)
class Shortage:
    """A GPU, or another device, at the moment an allocation failed.

    Attributes:
        total_bytes: Its memory; 0 if it answers no more.
        before_bytes: What was free when the job began; None if that is not known.
        free_bytes: What is free now.
        held_bytes: What this process has reserved.
        used_bytes: What tensors of this process take of it.
        wanted_bytes: What could not be allocated; 0 if that is not known.
    """

    total_bytes: int
    before_bytes: int | None
    free_bytes: int
    held_bytes: int
    used_bytes: int
    wanted_bytes: int

    @property
    def is_crowded(self) -> bool:
        """True if the job would have had enough memory, were it alone on the device. Pure."""
        need = self.used_bytes + self.wanted_bytes + _CONTEXT_BYTES
        return not self.total_bytes or need <= self.total_bytes

    @property
    def reason(self) -> str:
        """Who holds the memory, in words."""
        if not self.total_bytes:
            return "who holds the device's memory is not known"
        if not self.is_crowded:
            need = self.used_bytes + self.wanted_bytes
            return f"it needs {_gib(need)} GiB of the device's {_gib(self.total_bytes)}"
        others = max(0, self.total_bytes - self.free_bytes - self.held_bytes)
        before = (
            "" if self.before_bytes is None else f", {_gib(self.before_bytes)} were free before"
        )
        return f"others hold {_gib(others)} GiB of the device's {_gib(self.total_bytes)}{before}"


def wanted_bytes(text: str) -> int:
    """Return what an error of torch's allocator says could not be allocated; 0 if it says nothing."""
    match = _TRIED.search(text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else 0


class _MemoryOfJob:
    """The job that runs: its device, and what was free there when it began."""

    device = "cpu"
    free_bytes: int | None = None


def mark_start(device: str) -> None:
    """Remember a job's device and how much memory is free there, at its beginning; nothing where that cannot be asked.

    Args:
        device: ``cpu``, ``cuda:0``, ``npu:0`` ...
    """
    _MemoryOfJob.device, _MemoryOfJob.free_bytes = device, None
    module = _asked(device)
    state = None if module is None else _free_and_total(module)
    if state is not None:
        _MemoryOfJob.free_bytes = state[0]


def shortage(text: str) -> Shortage | None:
    """Return the state of the job's device after an allocation there failed.

    None where it was not the device's memory, or where torch's module of the device does not say how much is free (``mem_get_info``).

    Args:
        text: The error, with its class. Its exception must still be alive, so that what it holds counts.
    """
    module = _asked(_MemoryOfJob.device)
    if module is None or not says_no_device_memory(text):
        return None
    before, wanted = _MemoryOfJob.free_bytes, wanted_bytes(text)
    state = _free_and_total(module)
    if state is not None:
        free, total = state
        # Without an account of the allocator, what went since the beginning is the job's.
        used = _count(module, "memory_allocated", max(0, (before or free) - free))
        return Shortage(total, before, free, _count(module, "memory_reserved", used), used, wanted)
    # It is broken, and nothing is known of the job's need; or it has never said, as drivers of some devices cannot.
    is_broken = module is torch.cuda or before is not None
    return Shortage(0, before, 0, 0, 0, wanted) if is_broken else None


def _asked(device: str) -> Any:
    """Return torch's module of a device that this process uses and whose memory can be asked about, else None."""
    module = interface.module_of(device)
    if device.partition(":")[0] == "cpu" or not hasattr(module, "mem_get_info"):
        return None
    is_used = getattr(module, "is_initialized", None)
    return module if is_used is None or is_used() else None


def _free_and_total(module: Any) -> tuple[int, int] | None:
    """Return the bytes that are free on the current device and those it has; None if it does not say."""
    try:
        free, total = module.mem_get_info()
        return int(free), int(total)
    # The border to a package's code, which may raise anything; a broken GPU raises RuntimeError.
    except Exception:
        logger.debug("the memory of %s is not known", _MemoryOfJob.device, exc_info=True)
        return None


def _count(module: Any, name: str, otherwise: int) -> int:
    """Return what the allocator of a device counts, or another number if it does not."""
    try:
        return int(getattr(module, name)())
    except Exception:  # the border to a package's code, as in `_free_and_total`
        logger.debug("%s of %s is not known", name, _MemoryOfJob.device, exc_info=True)
        return otherwise


def give_back(
    drop: Callable[[], None], others: Callable[[], Iterable[str]] = DEVICES.names
) -> None:
    """Drop what this process keeps on the GPU, and give all memory there back that tensors do not hold.

    What remains is the context: 0.5 GiB. Called where no traceback refers to tensors.

    Args:
        drop: Drops the process's own references to tensors.
        others: Returns the other devices than CPU and CUDA on which this process measures.
    """
    drop()
    for device in others():
        interface.give_back(device)
    if not torch.cuda.is_initialized():
        gc.collect()
        return
    with suppress(AttributeError):  # private
        _torch()._C._cuda_clearCublasWorkspaces()
    if torch.cuda.memory_allocated():  # 50 ms: only where a cycle may hold something
        gc.collect()
    torch.cuda.empty_cache()


def _torch() -> Any:
    return torch  # typed partly


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f}"
