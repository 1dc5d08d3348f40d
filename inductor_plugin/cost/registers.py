"""What a kernel takes of a GPU once an epilogue is fused into it: registers, spills, shared memory. Pure.

The main loop and the epilogue follow each other, so a thread needs the larger of both, not the sum.
The numbers were chosen by the kernels that `benchmarks.fusion.pairs` marks as calibration, on sm_80 and
sm_90a (torch 2.14.1, Triton 3.8 and its ptxas); `benchmarks.fusion.prediction` compares them with those
and with kernels that are held out, and `benchmarks.fusion.pruning` shows what they decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from inductor_plugin.cost.liveness import asked_ahead, live_values, longest_chain
from inductor_plugin.cost.tile import REGISTERS_BESIDE_SUMS, ceil_div
from inductor_plugin.problem.epilogue import BYTES, Epilogue
from inductor_plugin.problem.target import Target

MOST_REGISTERS = 255
"""Registers a thread can have."""
SPILL_UNIT_BYTES = 4
"""What one register too many costs of local memory."""
BESIDE_VALUES = {8: 32, 9: 24}
"""Registers of a thread beside an epilogue's values (addresses, masks, constants), by generation."""
RELAXED = {8: 2.15, 9: 1.6}
"""Registers an element takes where ptxas asks for operands as early as it likes, by generation: it saves
registers to let one block more run, and where the kernel alone is at that border it gives up with more."""
CHAINED = {8: False, 9: True}
"""Whether functions of CUDA's library overlap that need each other, by generation."""
CHAIN = {9: 4}
"""From so many additions and multiplications in a row ptxas works on many elements in turns, with all
the registers that cost no block, by generation."""


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
        kind: What it is written in.
        persistent: Whether a block goes from tile to tile, one block on a multiprocessor.
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

    @property
    def block_threads(self) -> int:
        """Threads of a block."""
        return self.threads or 32 * self.warps

    @property
    def sums(self) -> int:
        """Elements of the tile in one thread."""
        return ceil_div(self.tile[0] * self.tile[1], 32 * max(self.warps, 1))


@dataclass(frozen=True)
class Needs:
    """What one block takes of a multiprocessor.

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
    """Return what a kernel takes alone: as compiled, or estimated from its tile."""
    limit = register_limit(kernel, target)
    estimate = limit if kernel.kind == "cutlass" else kernel.sums + REGISTERS_BESIDE_SUMS
    wanted = kernel.registers or estimate
    spilled = kernel.spilled_bytes
    if spilled is None:
        spilled = SPILL_UNIT_BYTES * max(wanted - limit, 0)
    shared = kernel.shared_bytes
    if shared is None:
        m, n, k = kernel.tile
        a, b = (BYTES.get(one, 4) for one in kernel.operands)
        shared = max(kernel.stages - 1, 1) * k * (m * a + n * b)
    return _needs(kernel, target, wanted, spilled, shared)


def fused_needs(kernel: Kernel, epilogue: Epilogue, target: Target, alone: Needs) -> Needs:
    """Return what a kernel takes with an epilogue fused into it.

    A CUTLASS kernel is bound to the registers its threads leave it, its epilogue goes over the tile in
    pieces, and it has as many steps along K in flight as both leave room for: no epilogue changes them.
    What a prologue adds is not modelled; its compiled kernel is judged.

    Args:
        kernel: The kernel alone.
        epilogue: What is fused.
        target: The GPU.
        alone: What the kernel takes alone (`unfused_needs`).
    """
    if kernel.kind == "cutlass" or epilogue.position == "prologue":
        return alone
    floor = main_registers(kernel, epilogue, target, alone.registers)
    wanted = max(floor, epilogue_registers(kernel, epilogue, target, floor))
    spilled = alone.spilled_bytes
    if wanted > alone.registers:
        # A kernel that spills a little was held at a limit its epilogue now lifts.
        spilled = SPILL_UNIT_BYTES * max(wanted - register_limit(kernel, target), 0)
    shared = max(alone.shared_bytes, scratch_bytes(kernel, epilogue))
    return _needs(kernel, target, wanted, spilled, shared)


def register_limit(kernel: Kernel, target: Target) -> int:
    """Return the registers a thread can have, so that one block fits a multiprocessor."""
    each = target.registers_per_multiprocessor // max(kernel.block_threads, 1)
    return min(MOST_REGISTERS, each // 8 * 8)


def main_registers(kernel: Kernel, epilogue: Epilogue, target: Target, alone: int) -> int:
    """Return the registers that a thread needs before an epilogue.

    They are those of the kernel alone, as long as its main loop needs more than storing the product.
    Split-K's does not on Hopper, where a main loop has little but its sums in registers: what takes
    most is to store what was read back from memory.

    Args:
        kernel: The kernel alone.
        epilogue: What is fused; with other readers, the product is stored as well.
        target: The GPU.
        alone: Registers of the kernel alone.
    """
    if "split_k" not in kernel.template or epilogue.readers or target.capability[0] < 9:
        return alone
    return min(alone, kernel.sums + REGISTERS_BESIDE_SUMS)


def epilogue_registers(kernel: Kernel, epilogue: Epilogue, target: Target, main: int) -> int:
    """Return the registers that a thread needs in an epilogue, however many there are.

    What is only asked for ahead of its use never spills.

    Args:
        kernel: The kernel alone.
        epilogue: What is fused.
        target: The GPU.
        main: Registers of a thread before the epilogue.
    """
    generation = 8 if target.capability[0] < 9 else 9
    beside = BESIDE_VALUES[generation]
    most = border(kernel, target, main)
    waiting = live_values(epilogue, persistent=kernel.persistent, chained=CHAINED[generation])
    plenty = RELAXED[generation] if main == most else 0.0
    needed = math.ceil(waiting * kernel.sums) + beside
    wished = math.ceil(asked_ahead(epilogue, plenty) * kernel.sums) + beside
    if generation in CHAIN and longest_chain(epilogue) >= CHAIN[generation]:
        wished = max(wished, most)
    return max(needed, min(wished, register_limit(kernel, target)))


def border(kernel: Kernel, target: Target, main: int) -> int:
    """Return the registers a thread can have without a block less on a multiprocessor."""
    blocks = max(target.blocks(kernel.block_threads, main, 0), 1)
    each = target.registers_per_multiprocessor // (blocks * kernel.block_threads)
    return min(each // 8 * 8, MOST_REGISTERS)


def scratch_bytes(kernel: Kernel, epilogue: Epilogue) -> int:
    """Return the shared memory in which a tile changes from one layout to another.

    The product is turned as it would be stored, a column operand as it is loaded (Triton 3.6 to 3.9).
    """
    m, n, _ = kernel.tile
    turned = [BYTES.get(one.dtype, 4) for one in epilogue.reads if one.pattern == "column"]
    return m * n * max([BYTES.get(epilogue.dtype, 4), *turned])


def _needs(kernel: Kernel, target: Target, wanted: int, spilled: int, shared: int) -> Needs:
    registers = min(wanted, register_limit(kernel, target))
    blocks = target.blocks(kernel.block_threads, registers, shared)
    return Needs(registers, spilled, shared, blocks)
