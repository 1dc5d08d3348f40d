"""What PTX text says, as records: operands, instructions, functions, modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias


class PtxError(Exception):
    """Text that is no PTX, or PTX that the emulator does not know; the message has its line."""


@dataclass(frozen=True)
class Register:
    """A virtual register; names of inner scopes have a prefix.

    Attributes:
        name: Its name, unique in the function.
        type: Its PTX type.
        number: Its place among the registers of the function.
    """

    name: str
    type: str
    number: int


@dataclass(frozen=True)
class Immediate:
    """A number in the text.

    Attributes:
        value: The number.
        type: ``int``, or the type a float is written in: ``f32`` (0f...), ``f64`` (0d..., decimal).
    """

    value: int | float
    type: Literal["int", "f32", "f64"]


@dataclass(frozen=True)
class Symbol:
    """The name of a variable, label or special register, with an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """``[base + offset]``, or with coordinates of a tensor ``[base, {x, y}]``."""

    base: Operand
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Vector:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Negated:
    """``!p``."""

    register: Register


Operand: TypeAlias = Register | Immediate | Symbol | Address | Vector | Negated

SINK = Symbol("_")
"""A result that nobody wants."""


def registers_of(operand: Operand) -> Iterator[Register]:
    """Yield the registers in an operand."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Negated):
        yield operand.register
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Address):
        yield from registers_of(operand.base)
        for item in operand.coordinates:
            yield from registers_of(item)


@dataclass(frozen=True)
class Place:
    """Where an instruction comes from.

    Attributes:
        line: Line of the PTX text, from 1.
        source: ``FILE:LINE`` of the nearest ``.loc`` before it, or empty.
    """

    line: int
    source: str = ""

    def __str__(self) -> str:
        return f"PTX line {self.line}" + (f" ({self.source})" if self.source else "")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        parts: The opcode, cut at its dots: ``("ld", "shared::cta", "b32")``.
        operands: The operands in order.
        guard: Lanes where this predicate is false do nothing; None if all lanes take part.
        negated: Whether they do nothing where it is true, instead.
        pair: The second result of ``setp p|q`` or ``shfl d|p``.
        text: The text, in one line.
        place: Where it comes from.
    """

    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    pair: Operand | None
    text: str
    place: Place

    @property
    def name(self) -> str:
        """The first part of the opcode."""
        return self.parts[0]

    @property
    def opcode(self) -> str:
        """The opcode as it is written."""
        return ".".join(self.parts)

    @property
    def type(self) -> str:
        """The last part of the opcode: for most, the type of the operands."""
        return self.parts[-1]

    def has(self, part: str) -> bool:
        """Return whether the opcode has a part."""
        return part in self.parts


@dataclass(frozen=True)
class Variable:
    """A declared variable or parameter.

    Attributes:
        name: Its name.
        space: ``global``, ``const``, ``shared``, ``local`` or ``param``.
        size: Bytes; 0 for dynamic shared memory.
        align: Alignment in bytes.
        initial: The first bytes of its value; zeros follow.
    """

    name: str
    space: str
    size: int
    align: int
    initial: bytes = b""


BlockEnd: TypeAlias = Literal["fall", "jump", "branch", "table", "exit", "exit_if", "barrier"]


@dataclass(frozen=True)
class Block:
    """Straight-line code.

    Attributes:
        number: Its place in the function.
        code: The instructions; the last one may leave the block.
        end: How it is left: ``fall`` goes on behind it, ``jump`` to the target, ``branch`` to the target
            where the guard holds, ``table`` to one of the targets, ``exit`` ends the threads, ``exit_if``
            where the guard holds. A ``barrier`` is alone in its block, for threads may have to wait in it.
        targets: Numbers of the blocks that a jump, branch or table leads to.
        following: Number of the block behind it, None for the last one.
    """

    number: int
    code: tuple[Instruction, ...]
    end: BlockEnd
    targets: tuple[int, ...]
    following: int | None

    @property
    def successors(self) -> tuple[int, ...]:
        """Numbers of the blocks that may run next."""
        if self.end == "exit":
            return ()
        if self.end in ("jump", "table"):
            return self.targets
        behind = () if self.following is None else (self.following,)
        return (*behind, *self.targets)


@dataclass(frozen=True)
class Function:
    """A kernel, or a device function.

    Attributes:
        name: Its mangled name.
        entry: Whether it can be launched.
        parameters: Its parameters in order.
        registers: All registers by name.
        locals: Variables in local memory by name.
        shared: Variables in shared memory by name.
        limits: Numbers of ``.maxntid``, ``.reqntid``, ``.minnctapersm``, ``.reqnctapercluster`` and others.
        blocks: The code.
    """

    name: str
    entry: bool
    parameters: tuple[Variable, ...]
    registers: Mapping[str, Register]
    locals: Mapping[str, Variable]
    shared: Mapping[str, Variable]
    limits: Mapping[str, tuple[int, ...]]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Module:
    """One text of PTX.

    Attributes:
        target: The architecture it is for: ``sm_90a``.
        functions: By name.
        variables: Global and constant variables by name.
        shared: Variables in shared memory outside of functions, by name.
    """

    target: str
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    shared: dict[str, Variable] = field(default_factory=dict[str, Variable])
