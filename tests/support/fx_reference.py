"""An FX graph with one matrix product, run on CPU tensors with a product that is given."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

_HALF = (torch.bfloat16, torch.float16)


class _Given(torch.fx.Interpreter):
    """Takes ``aten.mm`` as computed, and the GPU for the CPU.

    With ``whole`` nothing is rounded to 16 bits on the way, as no loop of Inductor's does.
    """

    def __init__(self, graph: torch.fx.GraphModule, product: torch.Tensor, *, whole: bool) -> None:
        super().__init__(graph)
        self._product = product
        self._whole = whole

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.mm.default:
            return self._product
        named = {**kwargs}
        if "device" in named:
            named["device"] = torch.device("cpu")
        if self._whole and named.get("dtype") in _HALF:
            named["dtype"] = torch.float32
        converts = "convert_element_type" in str(target)
        if self._whole and converts and args[1] in _HALF:
            return args[0].float()
        return super().call_function(target, args, named)


def computed(
    graph: torch.fx.GraphModule,
    product: torch.Tensor,
    operands: Sequence[torch.Tensor],
    dtypes: Sequence[torch.dtype],
    *,
    whole: bool,
) -> list[torch.Tensor]:
    """Return what a graph gives, as the dtypes it writes.

    Args:
        graph: Takes two factors and operands.
        product: What the factors' product is taken for; float32 with ``whole``.
        operands: The others.
        dtypes: Of the outputs.
        whole: Whether 16-bit floats are computed with in float32 throughout.
    """
    factor = torch.empty(0)
    given = [one.float() if whole and one.dtype in _HALF else one for one in operands]
    with torch.no_grad():
        outputs: Any = _Given(graph, product, whole=whole).run(factor, factor, *given)
    return [one.to(dtype) for one, dtype in zip(outputs, dtypes, strict=True)]
