"""Chosen entries of a cache as bytes: archives that are never files.

What a store knows is packed, also what it keeps in memory or reads in a second cache. `import_archive` takes such an archive,
too; `take_record` needs no folder to unpack it, which takes most of the time of an import.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from inductor_plugin.cache import KernelEntry, Record, Store, document
from inductor_plugin.cache.entry import ENTRY
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.merge import merge
from inductor_plugin.cache.quarantine import Quarantined, parse_quarantined, quarantine_name
from inductor_plugin.cache.record import to_fields
from inductor_plugin.cache.records import environment_document, parse_environment, parse_record
from inductor_plugin.cache.transfer import tape
from inductor_plugin.cache.transfer.kernels import outgoing
from inductor_plugin.errors import ArchiveError

_LAYOUT = Layout(Path())
"""The paths in an archive."""


def of_record(store: Store, environment: str, op: str, digest: str) -> bytes | None:
    """Return a record, its environment, and what is in quarantine on its problem; None if there is no record."""
    record = store.record(environment, op, digest)
    if record is None:
        return None
    members = {_LAYOUT.record(environment, op, digest): document.dump(to_fields(record))}
    fields = store.environment(environment)
    if fields is not None:
        described = environment_document(environment, fields)
        members[_LAYOUT.environment(environment)] = document.dump(described)
    names = [quarantine_name(candidate, digest) for candidate in record.candidates]
    for name, entry in store.quarantined_among(environment, names).items():
        described = {"format": SCHEMA, **entry.plain()}
        members[_LAYOUT.quarantine(environment, name)] = document.dump(described)
    return _packed(members)


def of_kernel(kernel: KernelEntry) -> bytes:
    """Return a kernel.

    Raises:
        OSError: One of its files is gone, or cannot be read.
    """
    folder = _LAYOUT.kernel(kernel.digest)
    names = (ENTRY, *kernel.files)
    # Why it is here is this cache's own affair, and names files of this machine.
    return _packed({folder / name: outgoing(kernel.folder / name, None) for name in names})


def take_record(store: Store, data: bytes, name: str) -> None:
    """Put what `of_record` has returned into another cache, which may keep it in memory.

    A record merges with the one that is there; what is known already is not written again.

    Args:
        store: The other cache.
        data: The archive.
        name: Its name, for messages.

    Raises:
        ArchiveError: The archive is damaged, of another format, or has other entries.
    """
    members = tape.contents(data, Path(name))
    try:
        entries = [_parsed(Path(member), content) for member, content in sorted(members.items())]
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{name} holds a damaged entry: {error}; export it again") from error
    for entry in sorted(entries, key=lambda entry: not isinstance(entry, dict)):
        if isinstance(entry, Record):
            entry = replace(entry, pinned=False)
            known = store.record(entry.environment, entry.op, entry.digest)
            if known is None or merge(known, entry) != known:
                store.put_record(entry)
        elif isinstance(entry, Quarantined):
            store.add_quarantined(entry)
        else:  # an environment is there before its first record
            store.put_environment(entry)


def _parsed(path: Path, content: bytes) -> Record | Quarantined | dict[str, Any]:
    """Return the entry of a record's archive at a path: its fields if it is an environment.

    Raises:
        ValueError: It is damaged, or none of these.
    """
    if path == _LAYOUT.environment(path.parent.name):
        return parse_environment(content, path.parent.name)
    if path.parts[0] == _LAYOUT.records.name:
        return parse_record(content, path)
    if path.parts[0] == _LAYOUT.quarantined.name:
        return parse_quarantined(content, path)
    raise ValueError(f"{path} is no part of a record")


def _packed(members: Mapping[Path, Path | bytes]) -> bytes:
    named = {str(path): content for path, content in sorted(members.items())}
    data = io.BytesIO()
    with gzip.GzipFile("", "wb", 6, data, mtime=0) as packed:
        tape.write(named, packed)
    return data.getvalue()
