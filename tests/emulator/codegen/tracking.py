"""Which registers ``wgmma`` instructions use, and the checks of all other instructions that touch them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tests.emulator.codegen.writer import Writer
from tests.emulator.ptx.liveness import read, written
from tests.emulator.ptx.syntax import Function, Instruction, Vector, registers_of

PRODUCT = ("wgmma", "mma_async")


@dataclass(frozen=True)
class Tracked:
    """Registers of a function that products use, by number.

    Attributes:
        accumulators: Those a product writes.
        inputs: Those it reads A from.
    """

    accumulators: frozenset[int]
    inputs: frozenset[int]

    @property
    def all(self) -> tuple[int, ...]:
        """All of them, in order; their places are the rows of `PendingProducts`."""
        return tuple(sorted(self.accumulators | self.inputs))


def _registers_of_a(instruction: Instruction) -> set[int]:
    a = instruction.operands[1]
    return {register.number for register in registers_of(a)} if isinstance(a, Vector) else set()


def tracked(function: Function) -> Tracked:
    """Return the registers that the products of a function use."""
    products = [
        instruction
        for block in function.blocks
        for instruction in block.code
        if instruction.parts[:2] == PRODUCT
    ]
    results = {register.number for each in products for register in written(each)}
    inputs = {number for each in products for number in _registers_of_a(each)}
    return Tracked(frozenset(results), frozenset(inputs))


class Tracker:
    """Writes the checks of one block."""

    def __init__(self, registers: Tracked) -> None:
        self._registers = registers
        self._rows = {number: row for row, number in enumerate(registers.all)}
        self._written: dict[int, None] = {}
        self._since_fence: set[int] | None = None

    def before(self, writer: Writer, instruction: Instruction) -> None:
        """Write what has to be checked before an instruction, and remember what it writes."""
        if not self._rows:
            return
        results = {register.number for register in written(instruction)}
        if instruction.parts[:2] == PRODUCT:
            inputs = _registers_of_a(instruction)
            self._check(writer, inputs & self._registers.accumulators)
            self.end(writer)
            writer.emit(f"w.products.issue({self._constant(writer, results | inputs)}, g)")
            return
        if instruction.parts[:2] == ("wgmma", "fence"):
            self._written.clear()  # the fence orders them
            self._since_fence = set()
            return
        touched = results | {register.number for register in read(instruction)}
        wrong = (touched & self._registers.accumulators) | (results & self._registers.inputs)
        self._check(writer, wrong)
        if self._is_copy(instruction):
            return
        if self._since_fence is not None:
            self._since_fence |= results
        self._written |= dict.fromkeys(number for number in results if number in self._rows)

    def _is_copy(self, instruction: Instruction) -> bool:
        """Return whether it copies what was there before the last fence of this block.

        LLVM copies the first values of accumulators between Triton's fence and its ``wgmma``, and ptxas makes one register of both.
        """
        sources = {register.number for register in read(instruction)}
        known = self._since_fence
        is_move = instruction.parts[0] == "mov" and bool(sources)
        return is_move and known is not None and not sources & known

    def end(self, writer: Writer) -> None:
        """Write which registers were written since the last fence; a product may follow in another block."""
        if self._written:
            writer.emit(f"w.products.wrote({self._constant(writer, self._written)}, g)")
            self._written.clear()

    def _check(self, writer: Writer, numbers: Iterable[int]) -> None:
        if numbers := set(numbers):
            rows = self._constant(writer, numbers)
            writer.emit(f"if w.products.flying: w.products.check({rows}, g)")

    def _constant(self, writer: Writer, numbers: Iterable[int]) -> str:
        return writer.constant(np.array(sorted(self._rows[number] for number in numbers)))
