"""The environment of a timed process."""

from __future__ import annotations

import compileall
import functools
import os

from benchmarks.harness.repository import REPOSITORY
from benchmarks.harness.sources import PLUGIN

_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def child_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with variables added, for a process that finds the plugin's bytecode.

    An installed package has it. In a checkout without it, each process compiles 350 sources of the plugin
    (0.35 s of 4 s of a warm compile), and none of PyTorch's.
    """
    _write_bytecode()
    kept = {name: text for name, text in os.environ.items() if name != _NO_BYTECODE}
    return kept | variables


@functools.cache
def _write_bytecode() -> None:
    """Compile the plugin's sources; where the folder cannot be written, the figures include their compilation."""
    for folder in PLUGIN:
        compileall.compile_dir(str(REPOSITORY / folder), quiet=2)
