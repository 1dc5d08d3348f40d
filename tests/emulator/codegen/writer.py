"""Writes Python text for a basic block: its instructions over numpy arrays, an element for each lane of a group.

A register is a local variable ``v<number>`` while its block runs. What is read before it is written comes from the
arrays of the wave (``R``); what a later block reads goes back there at the end. In the text ``w`` is the wave, ``g`` the
group, ``s`` what selects its lanes, ``n`` how many they are, ``K`` constants.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.emulator.ptx.syntax import (
    SINK,
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    PtxError,
    Register,
    Symbol,
    Vector,
)
from tests.emulator.ptx.types import ITEM, register_type, unsigned, value_type


class UnknownError(PtxError):
    """An instruction that the emulator does not know."""


def numpy_name(kind: str) -> str:
    """Return how a numpy type is written in generated text."""
    return "bool" if kind == "bool" else f"np.{kind}"


class Writer:
    """Collects the lines of one block.

    Attributes:
        constants: Values that the text names ``K[i]``; shared by all blocks of a function.
        lines: The text so far.
        results: Registers that were written, in order.
        leaves: Expression for which lanes leave at the end, and empty if the block ends otherwise.
    """

    def __init__(self, symbols: Mapping[str, tuple[str, int]], constants: list[Any]) -> None:
        self._symbols, self.constants = symbols, constants
        self.lines: list[str] = []
        self.results: dict[Register, None] = {}
        self.leaves = ""
        self._known: set[int] = set()
        self._temporaries = 0
        self.instruction: Instruction | None = None

    def emit(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def temporary(self, text: str) -> str:
        """Compute an expression once, and return its name."""
        self._temporaries += 1
        self.emit(f"t{self._temporaries} = {text}")
        return f"t{self._temporaries}"

    def constant(self, value: Any) -> str:
        """Return an expression for a value."""
        self.constants.append(value)
        return f"K[{len(self.constants) - 1}]"

    # Operands

    def register(self, register: Register) -> str:
        """Return the variable of a register, loaded if this block has not seen it yet."""
        name = f"v{register.number}"
        if register.number not in self._known:
            self.emit(f"{name} = R[{register.number}][s]")
            self._known.add(register.number)
        return name

    def value(self, operand: Operand, kind: str, *, array: bool = False) -> str:
        """Return an expression of an operand as numpy type of PTX type ``kind``.

        Args:
            operand: The operand.
            kind: How its bits are understood.
            array: Whether a number has to be an array, too: operations of two numbers overflow otherwise.
        """
        wanted = value_type(kind)
        if isinstance(operand, Register):
            return self._register_as(operand, wanted)
        if isinstance(operand, Negated):
            return f"(~{self.register(operand.register)})"
        if isinstance(operand, Immediate):
            text = self.immediate(operand, wanted)
            return f"np.full(n, {text}, {numpy_name(wanted)})" if array else text
        if isinstance(operand, Symbol):
            return self.symbol(operand, kind)
        raise UnknownError(f"the operand {operand} is no value")

    def _register_as(self, register: Register, wanted: str) -> str:
        have, name = register_type(register.type), self.register(register)
        if have == wanted:
            return name
        if ITEM[have] == ITEM[wanted]:
            return f"{name}.view({numpy_name(wanted)})"
        if ITEM[have] < ITEM[wanted]:
            raise UnknownError(f"register {register.name} is too narrow for {wanted}")
        bits = f"{name}.view({numpy_name(unsigned(ITEM[have]))})" if "float" in have else name
        narrow = unsigned(ITEM[wanted])
        text = f"{bits}.astype({numpy_name(narrow)})"
        return text if narrow == wanted else f"{text}.view({numpy_name(wanted)})"

    def immediate(self, operand: Immediate, wanted: str) -> str:
        """Return a number of a numpy type; a float for an integer type gives its bits."""
        value = operand.value
        if wanted == "bool":
            return str(bool(value))
        if wanted.startswith("float"):
            return self.constant(np.dtype(wanted).type(value))
        if operand.type == "f32":
            value = struct.unpack("<I", struct.pack("<f", value))[0]
        elif operand.type == "f64":
            value = struct.unpack("<Q", struct.pack("<d", value))[0]
        bits = 8 * ITEM[wanted]
        value = int(value) & ((1 << bits) - 1)
        if wanted.startswith("int") and value >> (bits - 1):
            value -= 1 << bits
        return f"({value})"

    def symbol(self, symbol: Symbol, kind: str) -> str:
        """Return the value of a special register, or the address of a variable."""
        wanted = value_type(kind)
        if symbol.name.startswith("%"):
            return f"w.special.read({symbol.name[1:]!r}, g).astype({numpy_name(wanted)})"
        space, address = self.place_of(symbol)
        address += symbol.offset
        if space == "shared":
            wide = "np.uint64" if ITEM[wanted] == 8 else "np.uint32"
            return f"(w.lanes.shared_base[g.lanes] + {address}).astype({wide})"
        if space == "param":
            return f"np.full(n, w.memory.parameters + {address}, np.uint64)"
        if space == "local":
            return f"np.full(n, {address}, {numpy_name(wanted)})"
        return f"np.full(n, {address}, np.uint64)"

    def place_of(self, symbol: Symbol) -> tuple[str, int]:
        """Return space and address (or offset) of a variable.

        Raises:
            UnknownError: There is none of this name.
        """
        if symbol.name not in self._symbols:
            raise UnknownError(f"there is no variable {symbol.name}")
        return self._symbols[symbol.name]

    def address(self, operand: Operand, kind: str = "u64") -> str:
        """Return an expression of an address: uint32 in shared memory, else uint64."""
        if not isinstance(operand, Address):
            raise UnknownError(f"the operand {operand} is no address")
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            text = self.register(base)
            if not offset:
                return text
            return f"({text} {'+' if offset > 0 else '-'} {abs(offset)})"
        if isinstance(base, Immediate):
            wide = numpy_name(value_type(kind))
            return f"np.full(n, {int(base.value) + offset}, {wide})"
        if isinstance(base, Symbol):
            return self.symbol(Symbol(base.name, base.offset + offset), kind)
        raise UnknownError(f"the address {operand} has no base")

    def tuple_of(self, operand: Operand, kind: str = "b32") -> str:
        """Return an expression of a vector's elements as a tuple of arrays."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return "(" + "".join(f"{self.value(item, kind, array=True)}, " for item in items) + ")"

    def guard(self, instruction: Instruction) -> str:
        """Return an expression for the lanes that take part, ``None`` for all."""
        if instruction.guard is None:
            return "None"
        return ("~" if instruction.negated else "") + self.register(instruction.guard)

    # Results

    def put(self, instruction: Instruction, target: Operand | None, text: str, kind: str) -> None:
        """Write a result of PTX type ``kind`` to a register; lanes outside of the guard keep their value."""
        if target is None or target == SINK:
            return
        if not isinstance(target, Register):
            raise UnknownError(f"the result {target} is no register")
        text = _converted(text, value_type(kind), register_type(target.type))
        if instruction.guard is not None:
            text = f"np.where({self.guard(instruction)}, {text}, {self.register(target)})"
        self.emit(f"v{target.number} = {text}")
        self._known.add(target.number)
        self.results[target] = None

    def put_all(self, instruction: Instruction, target: Operand, name: str, kind: str) -> None:
        """Write the elements of a list to the registers of a vector."""
        items = target.items if isinstance(target, Vector) else (target,)
        for place, item in enumerate(items):
            self.put(instruction, item, f"{name}[{place}]", kind)


def _converted(text: str, have: str, want: str) -> str:
    """Return an expression of a numpy type as a register's, bits kept; narrower integers are extended by their sign."""
    if have == want:
        return text
    if ITEM[have] == ITEM[want]:
        return f"({text}).view({numpy_name(want)})"
    if ITEM[have] < ITEM[want] and have.startswith("int"):
        wide = f"int{8 * ITEM[want]}"
        return f"({text}).astype({numpy_name(wide)}).view({numpy_name(want)})"
    return f"({text}).astype({numpy_name(want)})"
