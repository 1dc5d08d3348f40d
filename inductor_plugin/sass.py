"""Which tensor core instructions a compiled kernel has, read from its machine code by cuobjdump."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from inductor_plugin.resources import cuobjdump

_TIMEOUT_S = 300
_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"\b(HGMMA|QGMMA|IGMMA|UTC\w*MMA|HMMA|QMMA|IMMA)\b")
"""wgmma for Hopper by element (16 and 19 bits, 8-bit floats, int8), tcgen05 for Blackwell, mma.sync."""


def parse_sass(text: str) -> dict[str, frozenset[str]]:
    """Return the tensor core instructions of each function in ``cuobjdump -sass``'s output."""
    found: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            current = found.setdefault(match[1], set())
        elif match := _INSTRUCTION.search(line):
            current.add(match[1])
    return {name: frozenset(instructions) for name, instructions in found.items()}


def instructions(path: Path, tool: Path | None = None) -> dict[str, frozenset[str]] | str:
    """Return the tensor core instructions of each function of a library, or why they are not known.

    Args:
        path: The library or cubin.
        tool: cuobjdump; looked for if not given.
    """
    found = tool or cuobjdump()
    if found is None:
        return "cuobjdump was not found beside nvcc, on the path, or in Triton"
    try:
        done = subprocess.run(
            [found, "-sass", path],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{found} did not run: {error}"
    functions = parse_sass(done.stdout)
    if done.returncode != 0 or not functions:
        said = (done.stderr or done.stdout).strip().splitlines()
        return f"{path.name} shows no kernels: {said[-1] if said else 'no output'}"
    return functions
