"""Which registers ``tcgen05.ld`` instructions write, and the checks of all other instructions that touch them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tests.emulator.codegen.writer import Writer
from tests.emulator.ptx.liveness import read, written
from tests.emulator.ptx.syntax import Function, Instruction

_LOAD, _WAIT = ("tcgen05", "ld"), ("tcgen05", "wait::ld")


def _numbers(results: bool, instruction: Instruction) -> set[int]:
    registers = written(instruction) if results else read(instruction)
    return {register.number for register in registers}


def _is_copy(instruction: Instruction) -> bool:
    return instruction.name == "mov" and instruction.guard is None


def loaded(function: Function) -> tuple[int, ...]:
    """Return the numbers of the registers that loads from tensor memory write, and of copies of these."""
    code = [instruction for block in function.blocks for instruction in block.code]
    numbers = {n for each in code if each.parts[:2] == _LOAD for n in _numbers(True, each)}
    copies = [(_numbers(True, each), _numbers(False, each)) for each in code if _is_copy(each)]
    known = -1
    while numbers and known != len(numbers):
        known = len(numbers)
        for targets, sources in copies:
            if sources & numbers:
                numbers |= targets
    return tuple(sorted(numbers))


class TensorTracker:
    """Writes the checks of instructions; the places of registers in ``loaded`` are the rows of `PendingTensorLoads`."""

    def __init__(self, registers: tuple[int, ...]) -> None:
        self._rows = {number: row for row, number in enumerate(registers)}

    def before(self, writer: Writer, instruction: Instruction) -> None:
        """Write what has to be checked before an instruction."""
        if not self._rows:
            return
        results = _numbers(True, instruction) & self._rows.keys()
        sources = _numbers(False, instruction) & self._rows.keys()
        if instruction.parts[:2] == _LOAD:
            self._check(writer, sources - results)
            rows = self._constant(writer, results)
            writer.emit(f"w.tensor_loads.issue({rows}, g, {writer.guard(instruction)})")
        elif instruction.parts[:2] == _WAIT:
            writer.emit(f"w.tensor_loads.wait(g, {writer.guard(instruction)})")
        elif _is_copy(instruction) and sources:
            rows = f"{self._constant(writer, results)}, {self._constant(writer, sources)}"
            writer.emit(f"if w.tensor_loads.flying: w.tensor_loads.copy({rows}, g)")
        else:
            self._check(writer, results | sources)

    def _check(self, writer: Writer, numbers: set[int]) -> None:
        if numbers:
            rows = self._constant(writer, numbers)
            writer.emit(f"if w.tensor_loads.flying: w.tensor_loads.check({rows}, g)")

    def _constant(self, writer: Writer, numbers: Iterable[int]) -> str:
        return writer.constant(np.array(sorted(self._rows[number] for number in numbers)))
