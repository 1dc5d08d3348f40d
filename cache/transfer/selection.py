"""What of a cache leaves it in an archive: files by their names there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inductor_plugin.cache.entry import ENTRY
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.layout import Layout, part
from inductor_plugin.cache.pack import Pack, dump_pack, pack_files, parse_pack
from inductor_plugin.cache.quarantine import Quarantined, parse_quarantined, quarantine_files
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.records import (
    environment_files,
    parse_environment,
    parse_record,
    record_files,
)
from inductor_plugin.cache.store import Store
from inductor_plugin.cache.transfer.kernels import outgoing, sound_kernels
from inductor_plugin.cache.trust.keys import Signer
from inductor_plugin.errors import ArchiveError


def selected(layout: Layout, environment: str | None, op: str | None) -> Iterator[Path]:
    """Yield the valid files to export.

    Args:
        layout: The cache.
        environment: Only environments with this prefix of their digest; None for all.
        op: Only records of this operator; None for all.
    """
    environments: set[str] = set()
    kernels: set[str] = set()
    for path in record_files(layout.records):
        is_asked_for = path.parent.parent.name.startswith(environment or "") and (
            op is None or path.parent.name == part(op)
        )
        record = sound_record(path) if is_asked_for else None
        if record is not None:
            environments.add(path.parent.parent.name)
            kernels.update(
                measured.kernel for measured in record.candidates.values() if measured.kernel
            )
            yield path
    everything = environment is None and op is None
    for path in environment_files(layout.records):
        if (everything or path.parent.name in environments) and sound_environment(path):
            yield path
    sent: set[str] = set()
    for entry in sound_kernels(layout, None if everything else kernels):
        sent.add(entry.digest)
        yield from (entry.folder / name for name in (ENTRY, *entry.files))
    for path in quarantine_files(layout.quarantined):
        asked_for = everything or path.parent.name in environments
        if asked_for and sound_quarantined(path) is not None:
            yield path
    if everything:
        # A pack is exported only if all of its kernels are.
        yield from (path for path in pack_files(layout.packs) if _is_whole(path, sent))


def packed(store: Store, pack: Pack, signer: Signer | None) -> dict[str, Path | bytes]:
    """Return the files of a pack, or their content, by their names in an archive.

    Its kernels may lie in the second cache, or in the folder of temporary files: their names are those that they would have in
    this cache. Kernels of the second cache are not signed: they were not built here.

    Args:
        store: The cache.
        pack: The pack.
        signer: Signs the kernels that were built here; None to leave them unsigned.

    Raises:
        ArchiveError: A kernel is gone.
    """
    layout = store.layout
    files: dict[str, Path | bytes] = {name_of(layout, layout.pack(pack.name)): dump_pack(pack)}
    for digest in pack.kernels:
        entry = store.kernel(digest)
        if entry is None:
            raise ArchiveError(
                f"kernel {digest[:12]} of the pack is not in {store.root} any more; compile it again"
            )
        elsewhere = any(entry.folder.is_relative_to(other.root) for other in store.layouts[1:])
        for name in (ENTRY, *entry.files):
            content = outgoing(entry.folder / name, None if elsewhere else signer)
            files[name_of(layout, layout.kernel(digest) / name)] = content
    return files


def name_of(layout: Layout, path: Path) -> str:
    """Return the name in an archive of a path of a cache."""
    return str(path.relative_to(layout.root))


def sound_record(path: Path) -> Record | None:
    """Return the record in a file; None if it cannot be read, is damaged, or of another format."""
    try:
        return parse_record(read(path), path)
    except (OSError, ValueError):
        return None


def sound_environment(path: Path) -> dict[str, Any] | None:
    """Return the environment's fields in a file; None if it cannot be read, is damaged, or of another format."""
    try:
        return parse_environment(read(path), path.parent.name)
    except (OSError, ValueError):
        return None


def sound_quarantined(path: Path) -> Quarantined | None:
    """Return the quarantine entry in a file; None if it cannot be read, is damaged, or of another format."""
    try:
        return parse_quarantined(read(path))
    except (OSError, ValueError):
        return None


def sound_pack(path: Path) -> Pack | None:
    """Return the pack in a file; None if it cannot be read, is damaged, or of another format."""
    try:
        return parse_pack(read(path))
    except (OSError, ValueError):
        return None


def _is_whole(path: Path, kernels: set[str]) -> bool:
    pack = sound_pack(path)
    return pack is not None and kernels.issuperset(pack.kernels)
