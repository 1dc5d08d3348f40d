"""How a Triton kernel with scratch memory is measured: with the zeroing that comes before each call.

Inductor's own request zeroes the memory once, before the clock runs; generated code does so each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.autotune_process import TritonGPUBenchmarkRequest


class ZeroedRequest(TritonGPUBenchmarkRequest):
    """A benchmark request whose call begins with zeroing as much memory as the kernel's scratch."""

    def make_run_fn(self, *input_tensors: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """Return the call to measure."""
        run: Any = super().make_run_fn(*input_tensors, out=out)
        # Memory of its own: the kernel leaves its counters at zero, and nothing else has to be.
        scratch = torch.empty(self.workspace_size or 0, dtype=torch.uint8, device=out.device)

        def call() -> None:
            scratch.zero_()
            run()

        return call
