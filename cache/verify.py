"""Looking at everything in a cache directory, changing nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache import document
from inductor_plugin.cache.entry import damage_of_folder
from inductor_plugin.cache.folder import MISSING
from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import Layout, part
from inductor_plugin.cache.quarantine import parse_quarantined, quarantine_files
from inductor_plugin.cache.records import (
    environment_files,
    parse_environment,
    parse_record,
    record_files,
)


@dataclass(frozen=True)
class Finding:
    """One damaged thing.

    Attributes:
        kind: ``schema``, ``record``, ``environment``, ``kernel``, ``quarantine`` or ``counters``.
        path: Where it is.
        reason: What is wrong with it.
    """

    kind: str
    path: Path
    reason: str


def verify(layout: Layout) -> list[Finding]:
    """Return what is damaged; empty for a sound cache.

    What disappears while this runs, and unfinished files of killed processes, are no damage.
    """
    return list(_findings(layout))


def schema_reason(data: bytes) -> str | None:
    """Return why a ``schema.json`` is not this format's, or None if it is."""
    try:
        found = document.load(data).get("format")
    except ValueError as error:
        return str(error)
    if found != SCHEMA:
        return f"the cache has format {found!r}, this version reads {SCHEMA}"
    return None


def _findings(layout: Layout) -> Iterator[Finding]:
    yield from _checked("schema", layout.schema, schema_reason)
    for path in record_files(layout.records):
        yield from _checked(
            "record", path, _raised(lambda data, path=path: parse_record(data, path))
        )
    for path in environment_files(layout.records):
        yield from _checked(
            "environment",
            path,
            _raised(lambda data, path=path: parse_environment(data, path.parent.name)),
        )
    for folder in kernel_folders(layout.kernels):
        reason = damage_of_folder(folder)
        if reason is not None:
            yield Finding("kernel", folder, reason)
    for path in quarantine_files(layout.quarantined):
        yield from _checked(
            "quarantine", path, _raised(lambda data, path=path: _quarantined(data, path))
        )
    yield from _checked("counters", layout.counters, document.check)


def _checked(kind: str, path: Path, reason_of: Callable[[bytes], str | None]) -> Iterator[Finding]:
    try:
        reason = reason_of(path.read_bytes())
    except MISSING:
        return
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
    if reason is not None:
        yield Finding(kind, path, reason)


def _raised(parse: Callable[[bytes], object]) -> Callable[[bytes], str | None]:
    """Return a function that gives a parser's complaint as a reason."""

    def reason_of(data: bytes) -> str | None:
        try:
            parse(data)
        except ValueError as error:
            return str(error)
        return None

    return reason_of


def _quarantined(data: bytes, path: Path) -> None:
    found = parse_quarantined(data)
    if (part(found.environment), part(found.candidate)) != (path.parent.name, path.stem):
        raise ValueError(f"it lies under another name ({found.candidate})")
