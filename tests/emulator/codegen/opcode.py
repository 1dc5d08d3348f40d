"""What is known of an opcode: who writes it, and which words may follow its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.emulator.codegen.writer import UnknownError, Writer
from tests.emulator.ptx.syntax import Instruction
from tests.emulator.ptx.types import is_type

Write: TypeAlias = Callable[[Writer, Instruction], None]


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


SPACES = words(
    "global shared local param const shared::cta shared::cluster param::entry param::func generic"
)
"""Words for a space of memory."""
ORDER = words("weak volatile relaxed acquire release acq_rel sc mmio cta cluster gpu sys")
"""Words for memory order, which a machine that runs one instruction at a time keeps anyway."""
CACHING = words(
    "ca cg cs lu cv wb wt nc L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate "
    "L2::evict_normal L2::evict_first L2::evict_last L2::cache_hint L2::64B L2::128B L2::256B"
)
"""Words for caches, which change no value."""


@dataclass(frozen=True)
class Opcode:
    """One family of instructions.

    Attributes:
        write: Writes one of them.
        words: Words besides types that may follow the name.
        together: Whether all lanes of a warp have to be there.
        types: Most types in it; more change what its operands are.
    """

    write: Write
    words: frozenset[str] = field(default_factory=frozenset[str])
    together: bool = False
    types: int = 4

    def check(self, instruction: Instruction) -> None:
        """Check that each word of an opcode is known.

        Raises:
            UnknownError: One is not, or there are more types than are known.
        """
        types = [word for word in instruction.parts[1:] if is_type(word)]
        if len(types) > self.types:
            raise UnknownError(f"opcode {instruction.opcode}: types {' and '.join(types)} together")
        unknown = [
            word for word in instruction.parts[1:] if word not in self.words and not is_type(word)
        ]
        if unknown:
            raise UnknownError(f"opcode {instruction.opcode}: .{' .'.join(unknown)} is not known")


def opcode(
    write: Write, text: str = "", *more: frozenset[str], together: bool = False, types: int = 4
) -> Opcode:
    """Return an opcode whose words are given in one text, and in sets."""
    return Opcode(write, words(text).union(*more), together, types)


def space_of(instruction: Instruction) -> str:
    """Return the space an instruction names, ``generic`` if none."""
    for part in instruction.parts:
        base = part.partition("::")[0]
        if base in ("global", "shared", "local", "param", "const"):
            return base
    return "generic"


def vector_length(instruction: Instruction) -> int:
    """Return how many elements ``.v2``, ``.v4`` or ``.v8`` says, else 1."""
    parts = [part for part in instruction.parts if part in ("v2", "v4", "v8")]
    return int(parts[0][1:]) if parts else 1


def chosen(instruction: Instruction, among: str, default: str = "") -> str:
    """Return the first of some words that an opcode has."""
    parts = [part for part in instruction.parts[1:] if part in among.split()]
    return parts[0] if parts else default
