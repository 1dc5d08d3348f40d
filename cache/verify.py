"""Checks everything in a cache directory, changing nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from inductor_plugin.cache import document
from inductor_plugin.cache.document import ForeignError
from inductor_plugin.cache.entry import ENTRY, content_damage, read_entry
from inductor_plugin.cache.guard import MISSING, exists, kernel_refusal, read
from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.pack import pack_files, parse_pack
from inductor_plugin.cache.quarantine import parse_quarantined, quarantine_files
from inductor_plugin.cache.records import (
    environment_files,
    parse_environment,
    parse_record,
    record_files,
)


@dataclass(frozen=True)
class Damage:
    """A damaged entry.

    Attributes:
        kind: ``schema``, ``record``, ``environment``, ``kernel``, ``quarantine``, ``pack`` or
            ``counters``, ``misses``.
        path: Its file or folder.
        reason: Description of the damage.
    """

    kind: str
    path: Path
    reason: str


def verify(layout: Layout) -> list[Damage]:
    """Return all damage; empty for a valid cache, also while other processes write to it.

    Entries that disappear during the check, unfinished files of killed processes, and evicted kernels
    that a record still names are not damage.
    """
    return list(_damages(layout))


def check_schema(data: bytes) -> None:
    """Check that a ``schema.json`` is this format's.

    Raises:
        ForeignError: It is another format's.
        ValueError: It is damaged.
    """
    fields = document.load(data)
    try:
        document.check_format(fields, SCHEMA)
    except ForeignError as error:
        raise ForeignError(
            f"the cache has format {fields['format']!r}, this version reads {SCHEMA}"
        ) from error


def unlisted(folder: Path) -> str | None:
    """Return the files in a kernel's folder that its entry does not list; None if all are listed.

    A link counts as not listed: its target may change unnoticed.
    """
    try:
        entry = read_entry(folder)
        with os.scandir(folder) as files:
            names = sorted(
                file.name
                for file in files
                if file.is_symlink() or file.name not in (ENTRY, *entry.files)
            )
    except MISSING:
        return None
    except (OSError, ValueError) as error:
        return str(error)
    return f"its entry does not list {', '.join(names)}" if names else None


def _damages(layout: Layout) -> Iterator[Damage]:
    records = list(record_files(layout.records))
    for path in records:
        yield from _checked("record", path, lambda data, path=path: parse_record(data, path))
    for path in environment_files(layout.records):
        name = path.parent.name
        yield from _checked(
            "environment", path, lambda data, name=name: parse_environment(data, name)
        )
    yield from _unexplained(layout, records)
    kernels = kernel_folders(layout.kernels)
    for folder in kernels:
        # Checked twice: it may have been evicted and built again during the first check.
        reason = _kernel_reason(layout, folder) and _kernel_reason(layout, folder)
        if reason is not None:
            yield Damage("kernel", folder, reason)
    quarantined = quarantine_files(layout.quarantined)
    for path in quarantined:
        yield from _checked(
            "quarantine", path, lambda data, path=path: parse_quarantined(data, path)
        )
    for path in pack_files(layout.packs):
        yield from _checked("pack", path, parse_pack)
    yield from _checked("counters", layout.counters, document.load)
    yield from _checked("misses", layout.misses, document.load)
    yield from _schema(layout, [*records, *kernels, *quarantined])


def _unexplained(layout: Layout, records: Sequence[Path]) -> Iterator[Damage]:
    """Yield the missing ``environment.json`` of the environments of sorted records.

    The file is written before the first record of its environment, so every record must have it.
    """
    for folder, paths in groupby(records, lambda path: path.parent.parent):
        path = layout.environment(folder.name)
        if not exists(path) and any(map(exists, list(paths))):
            reason = "it is missing, so nothing says what the records beside it depend on"
            yield Damage("environment", path, reason)


def _kernel_reason(layout: Layout, folder: Path) -> str | None:
    if folder.is_symlink():
        return "it is a link to another place"
    try:
        return content_damage(folder) or unlisted(folder) or _untrusted(layout, folder)
    except ForeignError:
        return None
    except OSError as error:
        return f"it cannot be read: {error}" if exists(folder) else None


def _untrusted(layout: Layout, folder: Path) -> str | None:
    try:
        refusal = kernel_refusal(layout.root, folder, (ENTRY, *read_entry(folder).files))
    except MISSING:
        return None
    return str(refusal) if refusal is not None else None


def _schema(layout: Layout, content: Sequence[Path]) -> Iterator[Damage]:
    """Yield a damaged or missing ``schema.json``; it is written before any content."""
    yield from _checked("schema", layout.schema, check_schema)
    if not exists(layout.schema) and any(map(exists, content)):
        yield Damage("schema", layout.schema, "it is missing, though the cache is not empty")


def _checked(kind: str, path: Path, parse: Callable[[bytes], object]) -> Iterator[Damage]:
    """Yield the damage of a file that a parser refuses; another version's file is not damage."""
    try:
        parse(read(path))
    except (*MISSING, ForeignError):
        return
    except OSError as error:
        yield Damage(kind, path, f"it cannot be read: {error.strerror}")
    except ValueError as error:
        yield Damage(kind, path, str(error))
