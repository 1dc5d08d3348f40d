"""A GPU's memory while candidates are measured: whose fault it is that it runs out, and giving it back."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from inductor_plugin.device import DEVICES
from inductor_plugin.worker import interface

_TRIED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_CONTEXT_BYTES = 2 << 30
"""What contexts, modules and library workspaces of this process may take besides tensors: 0.6 GiB on an H200."""


@dataclass(frozen=True)
class Shortage:
    """A GPU at the moment an allocation failed.

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
        """True if the job would have had enough memory, were it alone on the GPU. Pure."""
        need = self.used_bytes + self.wanted_bytes + _CONTEXT_BYTES
        return not self.total_bytes or need <= self.total_bytes

    @property
    def reason(self) -> str:
        """Who holds the memory, in words."""
        if not self.total_bytes:
            return "who holds the GPU's memory is not known"
        if not self.is_crowded:
            need = self.used_bytes + self.wanted_bytes
            return f"it needs {_gib(need)} GiB of the GPU's {_gib(self.total_bytes)}"
        others = max(0, self.total_bytes - self.free_bytes - self.held_bytes)
        before = (
            "" if self.before_bytes is None else f", {_gib(self.before_bytes)} were free before"
        )
        return f"others hold {_gib(others)} GiB of the GPU's {_gib(self.total_bytes)}{before}"


def wanted_bytes(text: str) -> int:
    """Return what an error of torch's allocator says could not be allocated; 0 if it says nothing."""
    match = _TRIED.search(text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else 0


class _Before:
    """What was free when a job began."""

    free_bytes: int | None = None


def mark_start() -> None:
    """Remember how much of the GPU's memory is free, at the beginning of a job; nothing where no GPU is used."""
    _Before.free_bytes = None
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # a broken device says so when it is used
            _Before.free_bytes = int(_cuda().mem_get_info()[0])


def shortage(text: str) -> Shortage | None:
    """Return the GPU's state after an allocation there failed; None where it was not a GPU's memory.

    Args:
        text: The error. Its exception must still be alive, so that what it holds counts.
    """
    if "CUDA" not in text or not torch.cuda.is_initialized():
        return None
    cuda, wanted = _cuda(), wanted_bytes(text)
    try:
        free, total = cuda.mem_get_info()
        used, held = cuda.memory_allocated(), cuda.memory_reserved()
    except RuntimeError:  # the device is broken: nothing is known of the job's need
        return Shortage(0, _Before.free_bytes, 0, 0, 0, wanted)
    return Shortage(total, _Before.free_bytes, free, held, used, wanted)


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


def _cuda() -> Any:
    return torch.cuda


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f}"
