"""Number and size of the entries of a cache directory, by kind."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from inductor_plugin.cache import document
from inductor_plugin.cache.entry import ENTRY
from inductor_plugin.cache.guard import MISSING, read
from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.owner import has_ended
from inductor_plugin.cache.quarantine import quarantine_files
from inductor_plugin.cache.record import AHEAD_S
from inductor_plugin.cache.records import (
    environment_files,
    op_folders,
    parse_record,
    record_statuses,
)

LEFTOVER_S = 86400.0
"""An unfinished file of this age in seconds is a leftover, unless its process is known to run: it may
be of another machine, where a suspended import may go on after hours."""

PINNED = b'"pinned": true'
_STRIDE = 101


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
        pinned: Records that are not evicted; None if not checked.
        looked: Share of the documents that were checked.
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
    pinned: int | None = None
    looked: float = 0.0

    def fields(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


class LinkedFile(NamedTuple):
    """A file that has several names; the disk has its bytes once, and frees them with the last name.

    Attributes:
        device: Number of its file system.
        inode: Its number there.
        bytes: Its size.
    """

    device: int
    inode: int
    bytes: int


class Stamp(NamedTuple):
    """Size and last use of an entry that may be evicted. A tuple: there may be a million.

    Attributes:
        place: Path of the kernel's folder or the record's file.
        bytes: Its size, without its linked files.
        used_at: Time of the last use, in seconds since 1970.
        links: Its files that have several names: a library of several kernels is hard-linked into the folder of each.
    """

    place: str
    bytes: int
    used_at: float
    links: tuple[LinkedFile, ...] = ()

    @property
    def path(self) -> Path:
        """The kernel's folder or the record's file."""
        return Path(self.place)


def total_bytes(stamps: Iterable[Stamp]) -> int:
    """Return the size of entries on the disk: a file that several of them share counts once. Pure."""
    alone, linked = 0, set[LinkedFile]()
    for stamp in stamps:
        alone += stamp.bytes
        linked.update(stamp.links)
    return alone + sum(file.bytes for file in linked)


def usage(layout: Layout, *, look: bool = False, look_s: float = math.inf) -> Usage:
    """Return number and size of the entries.

    Args:
        layout: The cache.
        look: Also check documents' checksums, and count pinned records.
        look_s: Seconds that this may take. Of more documents than can be checked in this time some are, from all parts of
            the cache; `Usage.looked` says how many.
    """
    kernels, records = kernel_stamps(layout), record_stamps(layout)
    environments = list(environment_files(layout.records))
    quarantined = quarantine_files(layout.quarantined)
    documents = [*environments, *quarantined]
    kernel_bytes = total_bytes(kernels)
    others_bytes = total_bytes(records) + sum(_size(path) for path in documents)
    counted = Usage(
        records=len(records),
        kernels=len(kernels),
        environments=len(environments),
        quarantined=len(quarantined),
        bytes=kernel_bytes + others_bytes,
        kernel_bytes=kernel_bytes,
        leftovers=len(leftovers(layout)),
        locks=len(_names(layout.locks)),
    )
    if not look:
        return counted
    entries = [str(stamp.path / ENTRY) for stamp in kernels]
    return _looked(
        counted, [stamp.place for stamp in records], [*map(str, documents), *entries], look_s
    )


def _looked(counted: Usage, records: Sequence[str], others: Sequence[str], look_s: float) -> Usage:
    """Return a usage with what is found in the documents: the records last, since there are most of them."""
    ends = time.monotonic() + look_s
    damaged = pinned = looked = 0
    for number, place in enumerate(chain(others, _scattered(records))):
        if time.monotonic() > ends:
            break
        looked += 1
        data = _content(place)
        damaged += data is None or (bool(data) and document.check(data) is not None)
        pinned += number >= len(others) and _is_pinned(data, place)
    count = len(others) + len(records)
    share = looked / count if count else 1.0
    return replace(counted, damaged=damaged, pinned=pinned, looked=share)


def _scattered(places: Sequence[str]) -> Iterator[str]:
    """Yield all places, the first hundredth of them from everywhere."""
    for start in range(_STRIDE):
        yield from places[start::_STRIDE]


def kernel_stamps(layout: Layout) -> list[Stamp]:
    """Return size and last use of every kernel; kernels that disappear meanwhile are skipped."""
    stamps, now = list[Stamp](), time.time()
    for folder in kernel_folders(layout.kernels):
        size, used, links = 0, 0.0, list[LinkedFile]()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat()
                    if status.st_nlink > 1:
                        links.append(LinkedFile(status.st_dev, status.st_ino, status.st_size))
                    else:
                        size += status.st_size
                    if entry.name == ENTRY:
                        used = _used_at(status, now)
        except OSError:
            continue
        stamps.append(Stamp(str(folder), size, used, tuple(links)))
    return stamps


def record_stamps(layout: Layout) -> list[Stamp]:
    """Return size and last use of every record, in no order; records that disappear meanwhile are skipped."""
    stamps, now = list[Stamp](), time.time()
    for folder in op_folders(layout.records):
        for name, status in record_statuses(folder):
            path = f"{folder}{os.sep}{name}"
            stamps.append(Stamp(path, status.st_size, _used_at(status, now)))
    return stamps


def _used_at(status: os.stat_result, now: float) -> float:
    used_at = max(status.st_atime, status.st_mtime)
    if used_at <= now:
        return used_at
    # Each by itself: publication may be of a clock that was ahead, and the use of the one that is right.
    return max(_believed(status.st_atime, now), _believed(status.st_mtime, now))


def _believed(used_at: float, now: float) -> float:
    """Return a time of use that is not in the future. Pure.

    One that is more than `AHEAD_S` ahead is of a clock that was wrong: the entry counts as the oldest, as records do that
    were measured then, and not as in use for years.
    """
    return 0.0 if used_at > now + AHEAD_S else min(used_at, now)


def leftovers(layout: Layout) -> list[Path]:
    """Return the unfinished files and folders of processes that have ended.

    Where the process is not known, those older than `LEFTOVER_S`.
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


def _is_pinned(data: bytes | None, place: str) -> bool:
    """Return True if a record is not evicted: it is pinned, or cannot be read and may be."""
    if data is None or PINNED not in data:
        return data is None
    try:
        return parse_record(data, Path(place)).pinned
    except document.ForeignError:
        return True
    except ValueError:
        return False


def _content(place: str) -> bytes | None:
    """Return a document's bytes, none if it has been removed meanwhile; None if it cannot be read."""
    path = Path(place)
    try:
        return read(path)
    except MISSING:
        return None if path.parent.exists() and path.name == ENTRY else b""
    except (OSError, ValueError):
        return None
