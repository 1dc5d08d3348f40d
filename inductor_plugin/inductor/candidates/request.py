"""Benchmark requests of Triton kernels that need work before each call: zeroed scratch memory, or delta.

Inductor's own request zeroes the memory once, before timing; generated code does so before each call. A worker that reads a
request imports this file, which imports nothing that chooses kernels: that took 1.4 s on the machine of an H200.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.autotune_process import TritonGPUBenchmarkRequest


class ZeroedRequest(TritonGPUBenchmarkRequest):
    """A benchmark request that zeroes as much memory as the kernel's scratch in each call."""

    def make_run_fn(self, *input_tensors: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """Return the call to measure."""
        run: Any = super().make_run_fn(*input_tensors, out=out)
        if not self.workspace_size:
            return run
        # Separate memory: the kernel resets its counters itself, and nothing else has to be zero.
        scratch = torch.empty(self.workspace_size, dtype=torch.uint8, device=out.device)

        def call() -> None:
            scratch.zero_()
            run()

        return call


@dataclass(frozen=True)
class View:
    """An operand as a view of one of the buffers of a request.

    Attributes:
        index: Index of the buffer.
        size: Extents of the operand.
        stride: Strides in elements.
        offset: Offset in elements.
    """

    index: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, buffers: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the operand."""
        return torch.as_strided(buffers[self.index], self.size, self.stride, self.offset)


class DeltaRequest(ZeroedRequest):
    """A benchmark request of an attention gradient: each call first computes delta = sum(out * do).

    If it wins, generated code computes delta before it; library kernels compute it internally.
    """

    delta_views: tuple[View, View, View]
    """Views of do, out and delta."""

    padded_rows: tuple[int, ...] = ()
    """Size of lse, where generated code slices it from an lse padded to a multiple of 32."""

    def make_run_fn(self, *input_tensors: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """Return the call to measure."""
        run = super().make_run_fn(*input_tensors, out=out)
        do, forward, delta = (view.of(input_tensors) for view in self.delta_views)
        if do.dim() == 3:
            do, forward = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (do, forward))
            delta = delta.unsqueeze(0)
        if out.device.type == "cpu":

            def write() -> None:
                delta.copy_((do.float() * forward.float()).sum(-1))
        else:
            kernel: Any = importlib.import_module("inductor_plugin.attention.delta")

            def write() -> None:
                kernel.write_delta(do, forward, delta)

        copy_rows = _row_copy(self.padded_rows, out.device)

        def call() -> None:
            write()
            copy_rows()
            run()

        return call


def _row_copy(size: tuple[int, ...], device: torch.device) -> Callable[[], object]:
    """Return a call that takes as long as slicing lse from a padded lse; it touches no operand."""
    if not size:
        return lambda: None
    padded = torch.zeros((*size[:-1], size[-1] + -size[-1] % 32), device=device)
    rows = torch.empty(size, device=device)
    return lambda: rows.copy_(padded[..., : size[-1]])
