"""How many kernels are compiled together in one translation unit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

MAX_BATCH = 8
"""Kernels in one translation unit: each costs about 1 s after 1.8 s of headers (g++ 12, AVX-512),
so a larger unit saves little and delays its first kernel."""

_T = TypeVar("_T")


def cuda_batch(count: int, workers: int) -> int:
    """Return how many of ``count`` CUDA kernels are compiled in one translation unit.

    Each further kernel costs a quarter of the first (31 CPU-s alone, 59 s for 8). The largest unit is
    chosen with which all kernels finish within one and a half times the shortest time: the same cores
    compile Triton kernels meanwhile.
    """

    def span(size: int) -> float:
        return -(-count // (size * workers)) * (3 + size)

    sizes = range(1, min(count, MAX_BATCH) + 1)
    shortest = min(map(span, sizes), default=0)
    return max((size for size in sizes if span(size) <= 1.5 * shortest), default=1)


def spread(items: Sequence[_T], workers: int) -> list[list[_T]]:
    """Return the items in batches of about equal size: as few as keep every worker busy."""
    count = max(min(workers, len(items)), -(-len(items) // MAX_BATCH))
    return [list(items[start::count]) for start in range(count)] if items else []
