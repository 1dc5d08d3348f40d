"""Epilogues that Inductor generates from functions of a product, lowered for a simulated GPU."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._guards import TracingContext, tracing
from torch._inductor import ir
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from inductor_plugin.inductor.fusion.epilogue import base_of, epilogue_of_bodies
from inductor_plugin.problem.epilogue import Epilogue
from tests.support import gpu

OUTPUTS = "output_names"
"""Key of the names of a graph's outputs in its ``meta``: loops write them in another order."""


@dataclass(frozen=True)
class Shape:
    """One tensor of a graph; ``stride`` where it is not contiguous."""

    size: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...] = ()

    def on(self, device: str) -> torch.Tensor:
        """Return a tensor without values."""
        if self.stride:
            return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)
        return torch.empty(self.size, dtype=self.dtype, device=device)


def lowered(
    function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[Shape], readers: int = 0
) -> tuple[Epilogue, torch.fx.GraphModule]:
    """Return the epilogue of the only product of a function, and the FX graph it is from.

    Args:
        function: Takes two factors and operands, and returns tensors; has one matrix product.
        inputs: Its arguments.
        readers: How many readers the product has besides the function's loops.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with gpu.installed(), mode:
        tensors = [argument.on("cuda:0") for argument in inputs]
        graph = make_fx(function, decomposition_table=select_decomp_table())(*tensors)
        untyped: Any = GraphLowering(graph, shape_env=mode.shape_env)
        with tracing(TracingContext(mode)), V.set_graph_handler(untyped), V.set_fake_mode(mode):
            untyped.run(*tensors)
            loops = [buffer for buffer in untyped.buffers if isinstance(buffer, ir.ComputedBuffer)]
            (product,) = [
                buffer for buffer in untyped.buffers if isinstance(buffer, ir.ExternKernelOut)
            ]
            bodies = [loop.get_default_sizes_body()[1] for loop in loops]
            outputs = list(untyped.get_output_names())
            epilogue = epilogue_of_bodies(
                base_of(product), bodies, lambda name: name in outputs, readers
            )
    graph.meta[OUTPUTS] = outputs
    return epilogue, graph
