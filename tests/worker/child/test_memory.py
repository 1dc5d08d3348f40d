"""Whose fault it is that a device's memory runs out, on a fake one, and giving it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.worker.child import memory
from inductor_plugin.worker.child.memory import Shortage, wanted_bytes

GIB = 1 << 30
TEXT = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 80.00 GiB"


@dataclass
class FakeCard:
    """A GPU of 80 GiB; what is free, and what this process holds, in GiB.

    Attributes:
        calls: What was given back, in order.
    """

    free: float = 80.0
    used: float = 0.0
    held: float = 0.0
    broken: bool = False
    calls: list[str] = field(default_factory=list[str])

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def mem_get_info() -> tuple[int, int]:
            if self.broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return int(self.free * GIB), 80 * GIB

        cuda = torch.cuda
        monkeypatch.setattr(cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(cuda, "mem_get_info", mem_get_info)
        monkeypatch.setattr(cuda, "memory_allocated", lambda: int(self.used * GIB))
        monkeypatch.setattr(cuda, "memory_reserved", lambda: int(self.held * GIB))
        monkeypatch.setattr(
            torch._C,  # pyright: ignore[reportPrivateUsage]
            "_cuda_clearCublasWorkspaces",
            lambda: self.calls.append("workspaces"),
            raising=False,
        )
        monkeypatch.setattr(cuda, "empty_cache", lambda: self.calls.append("cache"))
        monkeypatch.setattr(memory.gc, "collect", lambda: self.calls.append("garbage"))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> FakeCard:
    fake = FakeCard()
    fake.install(monkeypatch)
    return fake


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (TEXT, 5 * GIB // 2),
        ("Tried to allocate 20.00 MiB.", 20 << 20),
        ("Tried to allocate 512 bytes", 512),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", 0),
    ],
)
def test_an_error_says_what_could_not_be_allocated(text: str, count: int) -> None:
    assert wanted_bytes(text) == count


@pytest.mark.parametrize(
    ("used", "wanted", "crowded"), [(1.0, 2.0, True), (70.0, 7.0, True), (70.0, 9.0, False)]
)
def test_memory_that_would_have_sufficed_for_the_job_alone_is_others(
    used: float, wanted: float, crowded: bool
) -> None:
    lack = Shortage(80 * GIB, 9 * GIB, GIB, int(used * GIB), int(used * GIB), int(wanted * GIB))
    assert lack.is_crowded is crowded
    assert ("others hold" in lack.reason) is crowded


def test_what_others_hold_is_said(card: FakeCard) -> None:
    card.free = 9.0
    memory.mark_start("cuda:0")
    card.free, card.used, card.held = 0.5, 1.0, 1.5
    lack = memory.shortage(TEXT)
    assert lack is not None
    assert lack.reason == "others hold 78.0 GiB of the device's 80.0, 9.0 were free before"


def test_of_a_broken_gpu_nothing_is_known(card: FakeCard) -> None:
    card.broken = True
    memory.mark_start("cuda:0")
    lack = memory.shortage(TEXT)
    assert lack is not None
    assert lack.is_crowded
    assert lack.reason == "who holds the device's memory is not known"


@pytest.mark.usefixtures("card")
def test_the_machine_s_memory_is_another_matter() -> None:
    memory.mark_start("cuda:0")
    assert memory.shortage("RuntimeError: DefaultCPUAllocator: can't allocate memory") is None
    assert memory.shortage("MemoryError: std::bad_alloc") is None
    memory.mark_start("cpu")
    assert memory.shortage(TEXT) is None


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "npu:0"])
def test_without_a_gpu_there_is_none_to_run_out(device: str) -> None:
    memory.mark_start(device)
    assert memory.shortage(TEXT) is None


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "HIP out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: HIP error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "OutOfMemoryError: no room",
    ],
)
def test_a_gpu_s_memory_is_meant_whoever_says_so(card: FakeCard, text: str) -> None:
    memory.mark_start("cuda:0")
    card.free = 0.5
    lack = memory.shortage(text)
    assert lack is not None
    assert lack.is_crowded


NPU_TEXT = "OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 32.00 GiB)"


def npu(monkeypatch: pytest.MonkeyPatch, free: list[float], **functions: Callable[[], Any]) -> None:
    """Give torch a module of another device of 32 GiB.

    Args:
        monkeypatch: Takes it away again.
        free: What is free there in GiB at each question, in order; it raises where there is no more.
        functions: What the module has besides.
    """

    def mem_get_info() -> tuple[int, int]:
        return int(free.pop(0) * GIB), 32 * GIB

    module = SimpleNamespace(mem_get_info=mem_get_info, **functions)
    monkeypatch.setattr(torch, "npu", module, raising=False)
    memory.mark_start("npu:0")


@pytest.mark.parametrize(
    ("used", "crowded", "reason"),
    [
        (1.0, True, "others hold 29.5 GiB of the device's 32.0, 4.0 were free before"),
        (29.0, False, "it needs 31.0 GiB of the device's 32.0"),
    ],
)
def test_another_package_s_device_says_who_holds_its_memory(
    monkeypatch: pytest.MonkeyPatch, used: float, crowded: bool, reason: str
) -> None:
    """It was the candidate's fault, and the second time quarantine, although another process held the memory."""
    held: Any = {"memory_allocated": lambda: used * GIB, "memory_reserved": lambda: 2 * GIB}
    npu(monkeypatch, [4.0, 0.5], is_initialized=lambda: True, **held)
    lack = memory.shortage(NPU_TEXT)
    assert lack is not None
    assert (lack.is_crowded, lack.reason) == (crowded, reason)


@pytest.mark.parametrize(("before", "crowded"), [(4.0, True), (31.0, False)])
def test_without_an_account_of_the_allocator_what_went_is_the_job_s(
    monkeypatch: pytest.MonkeyPatch, before: float, crowded: bool
) -> None:
    npu(monkeypatch, [before, 0.5])
    lack = memory.shortage(NPU_TEXT)
    assert lack is not None
    assert lack.is_crowded is crowded
    assert lack.used_bytes == lack.held_bytes == int((before - 0.5) * GIB)


def test_a_device_that_never_says_what_is_free_leaves_it_at_the_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    npu(monkeypatch, [])
    assert memory.shortage(NPU_TEXT) is None
    npu(monkeypatch, [4.0], is_initialized=lambda: False)  # this process does not use it
    assert memory.shortage(NPU_TEXT) is None
    monkeypatch.setattr(torch, "npu", SimpleNamespace(), raising=False)
    memory.mark_start("npu:0")
    assert memory.shortage(NPU_TEXT) is None


def test_of_a_device_that_says_it_no_more_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    npu(monkeypatch, [4.0])
    lack = memory.shortage(NPU_TEXT)
    assert lack is not None
    assert lack.is_crowded
    assert lack.reason == "who holds the device's memory is not known"


@pytest.mark.parametrize(("used", "calls"), [(0.0, ["cache"]), (1.0, ["garbage", "cache"])])
def test_memory_is_given_back_after_it_was_dropped(
    card: FakeCard, used: float, calls: list[str]
) -> None:
    card.used = used
    memory.give_back(lambda: card.calls.append("dropped"))
    assert card.calls == ["dropped", "workspaces", *calls]


def test_other_devices_than_gpus_of_cuda_give_memory_back_too(
    card: FakeCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.interface, "give_back", card.calls.append)
    memory.give_back(lambda: card.calls.append("dropped"), lambda: ["npu"])
    assert card.calls[:2] == ["dropped", "npu"]
