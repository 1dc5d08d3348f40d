from __future__ import annotations

import ctypes
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from inductor_plugin.worker import occupancy

ENOUGH = occupancy.CONTEXT_BYTES


class Driver:
    """A CUDA driver that knows the compute mode of each device."""

    def __init__(self, modes: dict[int, int]) -> None:
        self._modes = modes

    def cuDeviceGet(self, handle: Any, index: int) -> int:  # noqa: N802  CUDA's name
        handle._obj.value = 70 + index
        return 0 if index in self._modes else 101

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: Any) -> int:  # noqa: N802
        assert attribute == 20
        value._obj.value = self._modes[handle.value - 70]
        return 0


def put(
    monkeypatch: pytest.MonkeyPatch, modes: dict[int, int], free: int, *, used: bool = True
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "mem_get_info", Mock(return_value=(free, 141 << 30)))
    monkeypatch.setattr(ctypes, "CDLL", Mock(return_value=Driver(modes)))


@pytest.mark.parametrize(
    ("modes", "free", "reason"),
    [
        ({0: 0, 1: 0}, ENOUGH, ""),
        ({0: 3, 1: 0}, ENOUGH, ""),
        ({0: 0, 1: 3}, ENOUGH, "its compute mode is exclusive"),
        ({0: 0, 1: 2}, ENOUGH, "its compute mode is prohibited"),
        ({0: 0, 1: 0}, 300 << 20, "only 300 MiB of it are free"),
        ({0: 0}, ENOUGH, ""),  # the driver does not know it
    ],
    ids=["free", "another is exclusive", "exclusive", "prohibited", "full", "unknown"],
)
def test_a_gpu_that_a_second_process_may_not_get_is_named(
    monkeypatch: pytest.MonkeyPatch, modes: dict[int, int], free: int, reason: str
) -> None:
    put(monkeypatch, modes, free)
    assert occupancy.why_scarce("cuda:1") == reason


def test_a_gpu_that_this_process_does_not_use_yet_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(monkeypatch, {0: 3}, 0, used=False)
    assert occupancy.why_scarce("cuda:0") == ""
    put(monkeypatch, {0: 3}, 0)
    assert occupancy.why_scarce("cpu") == ""


def test_without_a_driver_the_mode_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, {}, ENOUGH)
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=OSError))
    assert occupancy.why_scarce("cuda:0") == ""
