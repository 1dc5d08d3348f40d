"""The environment of a measured process."""

from __future__ import annotations

import compileall
import functools
import os

from benchmarks.harness.repository import REPOSITORY
from benchmarks.harness.sources import PLUGIN

_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_OPTIONS = "INDUCTOR_PLUGIN_"
"""Begin of the variables that set the plugin's options."""


def child_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with variables added, for a process that finds the plugin's bytecode.

    No option of the plugin is inherited: with ``INDUCTOR_PLUGIN_ENABLE=1`` torch.compile itself would be measured with the plugin.

    An installed package has it. In a checkout without it, each process compiles 350 sources of the plugin
    (0.35 s of 4 s of a warm compile), and none of PyTorch's.
    """
    _write_bytecode()
    kept = {
        name: text
        for name, text in os.environ.items()
        if name != _NO_BYTECODE and not name.startswith(_OPTIONS)
    }
    return kept | variables


@functools.cache
def _write_bytecode() -> None:
    """Compile the plugin's sources; where the folder cannot be written, the figures include their compilation."""
    for folder in PLUGIN:
        compileall.compile_dir(str(REPOSITORY / folder), quiet=2)
