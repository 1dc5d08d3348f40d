"""Memory that torch allocates on the CPU while a function runs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object]) -> int:
    """Run a function, and return the most bytes that were allocated at once in addition to those before."""
    kept: list[object] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch 2.11, of cycles that are not there
        traced = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with traced:
            kept.append(call())
    recorded: Any = traced.profiler
    events = [e for e in recorded.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
