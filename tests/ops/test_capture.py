"""What a call does on the host: nothing a CUDA graph forbids; a plain Python function is the kernel."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportPrivateUsage=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inductor_plugin.ops import gemm, launch
from inductor_plugin.ops.abi import KernelFunction
from inductor_plugin.ops.gemm_abi import GemmCall

NEEDED = 4096
STREAM = 1234
QUERY, RUN = 1, 2
"""Modes of a kernel's function: how much workspace, and run."""


class Seen(TorchDispatchMode):
    """Notes which operators of torch a call uses."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


class Device:
    """A device that is not there: notes when it is entered and what is started on which stream."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.inside: list[torch.device] = []

    @contextmanager
    def enter(self, device: torch.device) -> Generator[None]:
        self.inside.append(device)
        yield
        self.inside.pop()

    def stream(self) -> Any:
        assert self.inside, "the stream of another device"
        return type("Stream", (), {"cuda_stream": STREAM})

    def entry(self, mode: int, call: Any, size: Any, stream: Any) -> int:
        if mode == QUERY:
            size._obj.value = NEEDED
        if mode == RUN:
            _obj = call._obj
            place = (_obj.workspace, _obj.workspace_bytes)
            self.events.append((self.inside[-1], stream.value, place))
        return 0


def forbidden(*_: Any, **__: Any) -> None:
    raise AssertionError("a call waits for the device")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    with Seen():  # torch looks its own functions up once, before any is replaced
        torch.empty(0)
    device_ = Device()
    function = KernelFunction[GemmCall]("a library", "k", device_.entry)
    monkeypatch.setattr(launch, "find_kernel", lambda family, kernel: function)
    monkeypatch.setattr(launch, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "device", device_.enter)
    monkeypatch.setattr(torch.cuda, "current_stream", device_.stream)
    for owner, name in (
        (torch.cuda, "synchronize"),
        (torch.cuda.Stream, "synchronize"),
        (torch.cuda.Event, "synchronize"),
        (torch.cuda, "set_device"),
    ):
        monkeypatch.setattr(owner, name, forbidden)
    return device_


LAUNCH = ("k@0", "tt", 1, 0, 1)
A, B, C, OUT = torch.ones(4, 8), torch.ones(8, 5), torch.ones(5), torch.empty(4, 5)
X, Y = torch.ones(4, 1), torch.ones(1, 5)
EXPERTS, ENDS = torch.ones(2, 8, 5), torch.tensor([1, 4], dtype=torch.int32)

CALLS: dict[str, Callable[..., Any]] = {
    "mm": lambda **named: gemm.cutlass_mm(A, B, *LAUNCH, **named),
    "addmm": lambda **named: gemm.cutlass_addmm(C, A, B, *LAUNCH, "row", 1.0, 1.0, **named),
    "scaled": lambda **named: gemm.cutlass_scaled_mm(A, B, X, Y, *LAUNCH, **named),
    "scaled_bias": lambda **named: gemm.cutlass_scaled_addmm(A, B, X, Y, C, *LAUNCH, **named),
    "grouped": lambda **named: gemm.cutlass_grouped_mm(A, EXPERTS, ENDS, *LAUNCH, **named),
}


@pytest.mark.parametrize("op", CALLS)
def test_a_call_takes_memory_from_torch_and_does_nothing_else(op: str, device: Device) -> None:
    with Seen() as seen:
        CALLS[op](out=OUT)
    assert seen.ops == ["aten.empty.memory_format"]
    ((where, stream, (place, size)),) = device.events
    assert (where, stream, size) == (OUT.device, STREAM, NEEDED)
    assert place


@pytest.mark.parametrize("op", CALLS)
def test_with_a_workspace_nothing_is_allocated(op: str, device: Device) -> None:
    tensor = torch.empty(NEEDED, dtype=torch.uint8)
    with Seen() as seen:
        CALLS[op](workspace=tensor, out=OUT)
    assert seen.ops == []
    ((_, _, place),) = device.events
    assert place == (tensor.data_ptr(), NEEDED)


def test_the_device_is_left_as_it_was(device: Device) -> None:
    CALLS["mm"](out=OUT)
    assert device.inside == []
