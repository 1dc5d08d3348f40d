"""How samples are taken in tests of timers."""

from __future__ import annotations

from inductor_plugin.worker.jobs import Sampling


def sampling(**changes: float) -> Sampling:
    values = {"warmup": 2, "samples": 4, "min_sample_ms": 1.0, "max_total_s": 10.0}
    return Sampling(**(values | {"cold_cache": False} | changes))  # pyright: ignore[reportArgumentType]
