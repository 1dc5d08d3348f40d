"""Time of an epilogue as a separate kernel, and extra time of a product fused with it. Pure.

Times are memory rooflines: an epilogue computes little for each byte it moves. The constants are
typical of such kernels; they were not measured for this project, and `SLACK` allows for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.cost.liveness import LIBRARY, SPECIAL
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.cost.tile import ceil_div
from inductor_plugin.problem.epilogue import Access, Epilogue
from inductor_plugin.problem.target import Target

LAUNCH_US = 2.5
"""From one kernel's end to the next one's first bytes, inside a CUDA graph or a full queue."""
HOST_LAUNCH_US = 10.0
"""Longest that the host takes to allocate an output and launch a kernel, without a CUDA graph: where it is what a model
waits for, an epilogue of its own costs that much."""
EFFICIENCY = 0.8
"""Share of the memory's peak that a pointwise kernel gets."""
L2_SHARE = 0.6
"""Share of the L2 cache in which a product is still present when the next kernel reads it."""
L2_SPEED = 2.5
"""How many times faster than device memory the L2 cache is."""
SECTOR_BYTES = 32
"""Smallest memory transaction, however little of it is used."""
SLACK = 1.6
"""A time of this model is assumed to be wrong by less than this factor, in either direction."""

CYCLES: dict[str, int] = {**dict.fromkeys(SPECIAL, 8), **dict.fromkeys(LIBRARY, 24)}
"""Cost of an operation relative to an addition; the special function unit does 16 operations a cycle."""


@dataclass(frozen=True)
class Span:
    """A time in microseconds: the expected value and its bounds."""

    expected: float
    low: float
    high: float


def separate_us(epilogue: Epilogue, target: Target, *, host_counts: bool = False) -> Span:
    """Return the time of the epilogue as a separate kernel, its launch included.

    Args:
        epilogue: The epilogue.
        target: The GPU.
        host_counts: Whether the host launches the kernel, instead of a CUDA graph.

    A product is read back from the L2 cache where it fits. A prologue's operand is written here, and
    read by the product in any case.
    """
    others = _moved(epilogue.reads) + _moved(epilogue.writes)
    product = 0 if epilogue.position == "prologue" else epilogue.product_bytes
    cached = epilogue.product_bytes <= L2_SHARE * target.l2_bytes
    expected = LAUNCH_US + _us(others + product / (L2_SPEED if cached else 1.0), target)
    low = LAUNCH_US + _us((others + product) / L2_SPEED, target)
    high = LAUNCH_US + _us(others + product, target)
    longest = max(high * SLACK, HOST_LAUNCH_US) if host_counts else high * SLACK
    return Span(expected, low / SLACK, longest)


def fused_extra_us(epilogue: Epilogue, target: Target) -> Span:
    """Return how much longer the product takes with the epilogue, occupancy and spills aside.

    Negative where fewer bytes are moved: with a narrower output, or a prologue that widens its operand.
    """
    own = epilogue.product_bytes
    if epilogue.position == "prologue":
        saved = _moved(epilogue.reads) - own
        expected = _us(saved + (own if epilogue.readers else 0), target)
    else:
        saved = _moved(epilogue.writes) - (0 if epilogue.readers else own)
        expected = _us(saved + _moved(epilogue.reads), target)
    low = min(0.0, _us(saved, target) * SLACK)
    return Span(expected, low, max(0.0, expected) * SLACK)


def _us(moved: float, target: Target) -> float:
    return moved / (target.memory_bandwidth * EFFICIENCY) * 1e6


def _moved(accesses: tuple[Access, ...]) -> float:
    """Return the bytes that memory moves; each element of a gathered tensor costs a whole sector."""
    return sum(
        access.elements * SECTOR_BYTES if access.pattern == "other" else access.bytes
        for access in accesses
    )


def repeats(kernel: Kernel, epilogue: Epilogue) -> int:
    """Return how many tiles read, and so recompute, each element of a prologue's operand.

    Args:
        kernel: The product; without its `Kernel.shape` nothing is repeated.
        epilogue: The prologue.
    """
    if not kernel.shape:
        return 1
    m, n, k = kernel.shape
    along_m, along_n = ceil_div(m, kernel.tile[0]), ceil_div(n, kernel.tile[1])
    operand = tuple(epilogue.size[-2:])
    if operand in ((m, k), (k, m)) and operand not in ((k, n), (n, k)):
        return along_n
    if operand in ((k, n), (n, k)) and operand not in ((m, k), (k, m)):
        return along_m
    return max(along_m, along_n)


def recomputed_us(kernel: Kernel, epilogue: Epilogue, target: Target) -> float:
    """Return the time of recomputing a prologue in each tile that reads the operand."""
    again = repeats(kernel, epilogue) - 1
    work = sum(CYCLES.get(operation, 1) for operation in epilogue.operations)
    # Simple operations of a multiprocessor in a cycle (CUDA programming guide, arithmetic throughput).
    lanes = target.multiprocessors * (64 if target.capability == (8, 0) else 128) * target.clock_mhz
    computing = epilogue.elements * again * work / lanes
    # Its other operands are read from the L2 cache each time but the first.
    reading = _us(again * _moved(epilogue.reads) / L2_SPEED, target)
    return computing + reading
