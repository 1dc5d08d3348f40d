"""How a Triton kernel is measured that needs something before each call: zeroed scratch memory, or delta.

Inductor's own request zeroes the memory once, before the clock runs; generated code does so each time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import select_algorithm
from torch._inductor.autotune_process import TritonGPUBenchmarkRequest

from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.facts import compat
from inductor_plugin.problem.attention import attention_of


class ZeroedRequest(TritonGPUBenchmarkRequest):
    """A benchmark request whose call begins with zeroing as much memory as the kernel's scratch."""

    def make_run_fn(self, *input_tensors: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """Return the call to measure."""
        run: Any = super().make_run_fn(*input_tensors, out=out)
        if not self.workspace_size:
            return run
        # Memory of its own: the kernel leaves its counters at zero, and nothing else has to be.
        scratch = torch.empty(self.workspace_size, dtype=torch.uint8, device=out.device)

        def call() -> None:
            scratch.zero_()
            run()

        return call


@dataclass(frozen=True)
class View:
    """Where an operand lies in the buffers of a request.

    Attributes:
        index: Which buffer.
        size: Its extents.
        stride: Its strides in elements.
        offset: Where it begins.
    """

    index: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, buffers: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the operand."""
        return torch.as_strided(buffers[self.index], self.size, self.stride, self.offset)


class DeltaRequest(ZeroedRequest):
    """A benchmark request of an attention's gradient: its call begins with delta = sum(out * do).

    Where it wins, generated code computes delta before it; the library's kernels do so inside.
    """

    delta_views: tuple[View, View, View]
    """Where do, out and delta lie."""

    padded_rows: tuple[int, ...] = ()
    """Size of lse, where generated code takes it out of one that is padded to a multiple of 32."""

    def make_run_fn(self, *input_tensors: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """Return the call to measure."""
        run = super().make_run_fn(*input_tensors, out=out)
        do, forward, delta = (one.of(input_tensors) for one in self.delta_views)
        if do.dim() == 3:
            do, forward = (one.transpose(0, 1).unsqueeze(0) for one in (do, forward))
            delta = delta.unsqueeze(0)
        if out.device.type == "cpu":

            def write() -> None:
                delta.copy_((do.float() * forward.float()).sum(-1))
        else:
            kernel: Any = importlib.import_module("inductor_plugin.attention.delta")

            def write() -> None:
                kernel.write_delta(do, forward, delta)

        cut = _cut(self.padded_rows, out.device)

        def call() -> None:
            write()
            cut()
            run()

        return call


def _cut(size: tuple[int, ...], device: torch.device) -> Callable[[], object]:
    """Return what takes as long as taking lse of a size out of a padded one; it touches no operand."""
    if not size:
        return lambda: None
    padded = torch.zeros((*size[:-1], size[-1] + -size[-1] % 32), device=device)
    rows = torch.empty(size, device=device)
    return lambda: rows.copy_(padded[..., : size[-1]])


def measured_with_delta(choice: Any, call: AutotuneCall) -> Any:
    """Return a choice for a gradient; if it is Inductor's Triton choice, its benchmark computes delta."""
    triton: Any = select_algorithm.TritonTemplateCaller
    attention, nodes = attention_of(call.problem), call.nodes
    places = [attention.index(name) for name in ("do", "out", "delta")]
    if not isinstance(choice, triton) or None in places:
        return choice
    # A kernel takes each buffer once, however many of its operands are views of it.
    buffers = list(dict.fromkeys(node.get_name() for node in nodes))
    request: Any = choice.bmreq
    request.__class__ = DeltaRequest
    request.delta_views = tuple(_view(nodes[i], buffers) for i in places if i is not None)
    lse = attention.index("lse")
    if lse is not None and dict(call.problem.arguments).get("form") == repr("padded"):
        request.padded_rows = compat.hints(nodes[lse].get_size())
    return choice


def _view(node: Any, buffers: Sequence[str]) -> View:
    return View(
        index=buffers.index(node.get_name()),
        size=compat.hints(node.get_size()),
        stride=compat.hints(compat.strides(node)),
        offset=compat.hints([node.get_layout().offset])[0],
    )
