"""Devices as packages describe them, rightly and wrongly; importable by reference, as those of a package."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from inductor_plugin.device import DEVICES, Device
from tests.support.warned import forget

HERE = "tests.support.fakes.devices"


class Clock:
    """A timer that only counts what it is asked."""

    disturbed, host_bound, host_ms = False, False, 0.0

    def __init__(self, device: str) -> None:
        self.device = device
        self.asked: list[str] = []

    def conditions(self) -> dict[str, object]:
        return {"clock_mhz": 7}

    def warm(self, call: Callable[[], object]) -> None:
        self.asked.append("warm")

    def prepare(self) -> None:
        self.asked.append("prepare")

    def release(self) -> None:
        self.asked.append("release")

    def synchronize(self) -> None:
        self.asked.append("synchronize")

    def sample(self, call: Callable[[], object], repeats: int, *, cold: bool) -> float:
        call()
        return 1.0


def facts(device: str) -> dict[str, Any]:
    """Return what the fake has."""
    return {"name": "Fake NPU", "cores": 4}


NPU = Device(facts, lambda: {"npu_driver": "3"}, Clock, conditions=lambda _: {"watts": 5})


def from_function() -> Device:
    """Return the device: an entry point may name a function."""
    return NPU


def broken() -> Device:
    """Raise, as the import of a package without its driver does."""
    raise OSError("libnpu.so: cannot open shared object file")


NO_DEVICE = {"facts": facts}


@contextmanager
def described(device: Device = NPU, name: str = "npu", **fields: Any) -> Generator[Device]:
    """Register a device in this process, inside the block."""
    chosen = replace(device, **fields)
    globals()["_CHOSEN"] = chosen
    forget()
    DEVICES.register(name, f"{HERE}:_CHOSEN")
    try:
        yield chosen
    finally:
        DEVICES.unregister(name)
