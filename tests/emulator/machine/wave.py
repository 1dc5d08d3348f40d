"""The state of the blocks that run at once: registers, memory, barriers. Generated code works on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import U32, Array
from tests.emulator.fault import CudaError, FaultError, UnmodelledError
from tests.emulator.machine.program import Program
from tests.emulator.machine.schedule import EAGER, Schedule
from tests.emulator.memory.allowed import Allowed
from tests.emulator.memory.atomics import atomic
from tests.emulator.memory.mbarriers import MBarriers
from tests.emulator.memory.memory import Memory
from tests.emulator.memory.pending import PendingGroups, PendingLoads, PendingSequences, Progress
from tests.emulator.memory.products import PendingProducts
from tests.emulator.ptx.types import register_type
from tests.emulator.races.global_memory import Order, hands_over
from tests.emulator.races.tensor import TensorRaces
from tests.emulator.threads.group import Group
from tests.emulator.threads.lanes import Extent, Lanes, Shape
from tests.emulator.threads.origin import Issuer, Origin
from tests.emulator.threads.special import SpecialRegisters

TENSOR_LANES, TENSOR_COLUMNS = 128, 512
"""Tensor memory of a block: lanes of columns of 32 bits."""


@dataclass(frozen=True)
class Allocation:
    """Columns of tensor memory, and the instruction that has allocated them."""

    columns: int
    origin: Origin


class Wave:
    """Some blocks of a launch and all they work on.

    Attributes:
        program: The kernel.
        lanes: The threads.
        schedule: The order of asynchronous operations and warps.
        registers: Values of each register that outlives a block, by number.
        memory: What can be addressed.
        issuer: The instruction that runs.
        copies: ``cp.async`` operations.
        stores: Bulk stores.
        loads: TMA and bulk loads, and what else an mbarrier tells the end of.
        products: ``wgmma`` instructions that are not waited for.
        tensor_races: Who has touched tensor memory; None if that is not watched.
        tensor_products: ``tcgen05.mma`` instructions that are not waited for.
        mbarriers: Barriers in shared memory.
        special: Special registers.
        progress: Whether anything happens.
        product_count: Instructions ``wgmma.mma_async`` and ``tcgen05.mma`` so far.
        columns: Allocated tensor memory: for each block what begins at a column.
        waiting_clusters: First blocks of clusters of the grid that wait for a place to run.
    """

    def __init__(
        self,
        program: Program,
        shape: Shape,
        blocks: Sequence[int],
        *,
        shared_bytes: int,
        local_bytes: int = 0,
        parameters: int = 0,
        allowed: Allowed | None = None,
        schedule: Schedule = EAGER,
        multiprocessors: int = 132,
        counted: bool = False,
    ) -> None:
        self.program, self.schedule = program, schedule
        self.lanes = Lanes(shape, blocks)
        count = self.lanes.count
        self.registers: dict[int, Array] = {
            number: np.zeros(count, register_type(kind)) for number, kind in program.registers
        }
        self.issuer = Issuer(program.function.name, program.issuers, self.lanes)
        self.memory = Memory(
            self.lanes,
            self.issuer,
            shared_bytes=shared_bytes,
            local_bytes=local_bytes,
            parameters=parameters,
            allowed=allowed,
            counted=counted,
            watched=schedule.watched,
            hands_over=schedule.watched
            and hands_over(each for block in program.function.blocks for each in block.code),
        )
        issuer, races, late = self.issuer, self.memory.races, schedule.late
        self.progress = Progress()
        self.copies = PendingGroups(count, "copy", issuer, races, late=late)
        self.stores = PendingGroups(count, "store", issuer, races, late=late)
        self.loads = PendingLoads(self.progress, issuer, late=late)
        self.products = PendingProducts(len(program.tracked), count >> 5, issuer, races, late=late)
        self.tensor_races = TensorRaces(races, issuer) if races else None
        self.tensor_products = PendingSequences(issuer, late=late)
        self.mbarriers = MBarriers(count, self.memory, self.progress, self.loads)
        self.special = SpecialRegisters(self.lanes, shared_bytes, multiprocessors)
        self.product_count = 0
        self.columns: dict[int, dict[int, Allocation]] = {}
        self.waiting_clusters: list[Extent] = []
        self._tensor_memory: Array | None = None

    @property
    def tensor_memory(self) -> Array:
        """Tensor memory of all blocks, uint32 [blocks, lanes, columns]; full of ones before it is written."""
        if self._tensor_memory is None:
            shape = (self.lanes.blocks, TENSOR_LANES, TENSOR_COLUMNS)
            self._tensor_memory = np.full(shape, 0xFFFFFFFF, U32)
        return self._tensor_memory

    def store(
        self,
        space: str,
        address: Array,
        values: tuple[Array, ...],
        kind: str,
        guard: Array | None,
        group: Group,
        order: Order = "",
    ) -> None:
        """Store as `Memory.store`; others may have waited for it."""
        self.progress.events += 1
        self.memory.store(space, address, values, kind, guard, group, order=order)

    def atomic(
        self,
        operation: str,
        space: str,
        address: Array,
        operands: list[tuple[Array, ...]],
        kind: str,
        guard: Array | None,
        group: Group,
        order: Order = "",
    ) -> list[Array]:
        """Do as `atomics.atomic`; others may have waited for it."""
        self.progress.events += 1
        return atomic(
            self.memory, operation, space, address, operands, kind, guard, group, order=order
        )

    def fence(self, lanes: Array, *, acquires: bool, releases: bool) -> None:
        """Take note of a memory-order fence of some lanes; without a watch the order is that in which they run."""
        if self.memory.races is not None:
            self.memory.races.fence(lanes, acquires=acquires, releases=releases)

    def fence_mbarriers(self, lanes: Array) -> None:
        """Take note of a ``fence.mbarrier_init`` of some lanes."""
        if self.memory.races is not None:
            self.memory.races.fence_mbarriers(lanes)

    def fence_proxy(self, lanes: Array) -> None:
        """Take note of a ``fence.proxy.async`` of some lanes."""
        clusters = np.unique(self.lanes.cluster[self.lanes.block[lanes]])
        self.memory.generic.fence(np.nonzero(np.isin(self.lanes.cluster, clusters))[0])
        if self.memory.races is not None:
            self.memory.races.fence_proxy(lanes)

    def copy_async(
        self,
        target: Any,
        source: Any,
        width: int,
        operands: Any,
        ignored: Any,
        guard: Array | None,
        group: Group,
    ) -> None:
        """Issue a ``cp.async`` of ``width`` bytes, of which ``given`` are read (None: all; none if ``ignored``)."""
        count = (
            np.full(group.n, width) if operands is None else group.all(operands).astype(np.int64)
        )
        if ignored is not None:
            count = np.where(ignored, 0, count)
        # Not registers themselves: those may change before a late copy is done.
        target, source = np.array(group.all(target)), np.array(group.all(source))
        part = group
        if guard is not None:
            guard = group.all(guard)
            if not guard.any():
                return
            part, target, source, count = (
                group.part(guard),
                target[guard],
                source[guard],
                count[guard],
            )
        if (count > width).any() or (count < 0).any():
            raise FaultError(
                f"cp.async of {int(count.max())} of {width} bytes", CudaError.INVALID_VALUE
            )
        self.progress.events += 1
        if self.memory.races is not None:
            steps = self.copies.steps(part.lanes)
            self.memory.races.copied(target, width, part.lanes, steps)

        def work(mask: Array) -> None:
            self.memory.copy(target[mask], source[mask], count[mask], width, part.part(mask))

        self.copies.issue(part.lanes, work)

    def trap(self, text: str, guard: Array | None, group: Group) -> None:
        """End the kernel where any lane takes part.

        Raises:
            FaultError: One does.
        """
        for place in group.active(guard):
            who = self.lanes.describe_thread(int(group.lanes[place]))
            raise FaultError(f"{who} runs {text}", CudaError.LAUNCH_FAILURE)

    def call(self, text: str, guard: Array | None, group: Group) -> None:
        """Refuse the call of a device function, where any lane takes part.

        Raises:
            FaultError: It is a failed assertion.
            UnmodelledError: It is another function.
        """
        for place in group.active(guard):
            who = self.lanes.describe_thread(int(group.lanes[place]))
            if "__assert" in text:
                raise FaultError(f"an assertion of {who} failed: {text}", CudaError.ASSERT)
            raise UnmodelledError(f"{who} calls a device function, which is not known: {text}")

    def finish(self) -> list[str]:
        """Do what nobody has waited for, and return what there was, in lines.

        Raises:
            FaultError: Something was overwritten that it reads, tensor memory was not given back, or a block may have ended
                before another one touched it.
        """
        if self.memory.watch is not None:
            self.memory.watch.ends.check()
        for block, used in self.columns.items():
            for left in used.values():
                raise FaultError(
                    f"block {tuple(self.lanes.position[block].tolist())} has ended without tcgen05.dealloc of "
                    f"{sum(each.columns for each in used.values())} columns",
                    place=str(left.origin),
                )
        return [
            *self.products.finish(),
            *self.stores.finish(),
            *self.copies.finish(),
            *self.tensor_products.finish(),
            *self.loads.finish(),
        ]
