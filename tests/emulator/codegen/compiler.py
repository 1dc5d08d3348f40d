"""A PTX function as a `Program`: one Python function for each basic block."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.emulator.arithmetic import floats, formats, integers
from tests.emulator.arithmetic.arrays import flat
from tests.emulator.codegen import (
    arithmetic,
    blackwell,
    control,
    conversion,
    copies,
    functions,
    logic,
    movement,
    warps,
)
from tests.emulator.codegen.opcode import Opcode, space_of
from tests.emulator.codegen.tracking import Tracker, tracked
from tests.emulator.codegen.writer import UnknownError, Writer
from tests.emulator.machine import asynchronous
from tests.emulator.machine.program import BlockFunction, Program
from tests.emulator.memory import memory
from tests.emulator.ptx.liveness import Liveness, liveness
from tests.emulator.ptx.syntax import Block, Function, Instruction
from tests.emulator.tensor import cluster_launch, mma, tcgen05, tensor_memory, tma, wgmma
from tests.emulator.threads import warp

OPCODES: dict[str, Opcode] = {
    **control.OPCODES,
    **arithmetic.OPCODES,
    **functions.OPCODES,
    **logic.OPCODES,
    **conversion.OPCODES,
    **movement.OPCODES,
    **warps.OPCODES,
    **copies.OPCODES,
    **blackwell.OPCODES,
}
"""All that is known, by the first word of the opcode."""

_NAMES: dict[str, Any] = {
    "asynchronous": asynchronous,
    "np": np,
    "flat": flat,
    "floats": floats,
    "formats": formats,
    "integers": integers,
    "memory": memory,
    "warp": warp,
    "mma": mma,
    "wgmma": wgmma,
    "tcgen05": tcgen05,
    "tensor_memory": tensor_memory,
    "cluster_launch": cluster_launch,
    "tma": tma,
}
"""What generated text may name."""


def is_together(instruction: Instruction) -> bool:
    """Return whether an instruction needs all lanes of its warp."""
    if instruction.name in ("tcgen05", "tensormap", "barrier"):
        return instruction.has("aligned")
    known = OPCODES.get(instruction.name)
    return known is not None and (known.together or instruction.has("aligned"))


def _write(writer: Writer, instruction: Instruction) -> None:
    known = OPCODES.get(instruction.name)
    if known is None:
        raise UnknownError(f"opcode {instruction.opcode} is not known")
    known.check(instruction)
    warps.check_lanes(writer, instruction)
    known.write(writer, instruction)


_ISSUERS = (
    *("ld", "ldu", "st", "atom", "red", "ldmatrix", "stmatrix", "cp"),
    *("wgmma", "tcgen05", "clusterlaunchcontrol", "mbarrier", "tensormap"),
)
"""First words of what may issue something or touch memory that is watched."""


def _is_issuer(instruction: Instruction) -> bool:
    """Return whether reports may name an instruction when it is over."""
    if instruction.name in ("ld", "ldu", "st", "atom", "red"):
        return space_of(instruction) in ("shared", "generic", "global")
    return instruction.name in _ISSUERS


class _Text:
    """The text of all blocks, with the instruction of each line, and those that `Issuer` knows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.instructions: dict[int, Instruction] = {}
        self.issuers: list[Instruction] = []

    def add(self, line: str, instruction: Instruction | None = None) -> None:
        self.lines.append(line)
        if instruction is not None:
            self.instructions[len(self.lines)] = instruction


def _block(
    text: _Text,
    writer: Writer,
    block: Block,
    alive: Liveness,
    tracker: Tracker,
) -> None:
    """Write the function of a block.

    Raises:
        UnknownError: It has an instruction that is not known; the message names it and its line.
    """
    text.add(f"def b{block.number}(w, R, g):")
    text.add("    s = g.s; n = g.n")
    written = 0
    for instruction in block.code:
        if _is_issuer(instruction):
            writer.emit(f"w.issuer.begin({len(text.issuers)}, g)")
            text.issuers.append(instruction)
        try:
            tracker.before(writer, instruction)
            _write(writer, instruction)
        except (UnknownError, KeyError, ValueError, IndexError, StopIteration) as error:
            reason = str(error) if isinstance(error, UnknownError) else repr(error)
            raise UnknownError(f"{instruction.place}: {instruction.text}: {reason}") from error
        for line in writer.lines[written:]:
            text.add(f"    {line}", instruction)
        written = len(writer.lines)
    tracker.end(writer)
    for line in writer.lines[written:]:
        text.add(f"    {line}", block.code[-1])
    for register in writer.results:
        if alive.out[block.number] >> register.number & 1:
            text.add(f"    R[{register.number}][s] = v{register.number}")
    if writer.leaves:
        text.add(f"    return {writer.leaves}", block.code[-1])


def compiled(function: Function, symbols: Mapping[str, tuple[str, int]]) -> Program:
    """Return a function ready to run.

    Args:
        function: What is compiled.
        symbols: Space and address of each variable it may name; for ``param`` and ``local`` its offset.

    Raises:
        UnknownError: It has an instruction that is not known.
    """
    alive = liveness(function)
    text, constants = _Text(), list[Any]()
    registers = tracked(function)
    for block in function.blocks:
        if block.end != "barrier":
            writer, tracker = Writer(symbols, constants), Tracker(registers)
            _block(text, writer, block, alive, tracker)
    joined = "\n".join(text.lines) + "\n"
    short = re.sub(r"\W", "_", function.name)[:60]
    filename = f"<ptx {short} {abs(hash(joined)):x}>"
    names: dict[str, Any] = {**_NAMES, "K": constants}
    exec(compile(joined, filename, "exec"), names)  # its own text
    functions_of_blocks: list[BlockFunction | None] = [
        names.get(f"b{block.number}") for block in function.blocks
    ]
    kept = alive.kept
    return Program(
        function,
        tuple(functions_of_blocks),
        tuple((r.number, r.type) for r in function.registers.values() if kept >> r.number & 1),
        tuple(any(is_together(each) for each in block.code) for block in function.blocks),
        tuple(
            any(each.parts[:2] == ("wgmma", "mma_async") for each in block.code)
            for block in function.blocks
        ),
        registers.all,
        text.instructions,
        tuple(text.issuers),
        joined,
        filename,
    )
