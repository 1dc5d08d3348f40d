"""``--version``: the plugin, Python, torch and the tools that build kernels. Nothing of them is imported."""

from __future__ import annotations

import json
import platform
import shutil
from argparse import Action, ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from inductor_plugin.version import __version__

_PACKAGES = {
    "torch": ("torch",),
    "Triton": ("triton", "pytorch-triton"),
    "CUTLASS": ("nvidia-cutlass",),
    "nvcc wheel": ("nvidia-cuda-nvcc",),
}
_NAME = "inductor-plugin"
_COMPILERS = ("nvcc", "g++", "clang++")


class Show(Action):
    """Prints the versions and ends."""

    def __init__(self, option_strings: Sequence[str], dest: str, **facts: Any) -> None:
        """Take no value."""
        super().__init__(option_strings, dest, nargs=0, **facts)

    def __call__(self, parser: ArgumentParser, *_: Any) -> None:
        """Print them."""
        print(versions_text())
        parser.exit()


def versions_text() -> str:
    """Return the plugin's version on the first line, and what it works with on the others."""
    rows = [("commit", commit)] if (commit := _commit()) else []
    rows += [("Python", platform.python_version())]
    rows += [(name, _installed(*packages)) for name, packages in _PACKAGES.items()]
    rows += [(name, path) for name in _COMPILERS if (path := shutil.which(name))]
    lines = [f"{name + ':':<12}{text}" for name, text in rows]
    return "\n".join([f"{_NAME} {__version__}", *lines])


def _commit() -> str:
    """Return the commit that the installed wheel says it was built from, empty if it says none, as an editable one."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415  as in `_installed`

    with suppress(PackageNotFoundError, OSError, ValueError, LookupError, TypeError):
        text = distribution(_NAME).read_text(f"provenance/{_NAME}.intoto.json")
        definition = json.loads(text or "{}")["predicate"]["buildDefinition"]
        (source,) = definition["resolvedDependencies"]
        changed = any(source.get("annotations", {}).values())
        return f"{source['digest']['gitCommit']}{', changed' if changed else ''}"
    return ""


def _installed(*names: str) -> str:
    # importlib.metadata takes 40 ms to import, and no other verb needs it.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    for name in names:
        with suppress(PackageNotFoundError):
            return version(name)
    return "not installed"
