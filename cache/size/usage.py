"""Number and size of the entries of a cache directory, by kind."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.entry import ENTRY
from inductor_plugin.cache.guard import MISSING, read
from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.owner import has_ended
from inductor_plugin.cache.quarantine import quarantine_files
from inductor_plugin.cache.records import environment_files, record_files

LEFTOVER_S = 86400.0
"""An unfinished file of this age in seconds is a leftover, unless its process is known to run: it may
be of another machine, where a suspended import may go on after hours."""


@dataclass(frozen=True)
class Usage:
    """Number and size of the entries of a cache directory.

    Attributes:
        records: Problems with a record.
        kernels: Compiled kernels.
        environments: Environments with a file of their fields.
        quarantined: Candidates that are not tried again.
        bytes: Size of all of these.
        kernel_bytes: Size of the kernels alone.
        leftovers: Unfinished files of killed processes; `prune` sweeps them.
        locks: Lock files.
        damaged: Entries whose checksum does not match, kernels' own files not included; None if not
            checked.
    """

    records: int
    kernels: int
    environments: int
    quarantined: int
    bytes: int
    kernel_bytes: int
    leftovers: int
    locks: int
    damaged: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


@dataclass(frozen=True)
class Stamp:
    """Size and last use of an entry that may be evicted.

    Attributes:
        path: The kernel's folder or the record's file.
        bytes: Its size.
        used_at: Time of the last use, in seconds since 1970.
    """

    path: Path
    bytes: int
    used_at: float


def usage(layout: Layout, *, look: bool = False) -> Usage:
    """Return number and size of the entries; ``look`` also checks documents' checksums."""
    kernels = kernel_stamps(layout)
    records = list(record_files(layout.records))
    environments = list(environment_files(layout.records))
    quarantined = quarantine_files(layout.quarantined)
    documents = [*records, *environments, *quarantined]
    kernel_bytes = sum(stamp.bytes for stamp in kernels)
    damaged = None
    if look:
        entries = [stamp.path / ENTRY for stamp in kernels]
        damaged = sum(_is_damaged(path) for path in [*documents, *entries])
    return Usage(
        records=len(records),
        kernels=len(kernels),
        environments=len(environments),
        quarantined=len(quarantined),
        bytes=kernel_bytes + sum(_size(path) for path in documents),
        kernel_bytes=kernel_bytes,
        leftovers=len(leftovers(layout)),
        locks=len(_names(layout.locks)),
        damaged=damaged,
    )


def kernel_stamps(layout: Layout) -> list[Stamp]:
    """Return size and last use of every kernel; kernels that disappear meanwhile are skipped."""
    stamps: list[Stamp] = []
    for folder in kernel_folders(layout.kernels):
        size, used = 0, 0.0
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat()
                    # A library of several kernels is hard-linked into the folder of each of them.
                    size += status.st_size // status.st_nlink
                    if entry.name == ENTRY:
                        used = max(status.st_atime, status.st_mtime)
        except OSError:
            continue
        stamps.append(Stamp(folder, size, used))
    return stamps


def record_stamps(layout: Layout) -> list[Stamp]:
    """Return size and last use of every record; records that disappear meanwhile are skipped."""
    stamps: list[Stamp] = []
    for path in record_files(layout.records):
        try:
            status = path.stat()
        except OSError:
            continue
        stamps.append(Stamp(path, status.st_size, max(status.st_atime, status.st_mtime)))
    return stamps


def leftovers(layout: Layout) -> list[Path]:
    """Return the unfinished files and folders of processes that have ended.

    Where the process cannot be told, those older than `LEFTOVER_S`.
    """
    limit = time.time() - LEFTOVER_S
    paths: list[Path] = []
    for name in _names(layout.private):
        path, ended = layout.private / name, has_ended(name)
        try:
            if ended or (ended is None and path.lstat().st_mtime <= limit):
                paths.append(path)
        except OSError:
            continue
    return paths


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names alone, without a Path each
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_damaged(path: Path) -> bool:
    try:
        return document.check(read(path)) is not None
    except MISSING:
        return path.parent.exists() and path.name == ENTRY
    except (OSError, ValueError):
        return True
