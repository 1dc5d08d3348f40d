"""Which tensor core instructions a compiled kernel has, read from its machine code by cuobjdump."""

from __future__ import annotations

import re
from pathlib import Path

from inductor_plugin.kernels.cuobjdump import dumped

_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"\b(HGMMA|QGMMA|IGMMA|UTC\w*MMA|HMMA|QMMA|IMMA)\b")
"""wgmma for Hopper by element (16 and 19 bits, 8-bit floats, int8), tcgen05 for Blackwell, mma.sync."""


def parse_sass(text: str) -> dict[str, frozenset[str]]:
    """Return the tensor core instructions of each function in ``cuobjdump -sass``'s output."""
    functions: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            current = functions.setdefault(match[1], set())
        elif match := _INSTRUCTION.search(line):
            current.add(match[1])
    return {name: frozenset(instructions) for name, instructions in functions.items()}


def instructions(path: Path) -> dict[str, frozenset[str]] | str:
    """Return the tensor core instructions of each function of a library, or why they are unknown.

    Args:
        path: The library or cubin.
    """
    return dumped("-sass", path, parse_sass)
