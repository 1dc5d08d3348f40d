"""The vector instruction set of C++ kernels: only the one that is used is probed, and early.

Inductor uses the first instruction set of a list, but fills the list before it looks: for each one
the processor has, it compiles up to three small libraries (1.8 s of headers each) and loads them in
a new process. On a two-core AVX-512 machine that is 9 s of work before the first C++ kernel.
"""

from __future__ import annotations

import functools
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

_NAME = "valid_vec_isa_list"
_PROBE = threading.RLock()
"""Held by whoever probes: while it does, torch changes the instruction set's flags."""


class LazyIsas(Sequence[Any]):
    """The instruction sets that work, best first, each probed when it is reached."""

    def __init__(self, listed: Sequence[Any]) -> None:
        """Choose among ``listed``, those the processor has."""
        self._listed = tuple(listed)

    def __iter__(self) -> Iterator[Any]:
        """Probe and give one after the other; torch remembers what came of each."""
        for isa in self._listed:
            with _PROBE:
                works = bool(isa)
            if works:
                yield isa

    def __getitem__(self, index: Any) -> Any:
        """Return the instruction set at ``index``, probing no further than necessary."""
        if isinstance(index, slice):
            return [*self][index]
        found = next(islice(self, index, None), None) if index >= 0 else [*self][index]
        if found is None:
            raise IndexError(f"no instruction set number {index} works here")
        return found

    def __bool__(self) -> bool:
        """Return True if one works."""
        return next(iter(self), None) is not None

    def __len__(self) -> int:
        """Return how many work, probing all."""
        return sum(1 for _ in self)


def install() -> None:
    """Let Inductor ask for one instruction set at a time; a torch that asks otherwise stays so."""
    stock = getattr(cpu_vec_isa, _NAME, None)
    if stock is not None and not installed():
        setattr(cpu_vec_isa, _NAME, _lazily(stock))


def uninstall() -> None:
    """Put Inductor's own list back."""
    if installed():
        own: Any = getattr(cpu_vec_isa, _NAME)
        setattr(cpu_vec_isa, _NAME, own.__wrapped__)


def installed() -> bool:
    """Return True if Inductor asks for one instruction set at a time."""
    return getattr(getattr(cpu_vec_isa, _NAME, None), "__module__", "") == __name__


def start_probe(inputs: Sequence[Any]) -> None:
    """Probe beside what the caller does next, if the graph with these inputs runs on a CPU.

    Where Inductor's cache has something, it most likely has the probe's library too; then a thread
    would only take turns with the caller (0.1 s).
    """
    types = {one.device.type for one in inputs if isinstance(one, torch.Tensor)}
    if types == {"cpu"} and not _has_entries(Path(cache_dir())):
        # torch >= 2.13 keeps configuration overrides in context variables.
        context = copy_context()
        threading.Thread(
            target=lambda: context.run(precompiled),  # which needs the instruction set first
            name="inductor-plugin-vector",
            daemon=True,
        ).start()


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
        return LazyIsas([isa for isa in listed if all(one in flags for one in str(isa).split())])

    own: Any = valid_vec_isa_list
    own.__wrapped__, own.__module__ = stock, __name__
    return valid_vec_isa_list
