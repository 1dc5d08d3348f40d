"""The shelf of records: look up, merge, iterate."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.document import table, typed
from inductor_plugin.cache.folder import TOUCH_S, Folder, Signature, is_damage, signature
from inductor_plugin.cache.guard import MISSING, exists, read
from inductor_plugin.cache.key import SCHEMA, digest_of
from inductor_plugin.cache.layout import part
from inductor_plugin.cache.merge import merge
from inductor_plugin.cache.record import Record, failed, from_fields, to_fields
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

_LOCK_S = 60.0
_MEMO = 8192
_ENVIRONMENT = "environment.json"
_MEASURED = b'"status": "ok"'

_Place = tuple[str, str, str]


@dataclass
class _CachedRecord:
    path: str
    signature: Signature
    record: Record
    touched: float


class RecordShelf:
    """The records of one cache directory, with an in-memory copy of those this process has read."""

    def __init__(self, folder: Folder) -> None:
        """Keep records in ``folder``."""
        self._folder = folder
        self._guard = threading.Lock()
        self._cached: dict[_Place, _CachedRecord] = {}
        self._memory: dict[_Place, Record] = {}
        self._environments: dict[str, dict[str, Any]] = {}

    def get(self, environment: str, op: str, digest: str) -> Record | None:
        """Return a record, or None; a damaged record is reported, removed, and treated as missing."""
        place = (environment, op, digest)
        record = self._memory.get(place) if self._memory else None
        return record if record is not None else self._on_disk(place)

    def put(self, record: Record, law: Callable[[Record, Record], Record] = merge) -> Record:
        """Merge a record with the stored one, and return the result as every reader will see it.

        Args:
            record: The record.
            law: `merge`, or `combine` for a record of another cache.
        """
        record = as_read(record)
        place = (record.environment, record.op, record.digest)
        path = self._folder.layout.record(*place)
        if self._folder.degraded is None:
            try:
                # Records share 256 lock files: a write takes about a millisecond.
                with self._folder.lock(f"records-{record.digest[:2]}", _LOCK_S):
                    self._restate(record.environment)
                    merged = self._merged(place, self._stored(path), record, law)
                    if self._folder.write(path, to_fields(merged)):
                        self._folder.forget_damage(path)
                        self._remember(place, path, merged)
                        self._memory.pop(place, None)
                        return merged
            except CacheError as error:
                logger.warning(
                    "inductor-plugin: the record of %s is kept in memory only: %s",
                    record.describe,
                    error,
                )
        self._folder.count_unwritten()
        stored = None
        with suppress(CacheError):
            stored = self._stored(path)
        with self._guard:  # no lock of the folder is held here: two threads may put one record
            merged = self._memory[place] = self._merged(place, stored, record, law)
        return merged

    def put_environment(self, fields: Mapping[str, Any]) -> str:
        """Write an environment's fields unless they are stored already; return their digest.

        Raises:
            TypeError: A field has no stable form.
        """
        digest = digest_of(fields)
        if digest not in self._environments:
            self._environments[digest] = dict(fields)
            if self._folder.degraded is None and self.environment_on_disk(digest) is None:
                self._write_environment(digest, fields)
        return digest

    def _restate(self, digest: str) -> None:
        """Write an environment again, before a record, if another process removed the cache directory."""
        fields = self._environments.get(digest)
        if fields is not None and not exists(self._folder.layout.environment(digest)):
            self._write_environment(digest, fields)

    def _write_environment(self, digest: str, fields: Mapping[str, Any]) -> None:
        self._folder.write(
            self._folder.layout.environment(digest), environment_document(digest, fields)
        )

    def environment(self, digest: str) -> dict[str, Any] | None:
        """Return an environment's fields, or None."""
        fields = self.environment_on_disk(digest)
        return fields if fields is not None else self._environments.get(digest)

    def environment_on_disk(self, digest: str) -> dict[str, Any] | None:
        """Return the fields in an environment's file; None if it is missing or damaged."""
        path = self._folder.layout.environment(digest)
        try:
            return parse_environment(read(path), path.parent.name)
        except MISSING:
            return None
        except (OSError, ValueError) as error:
            self._folder.report(path, error)
            return None

    def pin(self, record: Record, *, pinned: bool) -> None:
        """Protect a record and its winner's kernel from eviction, or stop protecting them."""
        self._folder.check_may_change()
        place = (record.environment, record.op, record.digest)
        path = self._folder.layout.record(*place)
        with self._folder.lock(f"records-{record.digest[:2]}", _LOCK_S):
            current = self._read(path, place)
            if current is not None and current.pinned != pinned:
                self._folder.write(path, to_fields(replace(current, pinned=pinned)))

    def drop_failure(self, environment: str, start: str, candidate: str) -> int:
        """Remove a failed candidate from records, so that it is tried again.

        Args:
            environment: Digest of the environment.
            start: Prefix of the digests of the problems.
            candidate: The candidate; records where it did not fail keep it.

        Returns:
            Number of records that changed.

        Raises:
            CacheError: A record's lock was not free within a minute.
        """
        return sum(
            self._drop((environment, path.parent.name, path.stem), path, candidate)
            for path in list(self.paths())
            if path.parent.parent.name == part(environment) and path.stem.startswith(start)
        )

    def _drop(self, place: _Place, path: Path, candidate: str) -> bool:
        with self._folder.lock(f"records-{place[2][:2]}", _LOCK_S):
            current = self._read(path, place)
            measured = current.candidates.get(candidate) if current else None
            if current is None or measured is None or not failed(measured):
                return False
            rest = {name: other for name, other in current.candidates.items() if name != candidate}
            return self._folder.write(path, to_fields(replace(current, candidates=rest)))

    def paths(self) -> Iterator[Path]:
        """Yield the files of all records on disk, sorted."""
        yield from record_files(self._folder.layout.records)

    def everything(self) -> Iterator[Record]:
        """Yield all records, those in memory last; damaged records are reported and skipped."""
        for path in self.paths():
            place = (path.parent.parent.name, path.parent.name, path.stem)
            if place in self._memory:
                continue
            record = self._read(path, place)
            if record is not None:
                yield record
        yield from list(self._memory.values())

    def has(self, environment: str) -> bool:
        """Return True if the environment has at least one record with a measurement."""
        if any(
            place[0] == environment and any(m.status == "ok" for m in record.candidates.values())
            for place, record in list(self._memory.items())
        ):
            return True
        ops = self._folder.layout.environment(environment).parent
        try:
            return any(_MEASURED in read(path) for path in ops.glob("*/*.json"))
        except (OSError, ValueError):
            return False

    def forget(self) -> None:
        """Drop the in-memory copies, after files were removed."""
        with self._guard:
            self._cached.clear()

    def forget_unwritten(self) -> None:
        """Drop the records that are in memory only."""
        with self._guard:
            self._memory.clear()

    def _on_disk(self, place: _Place) -> Record | None:
        cached = self._cached.get(place)
        file = None if cached else self._folder.layout.record(*place)
        path = cached.path if cached else str(file)
        current = signature(path)
        if current is None:
            return None
        if cached is not None and cached.signature == current:
            now = time.monotonic()
            if now - cached.touched > TOUCH_S:
                cached.touched = now
                self._folder.touch(path)
            return cached.record
        record = self._read(file or Path(path), place)
        if record is not None:
            self._store_cached(place, _CachedRecord(path, current, record, time.monotonic()))
            self._folder.touch(path)
        return record

    def _remember(self, place: _Place, path: Path, record: Record) -> None:
        current = signature(str(path))
        if current is not None:
            self._store_cached(place, _CachedRecord(str(path), current, record, time.monotonic()))

    def _store_cached(self, place: _Place, cached: _CachedRecord) -> None:
        with self._guard:
            if len(self._cached) >= _MEMO:
                del self._cached[next(iter(self._cached))]
            self._cached[place] = cached

    def _merged(
        self,
        place: _Place,
        stored: Record | None,
        record: Record,
        law: Callable[[Record, Record], Record],
    ) -> Record:
        for other in (stored, self._memory.get(place)):
            if other is not None:
                record = law(other, record)
        return record

    def _stored(self, path: Path) -> Record | None:
        """Return the record in a file; None if it is missing or damaged, and may be replaced.

        Raises:
            CacheError: It cannot be read, or is another version's; it may be sound.
        """
        record, error = self._parsed(path)
        if error is not None and not is_damage(error):
            raise CacheError(f"{path} is there and is not replaced: {error}") from error
        return record

    def _read(self, path: Path, place: _Place) -> Record | None:
        """Return the record in a file; report and remove a damaged one."""
        record, error = self._parsed(path)
        if error is not None and is_damage(error):
            self._remove_damaged(path, place)
        return record

    def _parsed(self, path: Path) -> tuple[Record | None, OSError | ValueError | None]:
        """Return the record in a file, or what was reported about it; neither if it is missing."""
        try:
            return parse_record(read(path), path), None
        except MISSING:
            return None, None
        except (OSError, ValueError) as error:
            self._folder.report(path, error)
            return None, error

    def _remove_damaged(self, path: Path, place: _Place) -> None:
        """Remove a damaged file, unless it has been replaced by a valid file meanwhile."""
        if self._folder.degraded is not None:
            return
        try:
            with self._folder.lock(f"records-{place[2][:2]}", 1.0):
                try:
                    parse_record(read(path), path)
                except ValueError as error:
                    if is_damage(error):
                        path.unlink()
        except (OSError, CacheError) as error:
            logger.debug("damaged record %s stays: %s", path, error)


def as_read(record: Record) -> Record:
    """Return the record as it will be after writing and reading it."""
    return from_fields(document.plain(to_fields(record)))


def parse_record(data: bytes, path: Path) -> Record:
    """Return the record in a file's bytes.

    Raises:
        ForeignError: The file is of another format.
        ValueError: It is damaged, or has another record's name.
    """
    record = from_fields(document.load(data, any_depth=True))
    if (record.environment, record.op, f"{record.digest}.json") != path.parts[-3:]:
        raise ValueError(f"it lies under the name of another record ({record.place})")
    return record


def environment_document(digest: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document that keeps an environment's fields."""
    return {"format": SCHEMA, "digest": digest, "fields": dict(fields)}


def parse_environment(data: bytes, digest: str) -> dict[str, Any]:
    """Return the environment's fields in a file's bytes.

    Raises:
        ForeignError: The file is of another format.
        ValueError: It is damaged, or has another environment's name.
    """
    fields = document.load(data)
    document.check_format(fields, SCHEMA)
    content = typed(fields, {"fields": table})["fields"]
    try:
        stated = digest_of(content)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if stated != digest:
        raise ValueError("its digest is not that of its fields")
    return content


def record_files(records: Path, prefix: str = "") -> Iterator[Path]:
    """Yield the record files below a folder whose names begin with a prefix, sorted; nothing if the folder does not exist."""
    for folder in op_folders(records):
        with suppress(OSError):
            names = os.listdir(folder)  # noqa: PTH208 - names alone, without a Path each
            for name in sorted(name for name in names if name.startswith(prefix)):
                if name.endswith(".json"):
                    yield Path(f"{folder}{os.sep}{name}")


def record_statuses(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of each record in an operator's folder, in no order; none that is gone."""
    with suppress(OSError):
        # By the folder's descriptor a `stat` takes 4 us instead of 5.
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    try:
                        status = entry.stat()
                    except OSError:
                        continue
                    if entry.name.endswith(".json"):
                        yield entry.name, status
        finally:
            os.close(descriptor)


def op_folders(records: Path) -> Iterator[str]:
    """Yield the folders of an environment's operators, sorted."""
    for environment in _sorted(records):
        for op in _sorted(environment):
            if not op.endswith(".json"):
                yield op


def environment_files(records: Path) -> Iterator[Path]:
    """Yield the files with environments' fields, sorted."""
    for environment in _sorted(records):
        path = Path(environment) / _ENVIRONMENT
        if exists(path):
            yield path


def _sorted(folder: Path | str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries)
    except OSError:
        return []
