"""A GPU as NVIDIA's management library sees it: clocks, temperature, slowdowns, and other processes that use it.

The library comes with the driver, its interface with the package ``nvidia-ml-py`` (extra ``nvml``). Without either, and
for what a GPU does not report (a MIG slice), nothing is known. Source: NVML API Reference Guide,
https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

_SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of ``nvmlClocksEventReasons``. The power cap (0x04) is not among them: a large product runs at it all the time."""


@dataclass(frozen=True)
class Reading:
    """A GPU at one moment. What is not known is None.

    Attributes:
        sm_clock_mhz: Clock of its multiprocessors, in MHz.
        temperature_c: Temperature in degrees Celsius.
        power_w: Power in watts.
        slowdowns: What slows it down, besides the power cap.
        others: Numbers of other processes that compute on it.
        busy: How many processes compute on it, this one among them, where their numbers are not those of this container.
    """

    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    slowdowns: tuple[str, ...] | None = None
    others: tuple[int, ...] | None = None
    busy: int | None = None

    @property
    def disturbance(self) -> str:
        """Why kernels take longer now than they would alone, empty if they do not, as far as it is known. Pure."""
        if self.slowdowns:
            return f"it is slowed down ({', '.join(self.slowdowns)})"
        if self.others:
            return f"process {self.others[0]} computes on it, too"
        if self.busy is not None and self.busy > 1:
            return f"{self.busy} processes compute on it"
        return ""

    def plain(self) -> dict[str, object]:
        """Return what is known, for a record's provenance."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("slowdowns", "others"):
            values[name] = list(values[name] or ())
        return {name: value for name, value in values.items() if value not in (None, [])}


class Gpu:
    """One GPU."""

    def __init__(self, uuid: str) -> None:
        """Find it.

        Args:
            uuid: Its UUID, as torch writes it, without ``GPU-``; empty if it is not known.
        """
        self._library = _library() if uuid else None
        self._handle: Any = None
        if self._library is not None:
            find = self._library.nvmlDeviceGetHandleByUUID
            self._handle = _asked(self._library, lambda: find(f"GPU-{uuid}".encode()))

    def read(self, since_us: int) -> Reading:
        """Return how it is now.

        Args:
            since_us: Microseconds since 1970 from which on other processes count.
        """
        if self._handle is None:
            return Reading()
        power_mw = self._ask("nvmlDeviceGetPowerUsage")
        bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        others, busy = self._processes(since_us)
        return Reading(
            sm_clock_mhz=self.sm_clock_mhz(),
            temperature_c=self._ask("nvmlDeviceGetTemperature", 0),  # NVML_TEMPERATURE_GPU
            power_w=None if power_mw is None else power_mw / 1000,
            slowdowns=None
            if bits is None
            else tuple(what for bit, what in _SLOWDOWNS.items() if bits & bit),
            others=others,
            busy=busy,
        )

    def sm_clock_mhz(self) -> int | None:
        """Return the clock of its multiprocessors; None if it is not known."""
        return self._ask("nvmlDeviceGetClockInfo", 1)  # NVML_CLOCK_SM

    def _processes(self, since_us: int) -> tuple[tuple[int, ...] | None, int | None]:
        """Return the other processes that have computed, or how many have, where this one's number is not known.

        In a container the numbers are those of the host, or none are listed: then this process is one of those that have.
        """
        running = self._ask("nvmlDeviceGetComputeRunningProcesses")
        own = os.getpid()
        # No utilization at all is an error, too.
        samples = self._ask("nvmlDeviceGetProcessUtilization", since_us) or ()
        busy = {each.pid for each in samples if each.smUtil and each.timeStamp >= since_us}
        if running is not None and own in {process.pid for process in running}:
            return tuple(sorted(busy - {own})), None
        return None, len(busy) or None

    def _ask(self, name: str, *arguments: object) -> Any:
        library, handle = self._library, self._handle
        if handle is None:
            return None
        return _asked(library, lambda: getattr(library, name)(handle, *arguments))


def _asked(library: Any, ask: Callable[[], Any]) -> Any:
    """Return an answer of the library; None where it has none."""
    try:
        return ask()
    except (AttributeError, library.NVMLError):  # an older library lacks a function
        return None


@functools.cache
def _library() -> Any:
    """Return the library's interface, ready for use; None where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an older package of the same name warns of itself
        try:
            library: Any = importlib.import_module("pynvml")
        except ImportError:
            return None
    return _asked(library, lambda: (library.nvmlInit(), library)[1])
