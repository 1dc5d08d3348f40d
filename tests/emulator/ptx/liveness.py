"""Which registers outlive which block: only those are stored."""

from __future__ import annotations

from dataclasses import dataclass

from tests.emulator.ptx.syntax import (
    SINK,
    Function,
    Instruction,
    Register,
    Vector,
    registers_of,
)

_WITHOUT_RESULT = (
    "st bra brx ret exit red stmatrix fence membar prefetch prefetchu barrier bar setmaxnreg cp nanosleep trap "
    "call tensormap griddepcontrol discard applypriority pmevent multimem brkpt"
)
_WITHOUT_RESULT_OF = {
    "mbarrier": ("init", "inval", "expect_tx", "complete_tx"),
    "wgmma": ("fence", "commit_group", "wait_group"),
    "clusterlaunchcontrol": ("try_cancel",),
}


@dataclass(frozen=True)
class Liveness:
    """Registers as bits of a number, for each block.

    Attributes:
        into: Registers that the block, or code behind it, reads before it writes them.
        out: Registers that code behind the block reads.
    """

    into: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def kept(self) -> int:
        """Registers that outlive any block."""
        together = 0
        for bits in (*self.into, *self.out):
            together |= bits
        return together


def written(instruction: Instruction) -> list[Register]:
    """Return the registers an instruction writes."""
    pair = [instruction.pair] if isinstance(instruction.pair, Register) else []
    if not _has_result(instruction) or not instruction.operands:
        return pair
    return [*registers_of(instruction.operands[0]), *pair]


def _has_result(instruction: Instruction) -> bool:
    name = instruction.name
    if name in ("bar", "barrier") and instruction.has("red"):
        return True
    if name == "tcgen05":
        return instruction.parts[1] == "ld"
    if name in _WITHOUT_RESULT_OF:
        return instruction.parts[1] not in _WITHOUT_RESULT_OF[name]
    return name not in _WITHOUT_RESULT.split()


def read(instruction: Instruction) -> list[Register]:
    """Return the registers an instruction reads; under a guard those it writes, too: they may keep their value."""
    results = written(instruction)
    operands = instruction.operands
    accumulates = instruction.parts[:2] == ("wgmma", "mma_async")
    first_is_result = operands and (
        (results and isinstance(operands[0], (Register, Vector))) or operands[0] == SINK
    )
    begin = 1 if first_is_result and not accumulates else 0
    registers = [register for operand in operands[begin:] for register in registers_of(operand)]
    if instruction.guard is not None:
        registers += [instruction.guard, *results]
    return registers


def liveness(function: Function) -> Liveness:
    """Return which registers are needed around each block, as data flow from the end to the beginning."""
    used: list[int] = []
    defined: list[int] = []
    for block in function.blocks:
        use = define = 0
        for instruction in block.code:
            for register in read(instruction):
                use |= (1 << register.number) & ~define
            if instruction.guard is None:
                for register in written(instruction):
                    define |= 1 << register.number
        used.append(use)
        defined.append(define)
    into, out = list(used), [0] * len(used)
    changed = True
    while changed:
        changed = False
        for block in reversed(function.blocks):
            behind = 0
            for successor in block.successors:
                behind |= into[successor]
            number = block.number
            before = used[number] | behind & ~defined[number]
            if behind != out[number] or before != into[number]:
                into[number], out[number], changed = before, behind, True
    return Liveness(tuple(into), tuple(out))
