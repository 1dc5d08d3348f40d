"""Checks everything in a cache directory, changing nothing; and sets aside what is damaged."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from inductor_plugin.cache import atomic, document
from inductor_plugin.cache.entry import ENTRY, damage_of_folder, parse_entry
from inductor_plugin.cache.folder import MISSING, Folder
from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import Layout, part
from inductor_plugin.cache.pack import pack_files, parse_pack
from inductor_plugin.cache.quarantine import parse_quarantined, quarantine_files
from inductor_plugin.cache.records import (
    environment_files,
    parse_environment,
    parse_record,
    record_files,
)
from inductor_plugin.errors import CacheError


@dataclass(frozen=True)
class Damage:
    """A damaged entry.

    Attributes:
        kind: ``schema``, ``record``, ``environment``, ``kernel``, ``quarantine``, ``pack`` or
            ``counters``.
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


def schema_reason(data: bytes) -> str | None:
    """Return why a ``schema.json`` is not this format's, or None if it is."""
    try:
        number = document.load(data).get("format")
    except ValueError as error:
        return str(error)
    if number != SCHEMA:
        return f"the cache has format {number!r}, this version reads {SCHEMA}"
    return None


def unlisted(folder: Path) -> str | None:
    """Return the files in a kernel's folder that its entry does not list; None if all are listed.

    A link counts as not listed: its target may change unnoticed.
    """
    try:
        entry = parse_entry((folder / ENTRY).read_bytes(), folder)
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


def set_aside(folder: Folder, damage: Damage) -> str:
    """Move a damaged entry to the folder ``damaged`` of its cache; return what was done.

    It is checked again under its lock: empty if it has been replaced by a valid one meanwhile.

    Raises:
        CacheError: It must not be moved, since it may be sound, or cannot be.
    """
    layout, path = folder.layout, damage.path
    locks = {
        "record": f"records-{path.stem[:2]}",
        "kernel": path.name,
        "quarantine": f"quarantine-{path.parent.name[:8]}",
    }
    with folder.lock(locks.get(damage.kind, damage.kind), 5.0):
        reason = _reason(damage.kind, path)
        if reason is None and (path.exists() or damage.kind != "environment"):
            return ""
        reason = reason or damage.reason
        if not path.exists():
            raise CacheError(f"{reason}; the next compile in this environment writes it")
        if "cannot be read" in reason or "format" in reason:
            raise CacheError(f"{reason}; it stays, for it may be sound")
        target = layout.damaged / f"{damage.kind}-{path.name}-{secrets.token_hex(4)}"
        try:
            atomic.make_folder(target.parent)
            path.rename(target)
        except OSError as error:
            raise CacheError(f"it cannot be moved: {error}") from error
    return f"moved to {target}"


def _damages(layout: Layout) -> Iterator[Damage]:
    records = list(record_files(layout.records))
    quarantined = quarantine_files(layout.quarantined)
    kernels = kernel_folders(layout.kernels)
    yield from _checked("record", records)
    yield from _checked("environment", environment_files(layout.records))
    yield from _unexplained(layout, records)
    for folder in kernels:
        # Checked twice: it may have been evicted and built again during the first check.
        reason = _kernel_reason(folder) and _kernel_reason(folder)
        if reason is not None:
            yield Damage("kernel", folder, reason)
    yield from _checked("quarantine", quarantined)
    yield from _checked("pack", pack_files(layout.packs))
    yield from _checked("counters", [layout.counters])
    yield from _schema(layout, [*records, *kernels, *quarantined])


def _unexplained(layout: Layout, records: Sequence[Path]) -> Iterator[Damage]:
    """Yield the missing ``environment.json`` of the environments of sorted records.

    The file is written before the first record of its environment, so every record must have it.
    """
    for folder, paths in groupby(records, lambda path: path.parent.parent):
        path = layout.environment(folder.name)
        if not path.exists() and any(record.exists() for record in list(paths)):
            reason = "it is missing, so nothing says what the records beside it depend on"
            yield Damage("environment", path, reason)


def _kernel_reason(folder: Path) -> str | None:
    if folder.is_symlink():
        return "it is a link to another place"
    return damage_of_folder(folder) or unlisted(folder)


def _schema(layout: Layout, content: Sequence[Path]) -> Iterator[Damage]:
    """Yield a damaged or missing ``schema.json``; it is written before any content."""
    yield from _checked("schema", [layout.schema])
    if not layout.schema.exists() and any(path.exists() for path in content):
        yield Damage("schema", layout.schema, "it is missing, though the cache is not empty")


def _checked(kind: str, paths: Iterable[Path]) -> Iterator[Damage]:
    for path in paths:
        reason = _reason(kind, path)
        if reason is not None:
            yield Damage(kind, path, reason)


def _reason(kind: str, path: Path) -> str | None:
    """Return the damage of an entry of a kind; None if it is sound or gone."""
    if kind == "kernel":
        return _kernel_reason(path)
    try:
        return _REASONS[kind](path.read_bytes(), path)
    except MISSING:
        return None
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _raised(parse: Callable[[bytes, Path], object]) -> Callable[[bytes, Path], str | None]:
    """Return a function that returns a parser's ValueError as a reason."""

    def reason_of(data: bytes, path: Path) -> str | None:
        try:
            parse(data, path)
        except ValueError as error:
            return str(error)
        return None

    return reason_of


def _quarantined(data: bytes, path: Path) -> None:
    entry = parse_quarantined(data)
    if (part(entry.environment), part(entry.candidate)) != (path.parent.name, path.stem):
        raise ValueError(f"it lies under another name ({entry.candidate})")


_REASONS: Mapping[str, Callable[[bytes, Path], str | None]] = {
    "record": _raised(parse_record),
    "environment": _raised(lambda data, path: parse_environment(data, path.parent.name)),
    "quarantine": _raised(_quarantined),
    "pack": _raised(lambda data, _: parse_pack(data)),
    "counters": lambda data, _: document.check(data),
    "schema": lambda data, _: schema_reason(data),
}
"""Why a file is not a valid entry of a kind; None if it is."""
