"""The vector instruction set of C++ kernels: only the one in use is probed, and early.

Inductor uses the first instruction set of a list, but fills the whole list first: for each one the
processor has, it compiles up to three small libraries (1.8 s of headers each) and loads them in a
new process. On a two-core AVX-512 machine this takes 9 s before the first C++ kernel.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch._inductor import cpu_vec_isa
from torch._inductor.runtime.cache_dir_utils import cache_dir

from inductor_plugin.inductor.facts.toolchain import precompiled

logger = logging.getLogger(__name__)

_NAME = "valid_vec_isa_list"
_PROBE = [threading.RLock()]
"""The lock that is held while probing, because torch then changes the instruction set's flags."""


def _after_fork() -> None:
    """Replace the lock in a child: a thread of the parent that probes, and holds it, is not there."""
    _PROBE[0] = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class LazyIsas(Sequence[Any]):
    """The instruction sets that work, best first, each probed when it is reached."""

    def __init__(self, listed: Sequence[Any]) -> None:
        """Choose among ``listed``, the instruction sets of the processor."""
        self._listed = tuple(listed)

    def __iter__(self) -> Iterator[Any]:
        """Probe and yield one after the other; torch caches the result of each probe."""
        for isa in self._listed:
            with _PROBE[0]:
                works = bool(isa)
            if works:
                yield isa

    def __getitem__(self, index: Any) -> Any:
        """Return the instruction set at ``index``, probing no further than necessary."""
        if isinstance(index, slice):
            return [*self][index]
        isa = next(islice(self, index, None), None) if index >= 0 else [*self][index]
        if isa is None:
            raise IndexError(f"no instruction set number {index} works here")
        return isa

    def __bool__(self) -> bool:
        """Return True if any works."""
        return next(iter(self), None) is not None

    def __len__(self) -> int:
        """Return how many work; probes all."""
        return sum(1 for _ in self)


def install() -> None:
    """Make Inductor probe one instruction set at a time; does nothing if this torch has no list."""
    stock = getattr(cpu_vec_isa, _NAME, None)
    if stock is not None and not installed():
        setattr(cpu_vec_isa, _NAME, _lazily(stock))


def uninstall() -> None:
    """Restore Inductor's own list."""
    if installed():
        own: Any = getattr(cpu_vec_isa, _NAME)
        setattr(cpu_vec_isa, _NAME, own.__wrapped__)


def installed() -> bool:
    """Return True if Inductor probes one instruction set at a time."""
    return getattr(getattr(cpu_vec_isa, _NAME, None), "__module__", "") == __name__


def start_probe(inputs: Sequence[Any]) -> None:
    """Probe in the background if the graph with these inputs runs on a CPU.

    If Inductor's cache is not empty, it most likely has the probe's library too; a thread would then
    only compete with the caller (0.1 s).
    """
    types = {value.device.type for value in inputs if isinstance(value, torch.Tensor)}
    if types == {"cpu"} and not _has_entries(Path(cache_dir())):
        # torch >= 2.13 keeps configuration overrides in context variables.
        context = copy_context()
        threading.Thread(
            target=lambda: context.run(_probe), name="inductor-plugin-vector", daemon=True
        ).start()


def _probe() -> None:
    """Probe the instruction set and compile the header; what fails here, Inductor reports itself."""
    try:
        precompiled()  # it probes the instruction set first
    except Exception:  # the border of a thread: without a C++ compiler the probe raises
        logger.debug("the vector instruction set could not be probed early", exc_info=True)


def _has_entries(folder: Path) -> bool:
    return folder.is_dir() and any(True for _ in folder.iterdir())


def _lazily(stock: Callable[[], list[Any]]) -> Callable[[], Any]:
    @functools.cache
    def valid_vec_isa_list() -> Any:
        checker = getattr(cpu_vec_isa, "x86_isa_checker", None)
        listed = getattr(cpu_vec_isa, "supported_vec_isa_list", None)
        x86_linux = sys.platform == "linux" and platform.machine() == "x86_64"
        if not x86_linux or checker is None or not listed:
            return stock()
        flags = checker()
        return LazyIsas([isa for isa in listed if all(flag in flags for flag in str(isa).split())])

    own: Any = valid_vec_isa_list
    own.__wrapped__, own.__module__ = stock, __name__
    return valid_vec_isa_list
