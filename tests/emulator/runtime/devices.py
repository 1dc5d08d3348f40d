"""What the CUDA runtime says of a GPU: the project's facts of it (`inductor_plugin.problem.target`) as attributes."""

from __future__ import annotations

from enum import IntEnum

from inductor_plugin.problem.target import RESERVED_SHARED_BYTES, Target

NAMES = ("H100", "H200", "A100", "B200", "L40S")
"""The GPUs that are emulated."""

_KIB = 1 << 10
_STATIC_SHARED = 48 * _KIB


class Attribute(IntEnum):
    """Attributes of a device (``cudaDeviceAttr`` of driver_types.h)."""

    MAX_THREADS_PER_BLOCK = 1
    MAX_BLOCK_DIM_X = 2
    MAX_BLOCK_DIM_Y = 3
    MAX_BLOCK_DIM_Z = 4
    MAX_GRID_DIM_X = 5
    MAX_GRID_DIM_Y = 6
    MAX_GRID_DIM_Z = 7
    MAX_SHARED_MEMORY_PER_BLOCK = 8
    TOTAL_CONSTANT_MEMORY = 9
    WARP_SIZE = 10
    MAX_REGISTERS_PER_BLOCK = 12
    CLOCK_RATE_KHZ = 13
    MULTIPROCESSOR_COUNT = 16
    MEMORY_CLOCK_RATE_KHZ = 36
    MEMORY_BUS_WIDTH = 37
    L2_CACHE_SIZE = 38
    MAX_THREADS_PER_MULTIPROCESSOR = 39
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81
    MAX_REGISTERS_PER_MULTIPROCESSOR = 82
    COOPERATIVE_LAUNCH = 95
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
    MAX_BLOCKS_PER_MULTIPROCESSOR = 106
    RESERVED_SHARED_MEMORY_PER_BLOCK = 111
    CLUSTER_LAUNCH = 120


def attributes(target: Target) -> dict[Attribute, int]:
    """Return the attributes of a GPU."""
    major, minor = target.capability
    return {
        Attribute.MAX_THREADS_PER_BLOCK: target.threads_per_block,
        Attribute.MAX_BLOCK_DIM_X: 1024,
        Attribute.MAX_BLOCK_DIM_Y: 1024,
        Attribute.MAX_BLOCK_DIM_Z: 64,
        Attribute.MAX_GRID_DIM_X: (1 << 31) - 1,
        Attribute.MAX_GRID_DIM_Y: (1 << 16) - 1,
        Attribute.MAX_GRID_DIM_Z: (1 << 16) - 1,
        Attribute.MAX_SHARED_MEMORY_PER_BLOCK: _STATIC_SHARED,
        Attribute.TOTAL_CONSTANT_MEMORY: 64 * _KIB,
        Attribute.WARP_SIZE: 32,
        Attribute.MAX_REGISTERS_PER_BLOCK: 64 * _KIB,
        Attribute.CLOCK_RATE_KHZ: target.max_clock_mhz * 1000,
        Attribute.MULTIPROCESSOR_COUNT: target.multiprocessors,
        Attribute.MEMORY_CLOCK_RATE_KHZ: target.memory_clock_mhz * 1000,
        Attribute.MEMORY_BUS_WIDTH: target.memory_bus_bits,
        Attribute.L2_CACHE_SIZE: target.l2_bytes,
        Attribute.MAX_THREADS_PER_MULTIPROCESSOR: target.threads_per_multiprocessor,
        Attribute.COMPUTE_CAPABILITY_MAJOR: major,
        Attribute.COMPUTE_CAPABILITY_MINOR: minor,
        Attribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: target.shared_per_multiprocessor,
        Attribute.MAX_REGISTERS_PER_MULTIPROCESSOR: target.registers_per_multiprocessor,
        Attribute.COOPERATIVE_LAUNCH: 1,
        Attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: target.shared_per_block,
        Attribute.MAX_BLOCKS_PER_MULTIPROCESSOR: target.blocks_per_multiprocessor,
        Attribute.RESERVED_SHARED_MEMORY_PER_BLOCK: RESERVED_SHARED_BYTES,
        Attribute.CLUSTER_LAUNCH: int(target.capability >= (9, 0)),
    }


def runs_on(ptx_target: str, target: Target) -> bool:
    """Return whether PTX for ``sm_90a`` ... runs on a GPU.

    Plain PTX runs on its capability and all later ones; with ``a`` on its own alone; with ``f`` on its family:
    the same major number.
    """
    number = ptx_target.removeprefix("sm_")
    suffix = number[-1] if number[-1].isalpha() else ""
    digits = number.removesuffix(suffix)
    capability = (int(digits[:-1]), int(digits[-1]))
    if suffix == "a":
        return capability == target.capability
    if suffix == "f":
        return capability[0] == target.capability[0] and capability <= target.capability
    return capability <= target.capability
