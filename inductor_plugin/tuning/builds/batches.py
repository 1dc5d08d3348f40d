"""How many kernels are compiled together in one translation unit. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

MAX_BATCH = 8
"""Kernels in one translation unit: each costs about 1 s after 0.6 s of headers (g++ 12, AVX-512),
so a larger unit saves little and delays its first kernel."""
MAX_ALIKE = 32
"""Kernels in one translation unit that begin with the same text (`kernels.unit.head`)."""
_FURTHER = 0.08
"""Cost of each further kernel with the same beginning, in that of the first: 0.08 s and 1.05 s."""

_TRITON = 0.6
"""Cost of a Triton kernel, in quarters of a CUDA kernel's: 1.6 s, and 10.6 s for a whole one (`benchmarks/fleet/times.py`)."""
_BUSY = 1.5

_T = TypeVar("_T")


def cuda_batch(count: int, workers: int, others: int) -> int:
    """Return how many CUDA kernels are compiled in one translation unit.

    Each further kernel costs a quarter of the first (31 CPU-s alone, 59 s for 8), and all of a unit are as late as its last.
    So the largest unit is chosen with which all kernels finish in the shortest time; or within one and a half times that,
    where the workers have enough other kernels to compile with what is saved. Workers that are idle gain nothing by it.

    Args:
        count: The CUDA kernels.
        workers: Compile workers.
        others: Other builds in progress or queued; Triton kernels, for the most part.
    """

    def span(size: int) -> float:
        return -(-count // (size * workers)) * (3 + size)

    sizes = range(1, min(count, MAX_BATCH) + 1)
    shortest = min(map(span, sizes), default=0)
    limit = shortest * (_BUSY if _TRITON * others >= workers * shortest else 1.0)
    return max((size for size in sizes if span(size) <= limit), default=1)


def spread(items: Sequence[_T], workers: int, head: Callable[[_T], str]) -> list[list[_T]]:
    """Return the kernels in units of about equal cost: as few as keep every worker busy.

    Args:
        items: The kernels.
        workers: Compile workers.
        head: The text that a kernel begins with; kernels with the same text are in the same unit. Empty for a kernel
            that shares none.
    """
    chunks = sorted(_alike(items, workers, head), key=len, reverse=True)
    costs = [1 + _FURTHER * (len(chunk) - 1) for chunk in chunks]
    fewest = max(math.ceil(sum(costs) / MAX_BATCH), math.ceil(len(items) / MAX_ALIKE))
    count = max(min(workers, len(chunks)), fewest)
    units: list[list[_T]] = [[] for _ in range(count)]
    totals = [0.0] * count
    for chunk, cost in zip(chunks, costs, strict=True):
        least = totals.index(min(totals))
        units[least].extend(chunk)
        totals[least] += cost
    return units


def _alike(items: Sequence[_T], workers: int, head: Callable[[_T], str]) -> list[list[_T]]:
    """Return the kernels by what they begin with, the parts no larger than keeps every worker busy."""
    by_head: dict[str, list[_T]] = {}
    chunks: list[list[_T]] = []
    for item in items:
        text = head(item)
        if text:
            by_head.setdefault(text, []).append(item)
        else:
            chunks.append([item])
    for group in by_head.values():
        size = min(MAX_ALIKE, max(MAX_BATCH, -(-len(group) // workers)))
        chunks.extend(group[start : start + size] for start in range(0, len(group), size))
    return chunks
