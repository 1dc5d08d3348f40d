"""Paths of a machine that sends a job, on the one that does it: packages lie elsewhere there, caches may be missing."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from inductor_plugin.cache.owner import belongs_to_user
from inductor_plugin.kernels.nvcc import package_folders
from inductor_plugin.worker.jobs import WorkerSettings

_PACKAGES = ("torch", "triton", "nvidia", "cutlass_library")
"""Packages whose headers, libraries and compilers commands name."""
_SYSTEM = ("headers of Python", "libraries of Python")
"""Folders that others use, too: what else lies in them is not Python's."""


@functools.cache
def folders() -> Mapping[str, str]:
    """Return the folders of this Python and its packages that commands name, each by its name. Nothing is imported."""
    named = {"inductor_plugin": str(Path(__file__).resolve().parents[2])}
    for name in _PACKAGES:
        with suppress(ImportError, ValueError):  # installed in an unusual way
            named[name] = str(next(iter(package_folders(name)), ""))
    system = (sysconfig.get_path("include"), sysconfig.get_config_var("LIBDIR"))
    named |= {name: str(path or "") for name, path in zip(_SYSTEM, system, strict=True)}
    return {name: folder for name, folder in named.items() if folder}


def moved(path: str, theirs: Mapping[str, str]) -> str:
    """Return where a file of a sender's package is here; the same path if it is of none, or is not here either.

    Args:
        path: The path there.
        theirs: `folders` of the sender.
    """
    ours = folders()
    for name, folder in sorted(theirs.items(), key=lambda item: len(item[1]), reverse=True):
        if path != folder and (name in _SYSTEM or not path.startswith(f"{folder}/")):
            continue
        here = ours.get(name, folder) + path[len(folder) :]
        if Path(here).exists():
            return here
    return path


def settings_here(settings: WorkerSettings) -> WorkerSettings:
    """Return a sender's settings for this machine: its modules are searched here, too, and its caches may not be here."""
    paths = [path for path in settings.sys_path if exists(path)]
    paths += [path for path in sys.path if path not in paths] if settings.sys_path else []
    return replace(
        settings,
        sys_path=tuple(paths),
        kernel_folder=settings.kernel_folder if exists(settings.kernel_folder) else "",
        cache_dir=settings.cache_dir if is_writable(settings.cache_dir) else "",
    )


def exists(path: str) -> bool:
    """Return whether a path that was sent is one here."""
    with suppress(OSError):
        return bool(path) and Path(path).exists()
    return False


def is_writable(folder: str) -> bool:
    """Return whether this user can write to a folder, or create it."""
    if not folder:
        return False
    with suppress(OSError):
        path = Path(folder)
        while not path.exists() and path != path.parent:
            path = path.parent
        return path.is_dir() and os.access(path, os.W_OK)
    return False


def is_own(path: str) -> bool:
    """Return whether a file is here and belongs to this user: others may put one at a path that they can guess."""
    with suppress(OSError):
        return belongs_to_user(Path(path).stat())
    return False
