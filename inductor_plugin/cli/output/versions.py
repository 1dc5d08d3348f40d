"""``--version``: the plugin, Python, torch and the tools that build kernels. No package is imported; tools are asked."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from contextlib import suppress

from inductor_plugin.config import process_environment
from inductor_plugin.errors import printable
from inductor_plugin.version import __version__, installed_version

_PACKAGES = {
    "torch": ("torch",),
    "Triton": ("triton", "pytorch-triton"),
    "CUTLASS": ("nvidia-cutlass",),
    "nvcc wheel": ("nvidia-cuda-nvcc",),
}
_NAME = "inductor-plugin"
_COMPILERS = ("nvcc", "g++", "clang++")
_ANSWER_S = 2.0
"""Longest time in which a tool has to say its version: nvcc takes 0.02 s, a wrapper on a network folder may hang."""
_PATH = 48
"""Longest path that is shown beside a version."""
_FORMS = (r"\bV(\d[\w.]*)", r"\bversion (\d[\w.]*)", r"\) (\d+\.[\w.]*)")
"""Where nvcc (``V13.0.88``), clang and g++ (``(Debian 12.2.0-14) 12.2.0``) say their versions; tried in this order."""


def versions_text() -> str:
    """Return the plugin's version on the first line, and what it works with on the others."""
    rows = [("commit", commit)] if (commit := _commit()) else []
    rows += [("Python", platform.python_version())]
    rows += [
        (name, installed_version(*packages) or "not installed")
        for name, packages in _PACKAGES.items()
    ]
    rows += [(name, _compiler(path)) for name in _COMPILERS if (path := shutil.which(name))]
    lines = [f"{name + ':':<12}{text}" for name, text in rows]
    return "\n".join([f"{_NAME} {__version__}", *lines])


def _commit() -> str:
    """Return the commit that the installed wheel says it was built from, empty if it says none, as an editable one."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415  as in `installed_version`

    with suppress(
        PackageNotFoundError, OSError, ValueError, LookupError, TypeError, AttributeError
    ):
        text = distribution(_NAME).read_text(f"provenance/{_NAME}.intoto.json")
        definition = json.loads(text or "{}")["predicate"]["buildDefinition"]
        (source,) = definition["resolvedDependencies"]
        changed = any(source.get("annotations", {}).values())
        return f"{source['digest']['gitCommit']}{', changed' if changed else ''}"
    return ""


def _compiler(path: str) -> str:
    """Return a tool's version and its path if that is short; why it does not say one, with the path in any case."""
    where = printable(path)
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
            env={**process_environment(), "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_ANSWER_S:g} s ({where})"
    except OSError as error:
        return f"cannot be run: {error.strerror or error} ({where})"
    if done.returncode:
        return f"--version ends with status {done.returncode} ({where})"
    version = _version_in(done.stdout)
    if version is None:
        return f"says no version ({where})"
    return f"{version} ({where})" if len(where) <= _PATH else version


def _version_in(text: str) -> str | None:
    """Return the version in what a tool says of itself; None if there is none."""
    matches = (re.search(form, text) for form in _FORMS)
    return next((printable(match[1].rstrip(".")) for match in matches if match), None)
