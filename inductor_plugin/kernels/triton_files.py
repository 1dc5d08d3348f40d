"""Copies Triton's files of compiled kernels from one of its cache folders to another.

Triton stores a kernel as ``HASH/NAME.cubin``, ``HASH/NAME.json`` and so on, and lists them all, with
their absolute paths, in ``HASH/__grp__NAME.json`` (``triton/runtime/cache.py``: FileCacheManager,
the same from 3.6 to 3.9). Here the file's name contains the folder's, and paths are removed.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BETWEEN = "--"
_GROUP = "__grp__"
_LONGEST = 128
"""Most characters of a file's name in the cache."""


def collect(folder: Path) -> dict[str, bytes]:
    """Return the files of all kernels in one of Triton's cache folders, by flat names.

    Empty if a name is too long for the cache: such a kernel is compiled again next time.
    """
    files = {
        f"{path.parent.name}{_BETWEEN}{path.name}": _without_paths(path)
        for path in sorted(folder.glob("*/*"))
        if path.is_file() and path.name != "lock"
    }
    return {} if any(len(name) > _LONGEST for name in files) else files


def place(files: Mapping[str, Path], folder: Path) -> None:
    """Write collected files to one of Triton's cache folders; existing files stay.

    Raises:
        OSError: The folder is not writable.
    """
    # The group's file last: once it exists, Triton treats the kernel as complete.
    for name, path in sorted(files.items(), key=lambda pair: _GROUP in pair[0]):
        parent, between, own = name.partition(_BETWEEN)
        target = folder / parent / own
        if between and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _publish(target, _with_paths(own, path.read_bytes(), target.parent))


def _without_paths(path: Path) -> bytes:
    content = path.read_bytes()
    if not path.name.startswith(_GROUP):
        return content
    group: dict[str, Any] = json.loads(content)
    group["child_paths"] = {name: Path(at).name for name, at in group["child_paths"].items()}
    return json.dumps(group, sort_keys=True).encode()


def _with_paths(name: str, content: bytes, parent: Path) -> bytes:
    if not name.startswith(_GROUP):
        return content
    group: dict[str, Any] = json.loads(content)
    group["child_paths"] = {n: str(parent / at) for n, at in group["child_paths"].items()}
    return json.dumps(group).encode()


def _publish(target: Path, content: bytes) -> None:
    """Write a file atomically."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix="tmp.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
