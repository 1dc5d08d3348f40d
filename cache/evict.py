"""Keeping a cache within its size: what was not used for longest goes first, records last."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache import atomic
from inductor_plugin.cache.folder import Folder
from inductor_plugin.cache.lock import remove_unused
from inductor_plugin.cache.records import parse_record, record_files
from inductor_plugin.cache.usage import (
    LEFTOVER_S,
    Stamp,
    kernel_stamps,
    leftovers,
    record_stamps,
)
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

GRACE_S = 600.0
"""The size limit never evicts what was used within this many seconds: another process may be about
to load it, or a measurement of it may be queued. A read is noted at most once a minute."""

LOCK_AGE_S = 86400.0
"""A lock file this many seconds old is deleted if nobody holds it."""

_PINNED = b'"pinned": true'


@dataclass(frozen=True)
class Pruned:
    """What was removed.

    Attributes:
        kernels: Compiled kernels.
        records: Records.
        bytes: Size of both.
        leftovers: Unfinished files of killed processes.
        locks: Lock files nobody held.
        bytes_left: Size of the kernels and records that stay.
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
    """Return what goes, in order. Pure.

    Args:
        stamps: What there is.
        spared: Names that must stay.
        excess_bytes: How much has to go, by last use.
        used_before: Whatever was not used since this time goes in any case, in seconds since 1970.
    """
    going: list[Stamp] = []
    for one in sorted(stamps, key=lambda stamp: stamp.used_at):
        stale = used_before is not None and one.used_at < used_before
        if one.path.stem in spared or (excess_bytes <= 0 and not stale):
            continue
        going.append(one)
        excess_bytes -= one.bytes
    return going


def prune(
    folder: Folder,
    max_bytes: int | None,
    older_than_s: float | None,
    grace_s: float = 0.0,
) -> Pruned:
    """Remove what was not used for longest until the rest fits, and what killed processes left.

    Pinned records, and the kernels of their winners, stay. A kernel somebody builds stays.

    Args:
        folder: The cache.
        max_bytes: Size the kernels and records may have; None for no limit.
        older_than_s: Remove what was not used for so many seconds; None for no limit.
        grace_s: Spare what was used within so many seconds.
    """
    layout, now = folder.layout, time.time()
    kernels, records = kernel_stamps(layout), record_stamps(layout)
    total = sum(one.bytes for one in [*kernels, *records])
    excess = 0 if max_bytes is None else total - max_bytes
    before = None if older_than_s is None else now - older_than_s
    going_kernels: list[Stamp] = []
    going_records: list[Stamp] = []
    if excess > 0 or before is not None:
        pinned_records, pinned_kernels = pinned(record_files(layout.records))
        kernels, records = (
            [one for one in stamps if one.used_at <= now - grace_s] for stamps in (kernels, records)
        )
        going_kernels = [
            one
            for one in choose(kernels, pinned_kernels, excess, before)
            if _remove_kernel(folder, one.path)
        ]
        excess -= sum(one.bytes for one in going_kernels)
        going_records = [
            one
            for one in choose(records, pinned_records, excess, before)
            if _remove_record(folder, one.path)
        ]
    removed = sum(one.bytes for one in [*going_kernels, *going_records])
    return Pruned(
        kernels=len(going_kernels),
        records=len(going_records),
        bytes=removed,
        leftovers=sweep(leftovers(layout, LEFTOVER_S)),
        locks=_remove_locks(layout.locks, now - LOCK_AGE_S),
        bytes_left=total - removed,
    )


def pinned(paths: Iterable[Path]) -> tuple[set[str], set[str]]:
    """Return the digests of pinned records, and of the kernels of their winners."""
    records: set[str] = set()
    kernels: set[str] = set()
    for path in paths:
        with suppress(OSError, ValueError):
            data = path.read_bytes()
            if _PINNED not in data:
                continue
            record = parse_record(data, path)
            if not record.pinned:
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
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
        gone += not path.exists()
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
