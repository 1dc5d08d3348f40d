"""A kernel that is ready to run: a Python function for each basic block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.ptx.syntax import Function, Instruction

BlockFunction: TypeAlias = Callable[[Any, dict[int, Array], Any], Any]
"""Takes the wave, the registers and the group; returns for each lane whether (or where) it branches."""


@dataclass(frozen=True)
class Program:
    """A compiled kernel.

    Attributes:
        function: What it was compiled from.
        blocks: The function of each block; None for barriers, which the machine itself runs.
        registers: (number, PTX type) of the registers that outlive a block.
        together: Whether all lanes of a warp run a block together.
        warp_groups: Whether all lanes of four warps do.
        tracked: Numbers of the registers that ``wgmma`` instructions use.
        instructions: The instruction of each line of ``text``.
        issuers: The instructions that may issue something or touch shared memory, by the number that ``text`` has for each.
        text: The Python text.
        filename: The name under which it was compiled, as tracebacks have it.
    """

    function: Function
    blocks: tuple[BlockFunction | None, ...]
    registers: tuple[tuple[int, str], ...]
    together: tuple[bool, ...]
    warp_groups: tuple[bool, ...]
    tracked: tuple[int, ...]
    instructions: dict[int, Instruction]
    issuers: tuple[Instruction, ...]
    text: str
    filename: str
