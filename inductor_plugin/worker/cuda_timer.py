"""The timer of a CUDA device: events around a call, behind work that evicts L2 and keeps the host ahead."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch

from inductor_plugin.device import BoundCall
from inductor_plugin.worker.nvml import Gpu, Reading
from inductor_plugin.worker.turn import taken_over_us

_FLUSH_BYTES = 256 << 20
"""Larger than any L2; zeroing it takes 65 microseconds on an H200, 35 on a B200."""
_LEAD_S = 0.002
"""Longest time for which the device is kept busy while the host launches; longer launches count as they are."""
_LEAD_FACTOR = 2.0
_LATE_TRIES = 2
"""Late launches of a call that are tried again: on a busy machine the worker may have waited for a core."""
_CYCLES_PER_S = 2e9
"""Of ``torch.cuda._sleep``; a slower clock only sleeps longer."""
_WARM_ROUND_S, _WARM_S = 0.01, 0.1
"""Seconds between two looks at the clock of a GPU that is getting warm, and in all."""
_WARM_CALLS = 16
_RISING = 1.01
_READ_S = 0.02
"""Seconds for which a reading of the GPU holds: it takes about a millisecond."""

_SETTLED_US, _RECENT_US = 250_000, 1_000_000
"""Utilization is that of a period of up to a quarter of a second before its time; what is older than a second is over."""


class CudaTimer:
    """Timer with CUDA events; zeroing a buffer larger than L2 evicts L2 and keeps the host ahead.

    Attributes:
        device: The device.
        disturbed: True if the device was slowed down during the last sample, or another process computed on it.
        host_ms: Milliseconds the host took to launch a call of the last sample: the shortest, since others only prolong it.
        host_bound: True if the device waited for the host in the last sample, in spite of `_LEAD_S`.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.disturbed = self.host_bound = False
        self.host_ms = 0.0
        self._buffer: torch.Tensor | None = None
        self._lead_s = 0.0
        self._gpu: Gpu | None = None
        self._prepared_us = self._now_us()
        self._reading, self._read_at = Reading(), 0.0

    def prepare(self) -> None:
        """Allocate the buffer that evicts L2; where the GPU is not locked, other processes count from now."""
        if self._buffer is None:
            self._buffer = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=self.device)
        self._lead_s, self._prepared_us = 0.0, self._now_us()

    def release(self) -> None:
        """Free it."""
        self._buffer = None

    def synchronize(self) -> None:
        """Wait until the device has finished; raises errors of earlier kernels."""
        torch.cuda.synchronize(self.device)

    def conditions(self) -> dict[str, object]:
        """Return clock, temperature, power and disturbances of the device as they are now."""
        return self._read(0.0).plain()

    def warm(self, call: BoundCall) -> None:
        """Call until the clock of the device rises no more: one that idles has 345 MHz instead of 1980 (H200).

        Where the clock is not known, for as long as between two looks at it.
        """
        with torch.cuda.device(self.device):
            ends, before = time.monotonic() + _WARM_S, 0.0
            while True:
                self._keep_busy(call)
                clock = self._nvml.sm_clock_mhz()
                if clock is None or clock <= _RISING * before or time.monotonic() >= ends:
                    return
                before = clock

    def sample(self, call: BoundCall, repeats: int, *, cold: bool) -> float:
        """Return milliseconds per call, over ``repeats`` calls."""
        self.host_bound, self.host_ms = False, math.inf
        with torch.cuda.device(self.device):
            spans = (
                [self._cold_span(call) for _ in range(repeats)]
                if cold
                else [self._span(call, repeats)]
            )
            self.synchronize()
        self.disturbed = bool(self._read(_READ_S).disturbance)
        each_ms = statistics.median(first.elapsed_time(last) for first, last in spans)
        return each_ms if cold else each_ms / repeats

    def _cold_span(self, call: BoundCall) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Return the events around a call behind a flush.

        Where the first event has happened when the call returns, the device has been idle in between: the call is
        repeated behind a longer lead, which later samples keep.
        """
        tries = 0
        while True:
            first, last = _events()
            if self._lead_s:
                cuda: Any = torch.cuda  # private, untyped
                cuda._sleep(int(self._lead_s * _CYCLES_PER_S))
            self._flush()
            first.record()
            started = time.perf_counter()
            call()
            host_s = time.perf_counter() - started
            self.host_ms = min(self.host_ms, 1e3 * host_s)
            late = first.query()
            last.record()
            if not late:
                return first, last
            tries += 1
            if tries > _LATE_TRIES and self._lead_s >= _LEAD_S:
                self.host_bound = True
                return first, last
            self._lead_s = min(_LEAD_S, _LEAD_FACTOR * max(host_s, self._lead_s))
            self.synchronize()

    def _span(self, call: BoundCall, repeats: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        first, last = _events()
        first.record()
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        self.host_ms = 1e3 * (time.perf_counter() - started) / repeats
        last.record()
        return first, last

    def _flush(self) -> None:
        if self._buffer is None:
            self.prepare()
        assert self._buffer is not None
        self._buffer.zero_()

    def _keep_busy(self, call: BoundCall) -> None:
        ends, calls = time.monotonic() + _WARM_ROUND_S, 1  # one may take a second
        while time.monotonic() < ends:
            for _ in range(calls):
                call()
            self.synchronize()
            calls = min(2 * calls, _WARM_CALLS)

    @property
    def _nvml(self) -> Gpu:
        if self._gpu is None:
            self._gpu = Gpu(uuid_of(str(self.device)))
        return self._gpu

    def _read(self, age_s: float) -> Reading:
        """Return a reading of the device that is no older than so many seconds."""
        now = time.monotonic()
        if now - self._read_at >= age_s:
            since_us = max(self._began_us() + _SETTLED_US, self._now_us() - _RECENT_US)
            self._reading, self._read_at = self._nvml.read(since_us), now
        return self._reading

    def _began_us(self) -> int:
        """Return from when other processes count: since this one has taken the GPU over from another, also without `prepare`."""
        taken_us = taken_over_us(uuid_of(str(self.device)))
        return self._prepared_us if taken_us is None else taken_us

    def _now_us(self) -> int:
        return int(time.time() * 1e6)


def uuid_of(device: str) -> str:
    """Return the UUID of a CUDA device, without ``GPU-``; empty if torch does not tell it."""
    cuda: Any = torch.cuda  # its properties are untyped
    try:
        return str(cuda.get_device_properties(device).uuid)
    except (AttributeError, AssertionError, RuntimeError):
        return ""


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
