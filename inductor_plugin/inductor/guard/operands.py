"""Real inputs for a graph that is compiled with fake ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SMALL = 0.1
"""Standard deviation of random values: products of thousands of them stay finite in half precision."""


def real_inputs(examples: Sequence[Any]) -> list[Any] | None:
    """Return inputs of the same sizes, strides, types and devices; None where values cannot be made up.

    Those are integers in a tensor, which may be indices or divisors: a compiled graph aborts the process for a wrong one.

    Args:
        examples: The graph's example inputs, fake or real; symbolic sizes have hints.
    """
    inputs: list[Any] = []
    for example in examples:
        if isinstance(example, Tensor):
            if not (example.is_floating_point() or example.dtype == torch.bool):
                return None
            inputs.append(_like(example))
        elif isinstance(example, bool | int | float):
            inputs.append(example)
        elif isinstance(example, torch.SymInt):
            inputs.append(_hint(example))
        else:
            return None
    return inputs


def _like(example: Tensor) -> Tensor:
    size = [_hint(extent) for extent in example.size()]
    stride = [_hint(step) for step in example.stride()]
    reach = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    count = 0 if 0 in size else reach + 1  # elements of an expanded tensor share memory
    memory = torch.zeros(count, dtype=example.dtype, device=example.device)
    if memory.is_floating_point() and memory.element_size() > 1:
        memory.normal_(std=_SMALL)
    return memory.as_strided(size, stride)


def _hint(extent: Any) -> int:
    return extent if isinstance(extent, int) else int(extent.node.hint)
