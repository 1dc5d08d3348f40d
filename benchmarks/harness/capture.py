"""CUDA graphs of what an arm measures, so that no host code is measured.

Autograd runs a node of the backward pass on the stream that its forward ran on, and the legacy stream may not
take part in a capture. So a forward, its warm-up and the capture of its backward are on one stream.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch

WARM_UP = 3
"""Calls before the capture: libraries allocate their workspaces in the first ones."""

_FATAL = ("CUDA error", "captur", "device-side assert", "unspecified launch failure")


@contextmanager
def capture_stream(device: str) -> Generator[Any]:
    """Make a new stream the current one within the block, and yield it; yield None on a CPU.

    It begins after what was on the current stream, and the current stream goes on after it.
    """
    if not device.startswith("cuda"):
        yield None
        return
    before, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield stream
    before.wait_stream(stream)


def graphed(call: Callable[[], object], stream: Any) -> tuple[Callable[[], object], bool]:
    """Return the call as a CUDA graph, and whether it is one: on a CPU the call itself is returned.

    Args:
        call: What is measured.
        stream: That of the enclosing `capture_stream`, on which the tensors of ``call`` were computed.
    """
    if stream is None:
        return call, False
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay, True


def is_fatal(error: BaseException) -> bool:
    """Return whether a process should not go on after an error: its device or its capture may be broken."""
    return any(word in str(error) for word in _FATAL)
