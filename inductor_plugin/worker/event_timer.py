"""A timer for any device that torch has a `DeviceInterface` of: its events around a call, behind work that evicts its cache."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch

from inductor_plugin.device import BoundCall
from inductor_plugin.worker.interface import interface_of

FLUSH_BYTES = 256 << 20
"""Larger than the last-level cache of any device that is known here."""


class EventTimer:
    """Timer with the events of a device's interface; with the host's clock where the interface has none that take times.

    A device with more to say (its clock, whether others use it, work that hides a launch) derives a timer from it.

    Attributes:
        device: The device.
        disturbed: False: whether others use the device is not known.
        host_bound: False: whether the device waited for the host is not known.
        host_ms: Milliseconds the host took to launch a call of the last sample; 0 where its clock is the timer.
    """

    def __init__(self, device: str, flush_bytes: int = FLUSH_BYTES) -> None:
        """Measure on ``device``, after overwriting ``flush_bytes`` of its memory before each cold call; 0 overwrites nothing."""
        self.device = device
        self.disturbed = self.host_bound = False
        self.host_ms = 0.0
        self._flush_bytes = flush_bytes
        self._buffer: torch.Tensor | None = None
        self._interface: Any = interface_of(device)
        self._has_events = self._can_time()

    def conditions(self) -> dict[str, object]:
        """Return nothing: how the device is is not known."""
        return {}

    def warm(self, call: BoundCall) -> None:
        """Do nothing: its clock is not known."""

    def prepare(self) -> None:
        """Allocate the buffer that evicts the cache."""
        if self._buffer is None and self._flush_bytes:
            self._buffer = torch.empty(self._flush_bytes, dtype=torch.uint8, device=self.device)

    def release(self) -> None:
        """Free it."""
        self._buffer = None

    def synchronize(self) -> None:
        """Wait until the device has finished; raises errors of earlier kernels."""
        if self._interface is not None:
            self._interface.synchronize(self.device)

    def sample(self, call: BoundCall, repeats: int, *, cold: bool) -> float:
        """Return milliseconds per call: the mean of ``repeats`` calls, or the median of cold calls."""
        self.host_ms = math.inf if self._has_events else 0.0
        if not cold:
            return self._span(call, repeats) / repeats
        return statistics.median(self._cold_span(call) for _ in range(repeats))

    def _cold_span(self, call: BoundCall) -> float:
        self.prepare()
        if self._buffer is not None:
            self._buffer.zero_()
        return self._span(call, 1)

    def _span(self, call: BoundCall, repeats: int) -> float:
        """Return milliseconds that calls took."""
        if not self._has_events:
            self.synchronize()
            started = time.perf_counter()
            for _ in range(repeats):
                call()
            self.synchronize()
            return 1e3 * (time.perf_counter() - started)
        first, last = (self._interface.Event(enable_timing=True) for _ in range(2))
        first.record()
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        self.host_ms = min(self.host_ms, 1e3 * (time.perf_counter() - started) / repeats)
        last.record()
        self.synchronize()
        return float(first.elapsed_time(last))

    def _can_time(self) -> bool:
        """Return whether two events of the interface tell the time between them."""
        if self._interface is None:
            return False
        try:
            first, last = (self._interface.Event(enable_timing=True) for _ in range(2))
            first.record()
            last.record()
            self.synchronize()
            return math.isfinite(float(first.elapsed_time(last)))
        # torch's base class raises NotImplementedError, an interface without streams or times RuntimeError or TypeError.
        except (NotImplementedError, RuntimeError, TypeError, AttributeError):
            return False
