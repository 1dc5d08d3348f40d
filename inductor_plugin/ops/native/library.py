"""The loaded library of call sites, or why there is none.

It is searched in the caches of this process once, and again after a cache was added; a process that compiles it
(`inductor.native`) says so with `expect`, and the first call site waits for it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch._C._profiler import _RecordFunctionFast  # pyright: ignore[reportPrivateUsage]
from torch.autograd import profiler

from inductor_plugin.kernels.unit import unique_symbol
from inductor_plugin.ops import launch
from inductor_plugin.ops.native import source

logger = logging.getLogger(__name__)

_WAIT_S = 30.0
"""Longest wait for the library that this process compiles: it takes a second on an idle core."""


class Site(Protocol):
    """A call site in C++."""

    launch: Callable[..., torch.Tensor]
    """Takes the operands, the workspace or None, and the output by its name, ``out``; returns the output."""

    def bind(self, address: int, device: int, sm_count: int) -> None:
        """Call the kernel at an address on a device (-1: the CPU) from now on; address 0: none."""
        ...


class Sites(Protocol):
    """The module that the library returns; see ``site.cpp``."""

    def product_site(self, name: str, slow: Callable[..., torch.Tensor], *numbers: float) -> Site:
        """Return a call site of a product; ``name`` is that of its calls in a profile."""
        ...

    def attention_site(
        self,
        name: str,
        slow: Callable[..., torch.Tensor],
        veto: Callable[[], bool] | None,
        *numbers: float,
    ) -> Site:
        """Return a call site of an attention."""
        ...

    def describe(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return size, stride, address, dtype, device type and device index as the library reads them."""
        ...


class _State:
    """What is known of the library in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sites: Sites | None = None
        self.reason = ""
        self.searched = -1
        self.expected: threading.Event | None = None


_STATE = _State()


def _after_fork() -> None:
    """Begin anew in a child: the thread that compiles the library, and may hold the lock, is not there."""
    loaded = _STATE.sites
    _STATE.__init__()
    _STATE.sites = loaded


os.register_at_fork(after_in_child=_after_fork)


def sites() -> Sites | None:
    """Return the module of call sites, None where there is none; `reason` then says why."""
    if _STATE.expected is not None and not _STATE.expected.wait(_WAIT_S):
        _STATE.expected = None  # it is waited for once
        return None
    with _STATE.lock:
        if _STATE.sites is None and _STATE.searched != launch.caches_added():
            _STATE.searched = launch.caches_added()
            _STATE.sites = _loaded()
        return _STATE.sites


def reason() -> str:
    """Return why there is no library; empty if there is, or if it was not searched."""
    return _STATE.reason


def search_again() -> None:
    """Search the library once more in the next `sites`: another process may have put it into a cache."""
    _STATE.searched = -1


def expect(done: threading.Event) -> None:
    """Say that this process is compiling the library; ``done`` is set when it is in the cache, or cannot be."""
    _STATE.expected, _STATE.searched = done, -1


def fail(reason: str) -> None:
    """Say why the library cannot be compiled."""
    _STATE.reason = reason


def _loaded() -> Sites | None:
    kernels = (cache.kernel(source.key().digest) for cache in launch.opened_caches())
    path = next((k.path(launch.LIBRARY_FILE) for k in kernels if k is not None), None)
    if path is None:
        _STATE.reason = _STATE.reason or "it is not in the cache"
        return None
    try:
        return load(path)
    except Exception as error:  # noqa: BLE001 - whatever a torch or a mode to come makes of it, Python launches
        _STATE.reason = f"{path} cannot be used: {error}"
        logger.warning("inductor-plugin: %s; kernels are launched by Python", _STATE.reason)
        return None


def load(path: Path) -> Sites:
    """Return the module of a compiled library.

    Raises:
        OSError: It cannot be loaded, or this torch lacks a function.
        AttributeError: It is another library.
        RuntimeError: It reads a tensor differently than torch.
    """
    function = getattr(ctypes.PyDLL(str(path)), unique_symbol(source.unit()))
    function.argtypes, function.restype = 4 * (ctypes.py_object,), ctypes.py_object
    given = (torch.Tensor, torch.nn.Parameter, vars(profiler), _RecordFunctionFast)
    module = cast("Sites", function(*given))
    probe = torch.empty(40)[3:].as_strided((2, 3), (7, 2))
    expected = (tuple(probe.shape), probe.stride(), probe.data_ptr())
    read = module.describe(probe)
    if read[:3] != expected:
        raise RuntimeError(f"it reads a tensor as {read[:3]}, torch as {expected}")
    return module
