"""Candidates that fail in each of the seven possible ways, and correct ones, as torch operators.

A worker imports this module because an `OpKernel` names it; all compute ``out = a @ b``, or not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from inductor_plugin.worker.child import memory

MEMORY_BYTES = 4 << 30
"""Memory limit of the tests' worker, and the additional memory that a candidate allocates."""

Fault = Callable[[torch.Tensor, torch.Tensor], None]


def good(out: torch.Tensor, right: torch.Tensor) -> None:
    out.copy_(right)


def slow(out: torch.Tensor, right: torch.Tensor) -> None:
    time.sleep(0.05)  # a small product was seen to take 15 ms beside other work
    out.copy_(right)


def raises(out: torch.Tensor, right: torch.Tensor) -> None:
    raise ValueError("this candidate raises\nin two lines")


def segfaults(out: torch.Tensor, right: torch.Tensor) -> None:
    ctypes.string_at(0)


def hangs(out: torch.Tensor, right: torch.Tensor) -> None:
    ctypes.CDLL(None).sleep(600)  # native code; the GIL is released


def hangs_busy(out: torch.Tensor, right: torch.Tensor) -> None:
    while True:
        pass


def no_memory(out: torch.Tensor, right: torch.Tensor) -> None:
    torch.empty(MEMORY_BYTES, dtype=torch.uint8)  # never touched: only a limit refuses it


def crowded(out: torch.Tensor, right: torch.Tensor) -> None:
    """Runs out of memory on a GPU that others have filled; the worker's GPU is this fake from now on."""
    torch.cuda.is_initialized = lambda: True
    torch.cuda.mem_get_info = lambda: (1 << 28, 80 << 30)
    torch.cuda.memory_allocated = torch.cuda.memory_reserved = lambda: 1 << 30
    memory.mark_start("cuda:0")
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")


def killed(out: torch.Tensor, right: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is out


def sticky(out: torch.Tensor, right: torch.Tensor) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def wrong(out: torch.Tensor, right: torch.Tensor) -> None:
    out.copy_(right * 1.01)


def writes_nothing(out: torch.Tensor, right: torch.Tensor) -> None:
    pass


def overruns(out: torch.Tensor, right: torch.Tensor) -> None:
    out.copy_(right)
    ctypes.memset(out.data_ptr() + out.numel() * out.element_size(), 0, 16)


_calls = {"later": 0}


def breaks_later(out: torch.Tensor, right: torch.Tensor) -> None:
    """Correct for a few calls, so that it reaches the turns of a final job; then it crashes."""
    out.copy_(right)
    _calls["later"] += 1
    if _calls["later"] > 6:
        ctypes.string_at(0)


class Request:
    """Looks like Inductor's benchmark request."""

    def make_run_fn(self, *inputs: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            torch.mm(*inputs, out=out)

        return run


FAULTS = (
    good,
    slow,
    raises,
    segfaults,
    hangs,
    hangs_busy,
    no_memory,
    crowded,
    killed,
    sticky,
    wrong,
    writes_nothing,
    overruns,
    breaks_later,
)

library: Any = torch.library.Library("faults", "FRAGMENT")


def _define(fault: Fault) -> None:
    name = fault.__name__

    def run(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        fault(out, a @ b)
        return out

    library.define(f"{name}(Tensor a, Tensor b, *, Tensor(x!) out) -> Tensor(x!)")
    library.impl(name, run, "CPU")


def dirty(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Correct, but it modifies its operands."""
    torch.mm(a, b, out=out)
    a.mul_(2)
    return out


def returns_nothing(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    """Correct; its schema has no result, as those of the operators that launch CUTLASS kernels."""
    torch.mm(a, b, out=out)


for fault in FAULTS:
    _define(fault)
library.define("returns_nothing(Tensor a, Tensor b, *, Tensor(x!) out) -> ()")
library.impl("returns_nothing", returns_nothing, "CPU")
library.define("dirty(Tensor(y!) a, Tensor b, *, Tensor(x!) out) -> Tensor(x!)")
library.impl("dirty", dirty, "CPU")
