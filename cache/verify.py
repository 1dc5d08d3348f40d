"""Checks everything in a cache directory, changing nothing; and sets aside what is damaged."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from inductor_plugin.cache import atomic, document
from inductor_plugin.cache.document import ForeignError
from inductor_plugin.cache.entry import ENTRY, content_damage, read_entry
from inductor_plugin.cache.folder import Folder
from inductor_plugin.cache.graph import graph_files, parse_graph
from inductor_plugin.cache.guard import MISSING, exists, read, why_not_trusted_kernel
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
from inductor_plugin.errors import CacheError


@dataclass(frozen=True)
class Damage:
    """A damaged entry.

    Attributes:
        kind: ``schema``, ``record``, ``environment``, ``kernel``, ``quarantine``, ``pack``, ``graph``,
            ``counters`` or ``misses``.
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
        reason = _reason(layout, damage.kind, path)
        if reason is None and (path.exists() or damage.kind != "environment"):
            return ""
        reason = reason or damage.reason
        if not path.exists():
            raise CacheError(f"{reason}; the next compile in this environment writes it")
        if "cannot be read" in reason:
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
    yield from _checked(layout, "record", records)
    yield from _checked(layout, "environment", environment_files(layout.records))
    yield from _unexplained(layout, records)
    for folder in kernels:
        # Checked twice: it may have been evicted and built again during the first check.
        reason = _kernel_reason(layout, folder) and _kernel_reason(layout, folder)
        if reason is not None:
            yield Damage("kernel", folder, reason)
    yield from _checked(layout, "quarantine", quarantined)
    yield from _checked(layout, "pack", pack_files(layout.packs))
    yield from _checked(layout, "graph", graph_files(layout.graphs))
    yield from _checked(layout, "counters", [layout.counters])
    yield from _checked(layout, "misses", [layout.misses])
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
        refusal = why_not_trusted_kernel(layout.root, folder, (ENTRY, *read_entry(folder).files))
    except MISSING:
        return None
    return str(refusal) if refusal is not None else None


def _schema(layout: Layout, content: Sequence[Path]) -> Iterator[Damage]:
    """Yield a damaged or missing ``schema.json``; it is written before any content."""
    yield from _checked(layout, "schema", [layout.schema])
    if not exists(layout.schema) and any(map(exists, content)):
        yield Damage("schema", layout.schema, "it is missing, though the cache is not empty")


def _checked(layout: Layout, kind: str, paths: Iterable[Path]) -> Iterator[Damage]:
    for path in paths:
        reason = _reason(layout, kind, path)
        if reason is not None:
            yield Damage(kind, path, reason)


def _reason(layout: Layout, kind: str, path: Path) -> str | None:
    """Return the damage of an entry of a kind; None if it is sound, another version's, or gone."""
    if kind == "kernel":
        return _kernel_reason(layout, path)
    try:
        _PARSERS[kind](read(path), path)
    except (*MISSING, ForeignError):
        return None
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except ValueError as error:
        return str(error)
    return None


_PARSERS: Mapping[str, Callable[[bytes, Path], object]] = {
    "record": parse_record,
    "environment": lambda data, path: parse_environment(data, path.parent.name),
    "quarantine": parse_quarantined,
    "pack": lambda data, _: parse_pack(data),
    "graph": parse_graph,
    "counters": lambda data, _: document.load(data),
    "misses": lambda data, _: document.load(data),
    "schema": lambda data, _: check_schema(data),
}
"""How a file of each kind is read; a ValueError says why it is no valid entry."""
