"""Runs a kernel over a grid, a wave of blocks after the other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.emulator.arithmetic.arrays import U8, Array
from tests.emulator.fault import CudaError, FaultError
from tests.emulator.machine.machine import LIMIT_S, Machine
from tests.emulator.machine.schedule import EAGER, Schedule
from tests.emulator.machine.wave import Wave
from tests.emulator.memory.allowed import Allowed
from tests.emulator.memory.memory import SYSTEM_SHARED_BYTES
from tests.emulator.runtime.module import Kernel, LoadedModule
from tests.emulator.threads.lanes import Extent, Shape, coordinates

_WAVE_LANES, _WAVE_BLOCKS = 6144, 64
_STARTED_CLUSTERS = 2
"""Clusters that run where blocks take over the work of others; a GPU would start as many as fit."""


@dataclass(frozen=True)
class Launch:
    """What one launch did.

    Attributes:
        name: The kernel.
        shape: Grid, block and cluster.
        shared_bytes: Dynamic shared memory of a block.
        seconds: Time it took.
        instructions: Instructions run, each once for all lanes that ran it together.
        lane_instructions: Once for each lane.
        products: ``wgmma`` and ``tcgen05.mma`` instructions.
        unfinished: Asynchronous operations that nobody has waited for, in lines.
        lines: Lines of the PTX that ran.
        text: The PTX of its module.
        traffic: What was moved, as `Traffic.counts`; empty but in the eager schedule, since others wait longer.
        parameters: The bytes of each parameter, by its name.
    """

    name: str
    shape: Shape
    shared_bytes: int
    seconds: float
    instructions: int
    lane_instructions: int
    products: int
    unfinished: tuple[str, ...]
    lines: frozenset[int] = field(repr=False)
    text: str = field(default="", repr=False)
    traffic: Counter[str] = field(default_factory=Counter[str], repr=False)
    parameters: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)


@dataclass(frozen=True)
class Conditions:
    """Under which circumstances kernels run.

    Attributes:
        schedule: Order of warps and asynchronous operations.
        allowed: Global memory a kernel may touch, besides the variables of its module, and its parameters and constants, which it
            may only read; None for all of it.
        multiprocessors: Of the device.
        limit_s: Seconds of computing after which a wave counts as stuck.
    """

    schedule: Schedule = EAGER
    allowed: Allowed | None = None
    multiprocessors: int = 132
    limit_s: float = LIMIT_S


def launch(
    module: LoadedModule,
    name: str,
    shape: Shape,
    arguments: Sequence[bytes],
    *,
    shared_bytes: int = 0,
    conditions: Conditions | None = None,
) -> Launch:
    """Run a kernel.

    Args:
        module: The module.
        name: The kernel.
        shape: Grid, block and cluster; a cluster of one block is what ``.reqnctapercluster`` says, if it is there.
        arguments: The bytes of each parameter.
        shared_bytes: Dynamic shared memory of a block.
        conditions: See `Conditions`.

    Raises:
        FaultError: It does what no GPU allows, or what is not known here, or it never ends.
        PtxError: It has an instruction that is not known.
    """
    begin = time.perf_counter()
    conditions = conditions or Conditions()
    kernel = module.kernel(name)
    shape = _with_required(kernel, shape)
    data, base = _parameters(kernel, arguments)
    allowed = conditions.allowed
    if allowed is not None:
        allowed = allowed.with_arrays(module.memory, [data, *module.constants])
    order = _blocks_by_cluster(shape)
    size = shape.cluster_size
    wave_blocks = max(1, min(_WAVE_LANES // (32 * shape.warps), _WAVE_BLOCKS) // size) * size
    if kernel.steals:
        wave_blocks = max(1, min(wave_blocks // size, _STARTED_CLUSTERS)) * size
    machines: list[Machine] = []
    unfinished: list[str] = []
    for first in range(0, wave_blocks if kernel.steals else shape.blocks, wave_blocks):
        wave = Wave(
            kernel.program,
            shape,
            order[first : first + wave_blocks],
            shared_bytes=SYSTEM_SHARED_BYTES + kernel.static_shared + shared_bytes,
            local_bytes=kernel.local_bytes,
            parameters=data.ctypes.data + base,
            allowed=allowed,
            schedule=conditions.schedule,
            multiprocessors=conditions.multiprocessors,
            counted=conditions.schedule == EAGER,
        )
        if kernel.steals:
            wave.waiting_clusters = [
                coordinates(block, shape.grid) for block in order[wave_blocks::size]
            ]
        machines.append(Machine(wave, conditions.limit_s))
        unfinished += machines[-1].run()
    blocks = kernel.program.function.blocks
    names = (parameter.name for parameter in kernel.program.function.parameters)
    return Launch(
        name,
        shape,
        shared_bytes,
        time.perf_counter() - begin,
        sum(machine.instructions for machine in machines),
        sum(machine.lane_instructions for machine in machines),
        sum(machine.wave.product_count for machine in machines),
        tuple(unfinished),
        frozenset(
            instruction.place.line
            for machine in machines
            for number in machine.visited
            for instruction in blocks[number].code
        ),
        module.text,
        sum(
            (
                machine.wave.memory.traffic.counts
                for machine in machines
                if machine.wave.memory.traffic
            ),
            Counter[str](),
        ),
        dict(zip(names, arguments, strict=True)),
    )


def _with_required(kernel: Kernel, shape: Shape) -> Shape:
    """Return the shape with the cluster that the kernel requires.

    Raises:
        FaultError: The kernel requires another block, or another cluster.
    """
    threads = kernel.limit("reqntid")
    if threads and _extent(threads) != shape.block:
        raise FaultError(
            f"{kernel.name} requires blocks of {_extent(threads)} threads, not {shape.block}",
            CudaError.INVALID_VALUE,
        )
    most = kernel.limit("maxntid")
    if most and shape.threads > int(np.prod(most)):
        raise FaultError(
            f"{kernel.name} takes blocks of {most} threads, not {shape.block}",
            CudaError.INVALID_VALUE,
        )
    cluster = kernel.limit("reqnctapercluster")
    if not cluster:
        return shape
    required = _extent(cluster)
    if shape.cluster not in ((1, 1, 1), required):
        raise FaultError(
            f"{kernel.name} requires clusters of {required} blocks, not {shape.cluster}",
            CudaError.INVALID_CONFIGURATION,
        )
    return Shape(shape.grid, shape.block, required)


def _extent(numbers: tuple[int, ...]) -> Extent:
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _parameters(kernel: Kernel, arguments: Sequence[bytes]) -> tuple[Array, int]:
    """Return memory with the parameters, and where they begin in it.

    Raises:
        FaultError: Their number or sizes are others.
    """
    if len(arguments) != len(kernel.parameters):
        raise FaultError(
            f"{kernel.name} has {len(kernel.parameters)} parameters, not {len(arguments)}",
            CudaError.INVALID_VALUE,
        )
    data = np.zeros(kernel.parameter_bytes + 256, U8)
    base = -data.ctypes.data % 128
    for (offset, size), argument in zip(kernel.parameters, arguments, strict=True):
        if len(argument) != size:
            raise FaultError(
                f"{kernel.name} has a parameter of {size} bytes, not {len(argument)}",
                CudaError.INVALID_VALUE,
            )
        begin = base + offset
        data[begin : begin + size] = np.frombuffer(argument, U8)
    return data, base


def _blocks_by_cluster(shape: Shape) -> list[int]:
    """Return the numbers of all blocks, those of a cluster side by side."""

    def cluster(block: int) -> tuple[int, int, int, int]:
        x, y, z = coordinates(block, shape.grid)
        along_x, along_y, along_z = shape.cluster
        return z // along_z, y // along_y, x // along_x, block

    return sorted(range(shape.blocks), key=cluster)
