"""A call with an echo: the same kernel on other operands, which brings back its code where the caches have been evicted."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch

from inductor_plugin.device import BoundCall


@dataclass(frozen=True)
class Echoed:
    """A call of a kernel, for a timer that evicts the caches of the processor that also runs the host's code.

    What evicts operands evicts the kernel's code and data, too, and the library's are large: on a Xeon with 300 MB of level 3
    oneMKL's product of 4 x 96 x 160 takes 148 us behind a read of all caches, a generated kernel 33 us. A network calls the same
    kernel layer after layer, with other weights: 24 such layers take 37 and 33 us each behind that read.

    Attributes:
        call: The call.
        echo: The same kernel on other operands; called once, behind the read, before the call that is timed.
    """

    call: BoundCall
    echo: BoundCall

    def __call__(self) -> object:
        """Call the kernel on its operands."""
        return self.call()


def in_new_memory(call: BoundCall, written: Collection[int]) -> BoundCall:
    """Return a call that allocates what it writes, as a graph does before it: a library kernel that returns new memory does so, too.

    Args:
        call: The call of an operator, with ``out=``; others are returned as they are.
        written: Which of its arguments it writes besides.
    """
    is_bound, bound = isinstance(call, functools.partial), cast("Any", call)  # pyright: ignore[reportUnknownVariableType]
    if not is_bound or "out" not in bound.keywords:
        return call

    def anew() -> object:
        given = (_like(each) if at in written else each for at, each in enumerate(bound.args))
        return bound.func(*given, **{**bound.keywords, "out": _like(bound.keywords["out"])})

    return anew


def behind_others(echo: BoundCall) -> BoundCall:
    """Return an echo behind which the allocator has nothing to give that is in the caches, as behind other kernels of a graph.

    A kernel with 0.8 MB of scores in memory that its echo had freed took 0.9 of the time of one that keeps none, and 1.1 to 1.4
    behind the products of a network (BERT's attention, 12 heads of 128 x 64 on two threads of a Xeon).
    """

    def run() -> object:
        result = echo()
        del result
        with suppress(AttributeError, OSError):  # musl and macOS have no malloc_trim
            ctypes.CDLL(None).malloc_trim(0)
        return None

    return run


def _like(tensor: Any) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
