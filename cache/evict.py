"""Keeps a cache within its size: evicts least recently used kernels first, records last."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache import atomic
from inductor_plugin.cache.document import ForeignError
from inductor_plugin.cache.folder import Folder
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.lock import remove_unused
from inductor_plugin.cache.records import parse_record, record_files
from inductor_plugin.cache.usage import (
    Stamp,
    kernel_stamps,
    leftovers,
    record_stamps,
)
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

GRACE_S = 600.0
"""The size limit never evicts entries used within this many seconds: another process may be about to
load them, or a measurement may be queued. The time of a read is stored at most once a minute."""

LOCK_AGE_S = 86400.0
"""A lock file of this age in seconds is deleted if no process holds it."""

_PINNED = b'"pinned": true'


@dataclass(frozen=True)
class Pruned:
    """Number and size of removed entries.

    Attributes:
        kernels: Compiled kernels.
        records: Records.
        bytes: Size of both.
        leftovers: Unfinished files of killed processes.
        locks: Lock files that no process held.
        bytes_left: Size of the remaining kernels and records.
    """

    kernels: int
    records: int
    bytes: int
    leftovers: int
    locks: int
    bytes_left: int


def choose(
    stamps: Iterable[Stamp], spared: set[str], excess_bytes: int, used_before: float | None
) -> list[Stamp]:
    """Return the entries to evict, least recently used first. Pure.

    Args:
        stamps: All entries.
        spared: Names of entries that must stay.
        excess_bytes: Bytes to free.
        used_before: Entries last used before this time are evicted in any case; in seconds since 1970.
    """
    evicted: list[Stamp] = []
    for stamp in sorted(stamps, key=lambda stamp: stamp.used_at):
        stale = used_before is not None and stamp.used_at < used_before
        if stamp.path.stem in spared or (excess_bytes <= 0 and not stale):
            continue
        evicted.append(stamp)
        excess_bytes -= stamp.bytes
    return evicted


def prune(
    folder: Folder,
    max_bytes: int | None,
    older_than_s: float | None,
    grace_s: float = 0.0,
) -> Pruned:
    """Evict least recently used entries until the rest fits, and sweep files of killed processes.

    Pinned records, the kernels of their winners, and kernels being built stay.

    Args:
        folder: The cache.
        max_bytes: Largest size of kernels and records; None for no limit.
        older_than_s: Also remove entries not used for this many seconds; None for no limit.
        grace_s: Spare entries used within this many seconds.
    """
    layout, now = folder.layout, time.time()
    kernels, records = kernel_stamps(layout), record_stamps(layout)
    total = sum(stamp.bytes for stamp in [*kernels, *records])
    excess = 0 if max_bytes is None else total - max_bytes
    before = None if older_than_s is None else now - older_than_s
    evicted_kernels: list[Stamp] = []
    evicted_records: list[Stamp] = []
    if excess > 0 or before is not None:
        pinned_records, pinned_kernels = pinned(record_files(layout.records))
        kernels, records = (
            [stamp for stamp in stamps if stamp.used_at <= now - grace_s]
            for stamps in (kernels, records)
        )
        evicted_kernels = [
            stamp
            for stamp in choose(kernels, pinned_kernels, excess, before)
            if _remove_kernel(folder, stamp.path)
        ]
        excess -= sum(stamp.bytes for stamp in evicted_kernels)
        evicted_records = [
            stamp
            for stamp in choose(records, pinned_records, excess, before)
            if _remove_record(folder, stamp.path)
        ]
    removed = sum(stamp.bytes for stamp in [*evicted_kernels, *evicted_records])
    return Pruned(
        kernels=len(evicted_kernels),
        records=len(evicted_records),
        bytes=removed,
        leftovers=sweep(leftovers(layout)),
        locks=_remove_locks(layout.locks, now - LOCK_AGE_S),
        bytes_left=total - removed,
    )


def pinned(paths: Iterable[Path]) -> tuple[set[str], set[str]]:
    """Return the digests of pinned records, and of the kernels of their winners."""
    records: set[str] = set()
    kernels: set[str] = set()
    for path in paths:
        try:
            data = read(path)
            record = parse_record(data, path) if _PINNED in data else None
        except (OSError, ForeignError):
            records.add(path.stem)  # it may be pinned
            continue
        except ValueError:
            continue
        if record is None or not record.pinned:
            continue
        records.add(record.digest)
        winner = record.decision and record.candidates.get(record.decision.winner)
        if winner and winner.kernel:
            kernels.add(winner.kernel)
    return records, kernels


def sweep(paths: Iterable[Path]) -> int:
    """Delete files and folders; return how many are gone."""
    gone = 0
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
        gone += not path.is_symlink() and not path.exists()
    return gone


def _remove_kernel(folder: Folder, path: Path) -> bool:
    try:
        with folder.lock(path.name, 0):
            return atomic.remove_folder(path, folder.layout.private)
    except (CacheError, OSError) as error:
        logger.debug("kernel %s stays: %s", path.name, error)
        return False


def _remove_record(folder: Folder, path: Path) -> bool:
    try:
        with folder.lock(f"records-{path.stem[:2]}", 5.0):
            path.unlink()
    except (CacheError, OSError) as error:
        logger.debug("record %s stays: %s", path.name, error)
        return False
    return True


def _remove_locks(locks: Path, before: float) -> int:
    gone = 0
    for path in sorted(locks.glob("*.lock")) if locks.is_dir() else ():
        with suppress(OSError):
            if path.stat().st_mtime < before:
                gone += remove_unused(path)
    return gone
