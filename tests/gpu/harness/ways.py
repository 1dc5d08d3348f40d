"""Tensors of the GPU cases, and the ways a call has to work besides the plain one."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.gpu.cases.product import Spec

Answer = Any


def drawn(specs: Sequence[Spec], device: str, seed: int) -> list[torch.Tensor]:
    """Return the tensors of a case, the same for the same seed."""
    return [_drawn(spec, device, 100 * seed + number) for number, spec in enumerate(specs)]


def _drawn(spec: Spec, device: str, seed: int) -> torch.Tensor:
    if spec.contents:
        return torch.tensor(spec.contents, dtype=spec.dtype, device=device)
    generator = torch.Generator(device=device).manual_seed(seed)
    contiguous = torch.empty(spec.size, device="meta").stride()
    stride = contiguous if spec.stride is None else spec.stride
    elements = 1 + sum((n - 1) * s for n, s in zip(spec.size, stride, strict=True))
    # Whole rows, as an allocation has them: padding after the last element is readable.
    padded = 16 * math.ceil(max([elements, *stride]) / 16) + 16 * max([0, *stride])
    values = _values(spec, padded, generator, device)
    return values.as_strided(spec.size, stride)


def _values(spec: Spec, count: int, generator: torch.Generator, device: str) -> torch.Tensor:
    if spec.values == "int4":
        return torch.randint(-(2**31), 2**31, (count,), generator=generator, device=device).to(
            spec.dtype
        )
    if spec.values == "small" or not spec.dtype.is_floating_point:
        return torch.randint(-8, 8, (count,), generator=generator, device=device).to(spec.dtype)
    numbers = torch.randn(count, generator=generator, device=device)
    return ((numbers.abs() + 0.5) if spec.values == "scale" else numbers).to(spec.dtype)


def load(own: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> None:
    """Put the values of one set of tensors into the memory of another, padding included."""
    for mine, theirs in zip(own, other, strict=True):
        target, source = (
            torch.empty(0, dtype=tensors.dtype, device=tensors.device).set_(
                tensors.untyped_storage()
            )
            for tensors in (mine, theirs)
        )
        target.copy_(source)


def on_a_stream(
    call: Callable[[], Answer], own: Sequence[torch.Tensor], other: Sequence[torch.Tensor]
) -> Answer:
    """Return what a call gives on a stream after slow work that brings its inputs.

    On another stream it would come too early.

    Args:
        call: Reads ``own``.
        own: Its inputs.
        other: Their values at last.
    """
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        cuda: Any = torch.cuda
        cuda._sleep(50_000_000)  # cycles, about 25 ms
        load(own, other)
        answer = call()
    stream.synchronize()
    return answer


def captured(bind: Callable[[], Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """Return a CUDA graph of a call.

    Args:
        bind: Returns the call; a Triton launcher remembers the stream it was bound on.
    """
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        bind()()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        bind()()
    return graph
