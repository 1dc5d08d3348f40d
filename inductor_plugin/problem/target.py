"""A GPU by its name: resources of a kernel and peak rates. No torch.

The figures come from data sheets and from CUDA's device properties, each with its source. They are
peaks: the clock is the boost clock, a rate is dense (no sparsity), and no kernel reaches all of it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inductor_plugin.errors import TargetError

KIB, MIB = 1 << 10, 1 << 20
WARP_SIZE = 32
"""Threads of a warp of an NVIDIA GPU."""
RESERVED_SHARED_BYTES = 1 << 10
"""Shared memory CUDA keeps for itself in each block since compute capability 8.0."""


@dataclass(frozen=True)
class Target:
    """Facts of one GPU.

    Attributes:
        name: Short name: ``H100``.
        device_name: CUDA's name.
        arch: nvcc's name of its architecture: ``sm_90a``.
        capability: Compute capability, (major, minor).
        multiprocessors: Streaming multiprocessors.
        clock_mhz: Boost clock under which `rates` are stated.
        max_clock_mhz: Highest clock CUDA reports, without tensor-core load.
        memory_bytes: Device memory that CUDA reports.
        memory_bandwidth: Of device memory, bytes/s.
        memory_clock_mhz: Clock of the memory as CUDA reports it; two transfers a cycle.
        memory_bus_bits: Width of the memory bus.
        l2_bytes: Second-level cache.
        shared_per_multiprocessor: Bytes of shared memory of one multiprocessor.
        shared_per_block: Bytes a block may use, static and dynamic together, when it opts in.
        registers_per_multiprocessor: 32-bit registers of one multiprocessor.
        threads_per_multiprocessor: Most threads resident at once.
        threads_per_block: Most threads of a block.
        blocks_per_multiprocessor: Most blocks resident at once.
        rates: Dense tensor-core rates with float32 (int32) accumulation, as (dtype, operations/s)
            pairs; a dtype that is absent has no tensor core here.
        sources: Sources of the figures.
        warp_size: Threads that execute together: 64 in a wavefront of some GPUs.
    """

    name: str
    device_name: str
    arch: str
    capability: tuple[int, int]
    multiprocessors: int
    clock_mhz: int
    max_clock_mhz: int
    memory_bytes: int
    memory_bandwidth: float
    memory_clock_mhz: int
    memory_bus_bits: int
    l2_bytes: int
    shared_per_multiprocessor: int
    shared_per_block: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    threads_per_block: int
    blocks_per_multiprocessor: int
    rates: tuple[tuple[str, float], ...]
    sources: tuple[str, ...]
    warp_size: int = WARP_SIZE

    def rate(self, dtype: str) -> float | None:
        """Return operations per second of a dtype on tensor cores, or None if there are none."""
        return dict(self.rates).get(dtype)

    def blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks of a kernel run on one multiprocessor at once; 0 if none can.

        Args:
            threads: Threads of a block.
            registers: Registers of a thread.
            shared_bytes: Shared memory of a block, without what CUDA reserves.
        """
        if threads > self.threads_per_block or shared_bytes > self.shared_per_block:
            return 0
        warps = -(-threads // self.warp_size)
        # A warp gets registers in units of 8 for each of its threads.
        used = warps * self.warp_size * (-(-max(registers, 1) // 8) * 8)
        return min(
            self.blocks_per_multiprocessor,
            self.threads_per_multiprocessor // (warps * self.warp_size),
            self.registers_per_multiprocessor // used,
            self.shared_per_multiprocessor // (shared_bytes + RESERVED_SHARED_BYTES),
        )

    def properties(self) -> dict[str, Any]:
        """Return the fields of ``torch.cuda.get_device_properties`` for this GPU, by name."""
        return {
            "name": self.device_name,
            "major": self.capability[0],
            "minor": self.capability[1],
            "multi_processor_count": self.multiprocessors,
            "regs_per_multiprocessor": self.registers_per_multiprocessor,
            "max_threads_per_multi_processor": self.threads_per_multiprocessor,
            "max_threads_per_block": self.threads_per_block,
            "warp_size": self.warp_size,
            "total_memory": self.memory_bytes,
            "shared_memory_per_block": 48 * KIB,
            "shared_memory_per_block_optin": self.shared_per_block,
            "shared_memory_per_multiprocessor": self.shared_per_multiprocessor,
            "L2_cache_size": self.l2_bytes,
            "gcnArchName": self.device_name,
            "clock_rate": self.max_clock_mhz * 1000,
            "memory_clock_rate": self.memory_clock_mhz * 1000,
            "memory_bus_width": self.memory_bus_bits,
            "is_integrated": 0,
            "is_multi_gpu_board": 0,
        }


def _limits(shared_kib: int, threads: int, blocks: int) -> dict[str, int]:
    """Return the fields of a `Target` that depend on the compute capability alone."""
    return {
        "shared_per_multiprocessor": shared_kib * KIB,
        "shared_per_block": (shared_kib - 1) * KIB,
        "registers_per_multiprocessor": 64 * KIB,
        "threads_per_multiprocessor": threads,
        "threads_per_block": 1024,
        "blocks_per_multiprocessor": blocks,
    }


def _rates(
    half: float, tf32: float, eight: float | None, int8: float
) -> tuple[tuple[str, float], ...]:
    """Return the rates of all dtypes, in operations/s, from those a data sheet lists, in 10^12 of them."""
    floats = () if eight is None else (("float8_e4m3fn", eight), ("float8_e5m2", eight))
    listed = (("float16", half), ("bfloat16", half), ("tf32", tf32), *floats, ("int8", int8))
    return tuple((dtype, value * 1e12) for dtype, value in listed)


_GUIDE = (
    "CUDA programming guide, compute capabilities (shared memory, threads, blocks, registers): "
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html"
)
_HOPPER_PAPER = (
    "NVIDIA H100 Tensor Core GPU Architecture, V1.04 (tensor cores at 1830 MHz): "
    "https://resources.nvidia.com/en-us-tensor-core"
)
_AMPERE_PAPER = (
    "NVIDIA A100 Tensor Core GPU Architecture: https://images.nvidia.com/"
    "aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
)
_ADA_PAPER = "NVIDIA Ada GPU Architecture, V2.01"
_REPORTED = "torch.cuda.get_device_properties and nvidia-smi on the device (memory, L2, clocks)"

_H100 = Target(  # SXM5, 80 GB
    name="H100",
    device_name="NVIDIA H100 80GB HBM3",
    arch="sm_90a",
    capability=(9, 0),
    multiprocessors=132,
    clock_mhz=1830,
    max_clock_mhz=1980,
    memory_bytes=81089 * MIB,
    memory_bandwidth=3.35e12,
    memory_clock_mhz=2619,
    memory_bus_bits=5120,
    l2_bytes=50 * MIB,
    **_limits(228, 2048, 32),
    rates=_rates(989.4, 494.7, 1978.9, 1978.9),
    sources=(_HOPPER_PAPER, "https://www.nvidia.com/en-us/data-center/h100/", _GUIDE),
)
_H200 = replace(  # SXM, 141 GB: the chip of the H100 with other memory
    _H100,
    name="H200",
    device_name="NVIDIA H200",
    memory_bytes=143156 * MIB,
    memory_bandwidth=4.8e12,
    memory_clock_mhz=3201,
    memory_bus_bits=6144,
    l2_bytes=60 * MIB,
    sources=("https://www.nvidia.com/en-us/data-center/h200/", _HOPPER_PAPER, _GUIDE, _REPORTED),
)
_KNOWN: tuple[Target, ...] = (
    _H100,
    _H200,
    Target(
        name="A100",  # SXM4, 80 GB
        device_name="NVIDIA A100-SXM4-80GB",
        arch="sm_80",
        capability=(8, 0),
        multiprocessors=108,
        clock_mhz=1410,
        max_clock_mhz=1410,
        memory_bytes=81920 * MIB,
        memory_bandwidth=2.039e12,
        memory_clock_mhz=1593,
        memory_bus_bits=5120,
        l2_bytes=40 * MIB,
        **_limits(164, 2048, 32),
        rates=_rates(312, 156, None, 624),
        sources=(_AMPERE_PAPER, "https://www.nvidia.com/en-us/data-center/a100/", _GUIDE),
    ),
    Target(
        name="L40S",
        device_name="NVIDIA L40S",
        arch="sm_89",
        capability=(8, 9),
        multiprocessors=142,
        clock_mhz=2520,
        max_clock_mhz=2520,
        memory_bytes=45589 * MIB,
        memory_bandwidth=864e9,
        memory_clock_mhz=9001,
        memory_bus_bits=384,
        l2_bytes=96 * MIB,
        **_limits(100, 1536, 24),
        rates=_rates(362.05, 183, 733, 733),
        sources=("https://www.nvidia.com/en-us/data-center/l40s/", _ADA_PAPER, _GUIDE, _REPORTED),
    ),
    Target(
        name="RTX 4090",  # half the rate of an L40S where it accumulates in float32
        device_name="NVIDIA GeForce RTX 4090",
        arch="sm_89",
        capability=(8, 9),
        multiprocessors=128,
        clock_mhz=2520,
        max_clock_mhz=2520,
        memory_bytes=24563 * MIB,
        memory_bandwidth=1.008e12,
        memory_clock_mhz=10501,
        memory_bus_bits=384,
        l2_bytes=72 * MIB,
        **_limits(100, 1536, 24),
        rates=_rates(165.2, 82.6, 330.3, 660.6),
        sources=(
            "https://github.com/NVIDIA/nvbench/pull/207 (all but the rates, on the device)",
            _ADA_PAPER,
            _GUIDE,
        ),
    ),
    Target(
        name="B200",
        device_name="NVIDIA B200",
        arch="sm_100a",
        capability=(10, 0),
        multiprocessors=148,
        clock_mhz=1860,
        max_clock_mhz=1965,
        memory_bytes=182642 * MIB,
        memory_bandwidth=7.7e12,
        memory_clock_mhz=3996,
        memory_bus_bits=7680,
        l2_bytes=126 * MIB,
        **_limits(228, 2048, 32),
        rates=_rates(2250, 1125, 4500, 4500),
        sources=(
            "https://www.nvidia.com/en-us/data-center/hgx/ (rates of one of eight, halved)",
            "https://docs.nvidia.com/cuda/blackwell-tuning-guide/ (shared memory, L2 of 126 MB)",
            "https://github.com/pytorch/ao/pull/4002 (bus of 7680 bits at 3996 MHz)",
            "https://hmc-tech.com/gpus/nvidia-b200-vs-nvidia-b100 (tensor clock of 1.86 GHz)",
            _GUIDE,
            _REPORTED,
        ),
    ),
)

_LIKE: dict[tuple[int, int], str] = {
    (8, 0): "A100", (8, 6): "L40S", (8, 9): "L40S", (9, 0): "H100",
    (10, 0): "B200", (10, 3): "B200", (12, 0): "L40S", (12, 1): "L40S",
}  # fmt: skip
"""The known GPU whose multiprocessor has the tensor cores of a compute capability.

8.6, 8.9 and 12.0 do the same per cycle and multiprocessor, but a GeForce half of it where it
accumulates in float32, as the RTX 4090 here.
"""


def names() -> tuple[str, ...]:
    """Return the names of all known targets."""
    return tuple(gpu.name for gpu in _KNOWN)


def target(name: str, described: Sequence[Target] = ()) -> Target:
    """Return a known target; case, spaces, ``-`` and ``_`` in its name do not matter.

    Args:
        name: Its name, or CUDA's.
        described: Further targets, as of packages.

    Raises:
        TargetError: No target has that name.
    """
    every = (*_KNOWN, *described)
    for gpu in every:
        if _plain(name) in (_plain(gpu.name), _plain(gpu.device_name)):
            return gpu
    plain = {_plain(gpu.name): gpu.name for gpu in every}
    close = difflib.get_close_matches(_plain(name), plain, n=1)
    hint = f"did you mean {plain[close[0]]!r}? " if close else ""
    raise TargetError(f"unknown target {name!r}; {hint}known are: {', '.join(plain.values())}")


def from_properties(facts: Mapping[str, Any]) -> Target:
    """Return the target of an existing device: a known one, or one with the device's figures.

    A slice of a known GPU, or an unknown GPU, gets the rate per clock of the same tensor cores.

    Args:
        facts: Its `Target.properties`; name, capability and multiprocessors are required.

    Raises:
        TargetError: It is no NVIDIA GPU, or one whose tensor cores are not known.
    """
    device_name = str(facts["name"])
    capability = (int(facts["major"]), int(facts["minor"]))
    for gpu in _KNOWN:
        if _plain(gpu.device_name) == _plain(device_name) and capability == gpu.capability:
            # A whole GPU is taken from the table, as in a pack that was built without the device.
            whole = facts["multi_processor_count"] == gpu.multiprocessors
            return gpu if whole else _measured(gpu, gpu, facts)
    if str(facts.get("gcnArchName", "")).startswith("gfx"):
        raise TargetError(f"{device_name} is an AMD GPU; only NVIDIA GPUs have targets so far")
    if capability not in _LIKE:
        listed = ", ".join(f"{major}.{minor}" for major, minor in _LIKE)
        raise TargetError(
            f"{device_name} has compute capability {capability[0]}.{capability[1]}, whose tensor "
            f"cores are not known; known are: {listed}"
        )
    like = target(_LIKE[capability])
    if like.name == "L40S" and "GeForce" in device_name:
        like = target("RTX 4090")
    number = capability[0] * 10 + capability[1]
    # Ampere has no 8-bit floats on tensor cores.
    rates = tuple(pair for pair in like.rates if number >= 89 or not pair[0].startswith("float8"))
    unknown = replace(
        like,
        name=device_name.removeprefix("NVIDIA ").removeprefix("GeForce "),
        device_name=device_name,
        arch=f"sm_{number}a" if number >= 90 else f"sm_{number}",
        capability=capability,
        rates=rates,
        # CUDA programming guide, compute capabilities; 8.9 has 24, and torch says none of them.
        blocks_per_multiprocessor=16 if capability == (8, 6) else like.blocks_per_multiprocessor,
        sources=(f"its own properties, and the tensor cores of a {like.name}", *like.sources),
    )
    return _measured(unknown, like, facts)


def _measured(base: Target, like: Target, facts: Mapping[str, Any]) -> Target:
    """Return ``base`` with the facts of the device itself; rates scale with clock and size."""

    def fact(name: str, otherwise: int) -> int:
        return int(facts.get(name) or otherwise)

    multiprocessors = int(facts["multi_processor_count"])
    max_clock = fact("clock_rate", like.max_clock_mhz * 1000) // 1000
    clock = round(like.clock_mhz * max_clock / like.max_clock_mhz)
    bus = fact("memory_bus_width", like.memory_bus_bits)
    memory_clock = fact("memory_clock_rate", like.memory_clock_mhz * 1000) // 1000
    moved = bus * memory_clock / (like.memory_bus_bits * like.memory_clock_mhz)
    scale = multiprocessors * clock / (like.multiprocessors * like.clock_mhz)
    return replace(
        base,
        multiprocessors=multiprocessors,
        clock_mhz=clock,
        max_clock_mhz=max_clock,
        memory_bytes=fact("total_memory", like.memory_bytes),
        memory_bandwidth=like.memory_bandwidth * moved,
        memory_clock_mhz=memory_clock,
        memory_bus_bits=bus,
        l2_bytes=fact("L2_cache_size", like.l2_bytes),
        shared_per_multiprocessor=fact(
            "shared_memory_per_multiprocessor", like.shared_per_multiprocessor
        ),
        shared_per_block=fact("shared_memory_per_block_optin", like.shared_per_block),
        registers_per_multiprocessor=fact(
            "regs_per_multiprocessor", like.registers_per_multiprocessor
        ),
        threads_per_multiprocessor=fact(
            "max_threads_per_multi_processor", like.threads_per_multiprocessor
        ),
        rates=tuple((dtype, value * scale) for dtype, value in base.rates),
        warp_size=fact("warp_size", like.warp_size),
    )


def _plain(name: str) -> str:
    """Return a name without case, spaces and punctuation."""
    return "".join(letter for letter in name.lower().removeprefix("nvidia ") if letter.isalnum())
