"""What a machine needs for a session, looked up without importing any of it."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.gpu.session.plan import CPU
from tests.gpu.session.step import Step

Find = Callable[[str], "str | None"]
_SMI_S = 30


@dataclass(frozen=True)
class Requirement:
    """A package.

    Attributes:
        name: Its name.
        oldest: The oldest version that will do, as numbers.
        why: What needs it.
        needed: Whether nothing goes without it.
        tests_only: Whether only steps that run pytest need it.
        gpu_only: Whether only steps that need a GPU need it.
    """

    name: str
    oldest: tuple[int, ...]
    why: str
    needed: bool = True
    tests_only: bool = False
    gpu_only: bool = False


REQUIREMENTS = (
    Requirement("torch", (2, 11), "with CUDA, but for the part cpu"),
    Requirement("triton", (3, 6), "comes with torch", gpu_only=True),
    Requirement("filelock", (3, 30), "the plugin's cache; comes with torch, not always as new"),
    Requirement(
        "pytest", (9, 0), "faulthandler_exit_on_timeout in pyproject.toml", tests_only=True
    ),
    Requirement(
        "nvidia-cutlass", (4, 2), "CUTLASS kernels; their steps fail without", needed=False
    ),
    Requirement("rich", (13,), "the progress bar, on a terminal", needed=False),
    Requirement("nvidia-matmul-heuristics", (0, 1), "ranks CUTLASS kernels", needed=False),
    Requirement("treelib", (1, 0), "stock CUTLASS, which is compared", needed=False),
    Requirement("pydot", (1, 0), "stock CUTLASS, which is compared", needed=False),
)


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: ``2.11.0+cu130`` is (2, 11, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def version(name: str) -> str | None:
    """Return the version of an installed package, None if it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing(steps: Sequence[Step], find: Find = version) -> tuple[list[str], list[str]]:
    """Return why the steps cannot run, and what some of them will lack; a line for each package."""
    uses_pytest = any("pytest" in step.command for step in steps)
    uses_gpu = any(step.part != CPU for step in steps)
    fatal: list[str] = []
    noted: list[str] = []
    for each in REQUIREMENTS:
        if (each.tests_only and not uses_pytest) or (each.gpu_only and not uses_gpu):
            continue
        toolkit = find(each.name)
        oldest = ".".join(map(str, each.oldest))
        if toolkit is None:
            text = f"{each.name} is not installed; {oldest} or newer is needed ({each.why})"
        elif numbers(toolkit) < each.oldest:
            text = f"{each.name} is {toolkit}, {oldest} or newer is needed ({each.why})"
        else:
            continue
        (fatal if each.needed else noted).append(text)
    return fatal, noted


def described() -> str:
    """Return the packages a session needs, for ``--help``."""
    return "\n".join(
        f"  {each.name} >= {'.'.join(map(str, each.oldest))}: {each.why}"
        + ("" if each.needed else " (not necessary)")
        for each in REQUIREMENTS
    )


def machine(find: Find = version) -> dict[str, Any]:
    """Return what rows of earlier sessions have to share: GPU, driver, torch and Triton."""
    gpu, _, driver = _smi().partition(", ")
    versions = {name: find(name) or "" for name in ("torch", "triton")}
    return {"gpu": gpu, "driver": driver, **versions, "dry": False, "sources": ""}


def _smi() -> str:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SMI_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(done.stdout.splitlines()), "")
