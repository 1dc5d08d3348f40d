"""Keeps a cache within its size: evicts least recently used kernels first, records last."""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache import atomic
from inductor_plugin.cache.document import ForeignError
from inductor_plugin.cache.folder import Folder
from inductor_plugin.cache.graph import graph_files, graphs_without_records
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.lock import remove_unused
from inductor_plugin.cache.pack import pack_files
from inductor_plugin.cache.quarantine import quarantine_files
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.records import (
    environment_files,
    parse_record,
    record_files,
)
from inductor_plugin.cache.size.usage import (
    PINNED,
    Stamp,
    kernel_stamps,
    leftovers,
    record_stamps,
    total_bytes,
)
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

GRACE_S = 600.0
"""The size limit never evicts entries used within this many seconds: another process may be about to
load them, or a measurement may be queued. The time of a read is stored at most once a minute."""

LOCK_AGE_S = 86400.0
"""A lock file of this age in seconds is deleted if no process holds it."""

logger = logging.getLogger(__name__)

_RESCAN = 32
"""Publications after which the size of the directory is computed again: other processes publish too."""

_FILL = 0.9
"""Size after an eviction as a fraction of the limit, so that not every publication evicts."""


@dataclass(frozen=True)
class Pruned:
    """Number and size of removed entries.

    Attributes:
        kernels: Compiled kernels.
        records: Records.
        bytes: Bytes that the disk has freed with both: a library that a remaining kernel shares is not among them.
        leftovers: Unfinished files of killed processes.
        locks: Lock files that no process held.
        bytes_left: Size of the remaining kernels and records.
        pinned: Entries that had to go and stayed because they are pinned.
        in_use: Entries that had to go and stayed because a process holds their lock.
        graphs: Entries of compiled graphs none of whose problems has a record any more.
    """

    kernels: int
    records: int
    bytes: int
    leftovers: int
    locks: int
    bytes_left: int
    pinned: int = 0
    in_use: int = 0
    graphs: int = 0


def choose(
    stamps: Iterable[Stamp],
    spared: Container[Path],
    excess_bytes: int,
    used_before: float | None,
    used_until: float = math.inf,
) -> list[Stamp]:
    """Return the entries to evict, least recently used first. Pure.

    Args:
        stamps: All entries.
        spared: Entries that must stay.
        excess_bytes: Bytes to free. A file that entries share is freed with the last of them.
        used_before: Entries last used before this time are evicted in any case; in seconds since 1970.
        used_until: Entries used later stay; in seconds since 1970.
    """
    everything = sorted(stamps, key=_used_at)
    sharers = Counter(file for stamp in everything for file in stamp.links)
    evicted: list[Stamp] = []
    for stamp in everything:
        stale = used_before is not None and stamp.used_at < used_before
        if (excess_bytes <= 0 and not stale) or stamp.used_at > used_until:
            break  # all others were used later
        if stamp.path in spared:
            continue
        evicted.append(stamp)
        sharers.subtract(stamp.links)
        freed = sum(file.bytes for file in stamp.links if not sharers[file])
        excess_bytes -= stamp.bytes + freed
    return evicted


def prune(
    folder: Folder,
    max_bytes: int | None,
    older_than_s: float | None,
    grace_s: float = 0.0,
    *,
    dry_run: bool = False,
) -> Pruned:
    """Evict least recently used entries until the rest fits, and sweep files of killed processes and graphs without records.

    Pinned records, the kernels of their winners, and kernels being built stay.

    Args:
        folder: The cache.
        max_bytes: Largest size of kernels and records; None for no limit.
        older_than_s: Also remove entries not used for this many seconds; None for no limit.
        grace_s: Spare entries used within this many seconds.
        dry_run: Remove nothing, and return what would be removed.
    """
    if not dry_run:
        folder.check_may_change()
    layout = folder.layout
    kernels, records = kernel_stamps(layout), record_stamps(layout)
    now = time.time()  # no entry was used later
    total = total_bytes([*kernels, *records])
    excess = 0 if max_bytes is None else total - max_bytes
    before = None if older_than_s is None else now - older_than_s
    removed: dict[str, list[Stamp]] = {"kernels": [], "records": []}
    chosen = spared = 0
    if excess > 0 or before is not None:
        for kind, stamps, remove in (
            ("kernels", kernels, remove_kernel),
            ("records", records, remove_record),
        ):
            idle = now - grace_s
            oldest = choose(stamps, (), excess, before, idle)
            kept = _kept(kind, layout) if oldest else ()
            doomed = choose(stamps, kept, excess, before, idle) if oldest else []
            spared += sum(stamp.path in kept for stamp in oldest)
            chosen += len(doomed)
            removed[kind] = [stamp for stamp in doomed if dry_run or remove(folder, stamp.path)]
            excess -= _freed(stamps, removed[kind])
    gone = [*removed["kernels"], *removed["records"]]
    freed = _freed([*kernels, *records], gone)
    old = list(leftovers(layout))
    graphs = graphs_without_records(layout, {stamp.place for stamp in removed["records"]})
    return Pruned(
        kernels=len(removed["kernels"]),
        records=len(removed["records"]),
        bytes=freed,
        leftovers=len(old) if dry_run else sweep(old),
        locks=0 if dry_run else _remove_locks(layout.locks, now - LOCK_AGE_S),
        bytes_left=total - freed,
        pinned=spared,
        in_use=chosen - len(gone),
        graphs=len(graphs) if dry_run else _unlinked(graphs),
    )


def _freed(stamps: Sequence[Stamp], gone: Sequence[Stamp]) -> int:
    """Return the bytes that the disk frees when some of the entries go. Pure."""
    places = {stamp.place for stamp in gone}
    return total_bytes(stamps) - total_bytes(s for s in stamps if s.place not in places)


def clear(folder: Folder) -> dict[str, int]:
    """Remove everything but lock files and counters, pinned entries included; return how much, by kind.

    Entries whose lock is held stay, and are not counted.
    """
    folder.check_may_change()
    layout = folder.layout
    packs = _unlinked(pack_files(layout.packs))
    graphs = _unlinked(graph_files(layout.graphs))
    records = sum(remove_record(folder, path) for path in list(record_files(layout.records)))
    kernels = sum(remove_kernel(folder, path) for path in kernel_folders(layout.kernels))
    quarantined = _unlinked(quarantine_files(layout.quarantined))
    environments = _unlinked(
        path for path in environment_files(layout.records) if not any(path.parent.glob("*/*.json"))
    )
    sweep([*leftovers(layout), layout.damaged, layout.installed])
    return {
        "records": records,
        "kernels": kernels,
        "environments": environments,
        "quarantined": quarantined,
        "packs": packs,
        "graphs": graphs,
    }


def _unlinked(paths: Iterable[Path]) -> int:
    """Remove files; return how many."""
    gone = 0
    for path in list(paths):
        with suppress(OSError):
            path.unlink()
            gone += 1
    return gone


def _kept(kind: str, layout: Layout) -> Container[Path]:
    """Return the kernels or records that stay, whatever their age. Of records, only those that are asked for are read."""
    return pinned_kernels(layout) if kind == "kernels" else PinnedRecords()


class PinnedRecords:
    """The files of pinned records; each is read once, when it is asked for."""

    def __init__(self) -> None:
        """Read nothing yet."""
        self._known: dict[Path, bool] = {}

    def __contains__(self, path: object) -> bool:
        """Return True if a record is pinned, or cannot be read and may be."""
        if not isinstance(path, Path):
            return False
        if path not in self._known:
            self._known[path] = _record(path)[1]
        return self._known[path]


def pinned_kernels(layout: Layout) -> set[Path]:
    """Return the folders of the kernels of pinned records' winners; reads all records."""
    kernels: set[Path] = set()
    for path in record_files(layout.records):
        record, is_pinned = _record(path)
        winner = record and record.decision and record.candidates.get(record.decision.winner)
        if is_pinned and winner and winner.kernel:
            kernels.add(layout.kernel(winner.kernel))
    return kernels


def _record(path: Path) -> tuple[Record | None, bool]:
    """Return a record that may be pinned, and whether it has to be treated as such."""
    try:
        data = read(path)
        record = parse_record(data, path) if PINNED in data else None
    except (OSError, ForeignError):
        return None, True  # it may be pinned
    except ValueError:
        return None, False
    return record, record is not None and record.pinned


def _used_at(stamp: Stamp) -> float:
    return stamp.used_at


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


def remove_kernel(folder: Folder, path: Path) -> bool:
    """Remove a kernel's folder; return False if it is gone already, or a process holds its lock."""
    folder.check_may_change()
    try:
        with folder.lock(path.name, 0):
            return atomic.remove_folder(path, folder.layout.private)
    except (CacheError, OSError) as error:
        logger.debug("kernel %s stays: %s", path.name, error)
        return False


def remove_record(folder: Folder, path: Path, wait_s: float = 5.0) -> bool:
    """Remove a record's file; return False if it is gone already, or its lock is not free in time."""
    folder.check_may_change()
    try:
        with folder.lock(f"records-{path.stem[:2]}", wait_s):
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


class SizeLimit:
    """Evicts the least recently used entries when publications exceed a limit."""

    def __init__(self, folder: Folder, limit_bytes: int) -> None:
        """Keep ``folder`` below ``limit_bytes``; 0 for no limit."""
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._guard = threading.Lock()
        self._size_bytes: int | None = None
        self._unscanned = 0

    def published(self, size_bytes: int) -> None:
        """Count the published bytes, and evict if the limit is exceeded."""
        if not self._limit_bytes:
            return
        with self._guard:
            self._unscanned += 1
            if self._size_bytes is not None:
                self._size_bytes += size_bytes
            if self._size_bytes is None or self._unscanned >= _RESCAN:
                layout, self._unscanned = self._folder.layout, 0
                stamps = [*kernel_stamps(layout), *record_stamps(layout)]
                self._size_bytes = total_bytes(stamps)
            too_much = self._size_bytes > self._limit_bytes
        if too_much:
            self._evict()

    def _evict(self) -> None:
        limit = int(self._limit_bytes * _FILL)
        try:
            with self._folder.lock("prune", 0):
                pruned = prune(self._folder, limit, None, GRACE_S)
        except CacheError:
            return  # another process is evicting
        with self._guard:
            self._size_bytes = pruned.bytes_left
        if pruned.kernels or pruned.records:
            logger.info("evicted %d kernels, %d records", pruned.kernels, pruned.records)
