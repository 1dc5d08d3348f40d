"""Resources of a kernel with an epilogue fused into it: registers, spills, shared memory. Pure.

The main loop and the epilogue run one after the other, so a thread needs the larger of both, not the
sum. The constants were fitted to the kernels that `benchmarks.fusion.pairs` marks as calibration, on
sm_80 and sm_90a (torch 2.14.1, Triton 3.8 and its ptxas); `benchmarks.fusion.prediction` compares them
with those and with held-out kernels, and `benchmarks.fusion.pruning` shows their effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from inductor_plugin.cost.liveness import asked_ahead, live_values, longest_chain
from inductor_plugin.cost.tile import REGISTERS_BESIDE_SUMS, ceil_div
from inductor_plugin.problem.definition import item_bytes
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.target import WARP_SIZE, Target

MOST_REGISTERS = 255
"""Registers a thread can have."""
SPILL_UNIT_BYTES = 4
"""Local memory of one register that is spilled."""
BESIDE_VALUES = {8: 32, 9: 24}
"""Registers of a thread for addresses, masks and constants of an epilogue, by generation."""
RELAXED = {8: 2.15, 9: 1.6}
"""Registers of an element where ptxas prefetches operands freely, by generation: ptxas saves registers so
that one more block is resident, and stops saving if the kernel alone is already at that limit."""
CHAINED = {8: False, 9: True}
"""Whether dependent libdevice functions overlap, by generation."""
CHAIN = {9: 4}
"""Length of a chain of additions and multiplications from which ptxas interleaves many elements, with all
the registers that cost no resident block, by generation."""


@dataclass(frozen=True)
class Kernel:
    """One candidate for a product, as compiled without an epilogue.

    Attributes:
        template: Name of its template.
        tile: (m, n, k) of what one block computes at a time.
        warps: Warps that hold the sums of one tile.
        threads: Threads of a block, a producer's included; 0 for those of ``warps``.
        stages: Steps along K in flight.
        registers: Registers of a thread; None where it is not compiled yet.
        spilled_bytes: Bytes a thread spills; None where not known.
        shared_bytes: Shared memory of a block; None where not known.
        operands: Dtypes of A and B.
        shape: (m, n, k) of the product; empty where not known.
        kind: The language of its source.
        persistent: Whether a block computes several tiles, one block on a multiprocessor.
        reduces: Whether its epilogue can be a reduction.
    """

    template: str
    tile: tuple[int, int, int]
    warps: int
    threads: int = 0
    stages: int = 1
    registers: int | None = None
    spilled_bytes: int | None = None
    shared_bytes: int | None = None
    operands: tuple[str, str] = ("bfloat16", "bfloat16")
    shape: tuple[int, ...] = ()
    kind: Literal["triton", "cutlass"] = "triton"
    persistent: bool = False
    reduces: bool = False

    def block_threads(self, warp_size: int = WARP_SIZE) -> int:
        """Return the threads of a block."""
        return self.threads or warp_size * self.warps

    def sums(self, warp_size: int = WARP_SIZE) -> int:
        """Return the elements of the tile in one thread."""
        return ceil_div(self.tile[0] * self.tile[1], warp_size * max(self.warps, 1))


@dataclass(frozen=True)
class Needs:
    """Resources of a multiprocessor that one block needs.

    Attributes:
        registers: Registers of a thread.
        spilled_bytes: Bytes a thread spills.
        shared_bytes: Shared memory of a block.
        blocks: Blocks of it on one multiprocessor at once; 0 if none can run.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    blocks: int


def unfused_needs(kernel: Kernel, target: Target) -> Needs:
    """Return the resources of a kernel without epilogue: as compiled, or estimated from its tile."""
    limit = register_limit(kernel, target)
    estimate = (
        limit if kernel.kind == "cutlass" else kernel.sums(target.warp_size) + REGISTERS_BESIDE_SUMS
    )
    registers = kernel.registers or estimate
    spilled = kernel.spilled_bytes
    if spilled is None:
        spilled = SPILL_UNIT_BYTES * max(registers - limit, 0)
    shared = kernel.shared_bytes
    if shared is None:
        m, n, k = kernel.tile
        a, b = (item_bytes(dtype) for dtype in kernel.operands)
        shared = max(kernel.stages - 1, 1) * k * (m * a + n * b)
    return _needs(kernel, target, registers, spilled, shared)


def fused_needs(kernel: Kernel, epilogue: Epilogue, target: Target, alone: Needs) -> Needs:
    """Return the resources of a kernel with an epilogue fused into it.

    An epilogue does not change those of a CUTLASS kernel: its registers are limited by its number of
    threads, its epilogue processes the tile in parts, and its stages fill the remaining shared memory.
    The registers of a prologue are not modelled; its compiled kernel is judged instead.

    Args:
        kernel: The kernel alone.
        epilogue: The epilogue that is fused.
        target: The GPU.
        alone: Resources of the kernel alone (`unfused_needs`).
    """
    if kernel.kind == "cutlass" or epilogue.position == "prologue":
        return alone
    floor = main_registers(kernel, epilogue, target, alone.registers)
    registers = max(floor, epilogue_registers(kernel, epilogue, target, floor))
    spilled = alone.spilled_bytes
    if registers > alone.registers:
        # Spills of the kernel alone came from a limit that no longer applies with the epilogue.
        spilled = SPILL_UNIT_BYTES * max(registers - register_limit(kernel, target), 0)
    shared = max(alone.shared_bytes, scratch_bytes(kernel, epilogue))
    return _needs(kernel, target, registers, spilled, shared)


def register_limit(kernel: Kernel, target: Target) -> int:
    """Return the most registers of a thread with which one block fits a multiprocessor."""
    each = target.registers_per_multiprocessor // max(kernel.block_threads(target.warp_size), 1)
    return min(MOST_REGISTERS, each // 8 * 8)


def main_registers(kernel: Kernel, epilogue: Epilogue, target: Target, alone: int) -> int:
    """Return the registers that a thread needs before an epilogue.

    They are those of the kernel alone, if its main loop needs more than storing the product. For split-K
    on Hopper it does not, because its main loop has little more than its sums in registers: storing the
    result that was read back from memory needs most.

    Args:
        kernel: The kernel alone.
        epilogue: The epilogue that is fused; with other readers, the product is stored as well.
        target: The GPU.
        alone: Registers of the kernel alone.
    """
    if "split_k" not in kernel.template or epilogue.readers or target.capability[0] < 9:
        return alone
    return min(alone, kernel.sums(target.warp_size) + REGISTERS_BESIDE_SUMS)


def epilogue_registers(kernel: Kernel, epilogue: Epilogue, target: Target, main: int) -> int:
    """Return the registers that a thread needs in an epilogue; may exceed those it can have.

    Prefetched operands never spill.

    Args:
        kernel: The kernel alone.
        epilogue: The epilogue that is fused.
        target: The GPU.
        main: Registers of a thread before the epilogue.
    """
    generation = 8 if target.capability[0] < 9 else 9
    fixed = BESIDE_VALUES[generation]
    most = border(kernel, target, main)
    live = live_values(epilogue, persistent=kernel.persistent, chained=CHAINED[generation])
    plenty = RELAXED[generation] if main == most else 0.0
    sums = kernel.sums(target.warp_size)
    needed = math.ceil(live * sums) + fixed
    optional = math.ceil(asked_ahead(epilogue, plenty) * sums) + fixed
    if generation in CHAIN and longest_chain(epilogue) >= CHAIN[generation]:
        optional = max(optional, most)
    return max(needed, min(optional, register_limit(kernel, target)))


def border(kernel: Kernel, target: Target, main: int) -> int:
    """Return the most registers of a thread with the same number of resident blocks."""
    blocks = max(target.blocks(kernel.block_threads(target.warp_size), main, 0), 1)
    each = target.registers_per_multiprocessor // (blocks * kernel.block_threads(target.warp_size))
    return min(each // 8 * 8, MOST_REGISTERS)


def scratch_bytes(kernel: Kernel, epilogue: Epilogue) -> int:
    """Return the shared memory for converting a tile's layout.

    The product is converted before it is stored, a column operand after it is loaded (Triton 3.6 to 3.9).
    """
    m, n, _ = kernel.tile
    turned = [item_bytes(read.dtype) for read in epilogue.reads if read.pattern == "column"]
    return m * n * max([item_bytes(epilogue.dtype), *turned])


def _needs(kernel: Kernel, target: Target, demand: int, spilled: int, shared: int) -> Needs:
    registers = min(demand, register_limit(kernel, target))
    blocks = target.blocks(kernel.block_threads(target.warp_size), registers, shared)
    return Needs(registers, spilled, shared, blocks)
