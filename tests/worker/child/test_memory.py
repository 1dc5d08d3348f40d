"""Whose fault it is that a GPU's memory runs out, on a fake one, and giving it back."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    memory.mark_start()
    card.free, card.used, card.held = 0.5, 1.0, 1.5
    lack = memory.shortage(TEXT)
    assert lack is not None
    assert lack.reason == "others hold 78.0 GiB of the GPU's 80.0, 9.0 were free before"


def test_of_a_broken_gpu_nothing_is_known(card: FakeCard) -> None:
    card.broken = True
    memory.mark_start()
    lack = memory.shortage(TEXT)
    assert lack is not None
    assert lack.is_crowded
    assert lack.reason == "who holds the GPU's memory is not known"


@pytest.mark.usefixtures("card")
def test_the_machine_s_memory_is_another_matter() -> None:
    assert memory.shortage("DefaultCPUAllocator: can't allocate memory") is None


def test_without_a_gpu_there_is_none_to_run_out() -> None:
    memory.mark_start()
    assert memory.shortage(TEXT) is None


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
