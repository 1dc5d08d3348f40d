"""Chosen entries of a cache as bytes: an archive (`import_bytes`) that is never a file.

What a store knows is packed, also what it keeps in memory or reads in a second cache.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from pathlib import Path

from inductor_plugin.cache import KernelEntry, Store, document
from inductor_plugin.cache.entry import ENTRY
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.quarantine import quarantine_name
from inductor_plugin.cache.record import to_fields
from inductor_plugin.cache.records import environment_document
from inductor_plugin.cache.transfer import tape

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
    return _packed({folder / name: kernel.folder / name for name in names})


def _packed(members: Mapping[Path, Path | bytes]) -> bytes:
    named = {str(path): content for path, content in sorted(members.items())}
    data = io.BytesIO()
    with gzip.GzipFile("", "wb", 6, data, mtime=0) as packed:
        tape.write(named, packed)
    return data.getvalue()
