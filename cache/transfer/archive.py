"""Exports a cache, or a part of it, to one file; imports such files; merges two caches."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from inductor_plugin.cache import atomic
from inductor_plugin.cache.entry import ENTRY, KernelEntry, Way, parse_entry
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.pack import Pack, pack_files, parse_pack
from inductor_plugin.cache.quarantine import Quarantined, parse_quarantined, quarantine_files
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.records import (
    environment_files,
    parse_environment,
    parse_record,
    record_files,
)
from inductor_plugin.cache.store import Store
from inductor_plugin.cache.transfer import tape
from inductor_plugin.cache.transfer.draft import draft_of
from inductor_plugin.cache.transfer.kernels import (
    admitted,
    copied_from,
    copy_kernels,
    outgoing,
    sound_kernels,
)
from inductor_plugin.cache.transfer.selection import (
    name_of,
    packed,
    selected,
    sound_environment,
    sound_pack,
    sound_quarantined,
    sound_record,
)
from inductor_plugin.cache.trust.keys import Signer
from inductor_plugin.cache.verify import unlisted
from inductor_plugin.errors import ArchiveError, CacheError


@dataclass(frozen=True)
class Imported:
    """Number of entries imported from an archive or another cache.

    Attributes:
        records: New records.
        kernels: New kernels.
        quarantined: New quarantine entries.
        environments: New environments.
        merged: Existing records that changed.
        unchanged: Existing entries of every kind that did not change.
        packs: The imported packs, also those that existed before.
        libraries: Different native libraries that the source holds, also those that existed before. Processes load them.
        signed: New kernels that were taken over because a key in ``trusted_keys`` has signed them.
        signatures_left_out: Signatures of existing kernels that were dropped: an entry has room for `MAX_SIGNATURES`.
    """

    records: int = 0
    kernels: int = 0
    quarantined: int = 0
    environments: int = 0
    merged: int = 0
    unchanged: int = 0
    packs: tuple[Pack, ...] = ()
    libraries: int = 0
    signed: int = 0
    signatures_left_out: int = 0


def total(parts: Sequence[Imported]) -> Imported:
    """Return several imports as one."""
    counts = [field.name for field in fields(Imported) if field.name != "packs"]
    sums = {name: sum(getattr(part, name) for part in parts) for name in counts}
    return Imported(**sums, packs=tuple(pack for part in parts for pack in part.packs))


def export_archive(
    store: Store,
    file: Path,
    *,
    environment: str | None = None,
    op: str | None = None,
    pack: Pack | None = None,
    signer: Signer | None = None,
) -> dict[str, int]:
    """Write all valid entries of a cache (`sound_kernels`) to one file, and return their number by kind.

    Args:
        store: The cache.
        file: The file to write or replace, in an existing folder.
        environment: Only environments with this prefix of their digest, and the kernels their records name.
        op: Only records of this operator, and the kernels they name.
        pack: Only this pack and its kernels, which the cache or its second one must hold.
        signer: Signs the kernels that were built in this cache; signatures of others travel in any case.

    Raises:
        ArchiveError: The folder does not exist, or the file cannot be written.
    """
    if not file.parent.is_dir():
        raise ArchiveError(
            f"cannot write {file}: there is no folder {file.parent}; make it or name another file"
        )
    layout = store.layout
    try:
        if pack is None:
            paths = selected(layout, environment, op)
            files = {name_of(layout, path): outgoing(path, signer) for path in paths}
        else:
            store.put_pack(pack)
            files = packed(store, pack, signer)
        names = sorted(files)
        with (
            draft_of(file) as draft,
            draft.open("wb") as raw,
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped,
        ):
            tape.write({name: files[name] for name in names}, zipped)
    except OSError as error:
        raise ArchiveError(f"cannot write {file}: {error}; name another file") from error
    return {
        "records": sum(name.startswith("records/") and name.count("/") == 3 for name in names),
        "kernels": sum(
            name.endswith(f"/{ENTRY}") and name.startswith("kernels/") for name in names
        ),
        "environments": sum(name.endswith("/environment.json") for name in names),
        "quarantined": sum(name.startswith("quarantine/") for name in names),
        "packs": sum(name.startswith("packs/") for name in names),
    }


def import_archive(store: Store, file: Path, *, trusted: bool = False) -> Imported:
    """Import an archive. Everything is checked before anything is written.

    Records are combined candidate by candidate, keeping the measurement with more samples; other existing entries stay. Anybody
    can have written records, so they are not protected from eviction here, nor their decisions from newer ones, as by ``pin
    --keep`` there.

    Args:
        store: The cache; its trust says whose signatures count.
        file: The archive.
        trusted: Take unsigned kernels, too, since the operator would run the author's code; records stay protected.

    Raises:
        ArchiveError: The file is missing, damaged, of another format, or unsafe.
        TrustError: It holds a kernel that no trusted key has signed.
        CacheError: The cache cannot be written, or not every entry: another process held a lock for long, or a file there
            cannot be read or is another version's.
    """
    if store.degraded is not None:
        raise CacheError(f"cannot import into {store.root}: {store.degraded}")
    before = store.unwritten
    imported = _imported(store, file, None, trusted=trusted)
    _refuse_part(store, before)
    return imported


def import_bytes(store: Store, data: bytes, name: str) -> Imported:
    """Import an archive that is no file, as `import_archive` does, with unsigned kernels.

    It is among artifacts of ``torch.compiler``, from which torch itself runs code: pickles, Python, libraries. A cache that
    cannot be written to keeps the entries in memory: the process that passes them uses them.

    Args:
        store: The cache.
        data: The archive.
        name: Its name, for messages.

    Raises:
        ArchiveError: The archive is damaged, of another format, or unsafe.
        CacheError: Neither the cache nor the folder for temporary files can be written.
    """
    return _imported(store, Path(name), data, trusted=True)


def _imported(store: Store, file: Path, data: bytes | None, *, trusted: bool) -> Imported:
    try:
        staging = _staging(store)
    except OSError as error:
        raise CacheError(f"cannot import {file} into {store.root}: {error}") from error
    try:
        hashes = tape.unpack(file, staging, data)
        staged = Layout(staging)
        _check(staged, str(file), hashes)
        # Bytes are artifacts of torch.compiler: no operator was asked.
        way: Way = "operator" if data is None else "artifacts"
        entries = _staged_kernels(staged)
        kernels = admitted(store, entries, str(file), trusted=trusted, unsigned=way)
        return _copy_entries(store, staged, kernels, keeps_pins=trusted and data is None)
    except OSError as error:
        raise CacheError(f"cannot import {file} into {store.root}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _staging(store: Store) -> Path:
    """Return a new folder of this process alone, beside the cache's entries where that can be written."""
    if store.degraded is not None:
        return Path(tempfile.mkdtemp(prefix="inductor-plugin-import-"))
    staging = atomic.private_path(store.layout.private)
    staging.mkdir(mode=0o700)
    return staging


def _refuse_part(store: Store, before: int) -> None:
    """Raise CacheError if not everything was written; ``before`` is `Store.unwritten` before it was."""
    if store.degraded is not None:
        raise CacheError(f"{store.root} took only a part: {store.degraded}; free some space")
    count = store.unwritten - before
    if count:
        raise CacheError(
            f"{store.root} took only a part: {count} entries were not written; the warnings say why"
        )


def merge_stores(target: Store, source: Store) -> Imported:
    """Copy all valid entries of one cache into another, as `import_archive` does; others are skipped (`sound_kernels`).

    Raises:
        CacheError: The target cannot be written, or not every entry.
    """
    if target.degraded is not None:
        raise CacheError(f"cannot merge into {target.root}: {target.degraded}")
    before = target.unwritten
    kernels = copied_from(source.root, sound_kernels(source.layout))
    merged = _copy_entries(target, source.layout, kernels, keeps_pins=True)
    _refuse_part(target, before)
    return merged


def _check(staged: Layout, file: str, hashes: Mapping[str, str]) -> None:
    """Raise ArchiveError unless every staged file is valid and matches its path.

    Args:
        staged: The unpacked archive.
        file: Its name, for messages.
        hashes: The SHA-256 of each staged file, which was computed when it was written.
    """
    try:
        for path in record_files(staged.records):
            parse_record(read(path), path)
        for path in environment_files(staged.records):
            parse_environment(read(path), path.parent.name)
        for path in quarantine_files(staged.quarantined):
            parse_quarantined(read(path))
        for path in pack_files(staged.packs):
            _check_pack(staged, parse_pack(read(path)))
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{file} holds a damaged entry: {error}; export it again") from error
    for folder in kernel_folders(staged.kernels):
        reason = _damage_of_staged(folder, staged.root, hashes) or unlisted(folder)
        if reason is not None:
            raise ArchiveError(f"{file} holds a damaged kernel {folder.name}: {reason}")


def _damage_of_staged(folder: Path, root: Path, hashes: Mapping[str, str]) -> str | None:
    """Return the damage of an unpacked kernel, or None.

    A library of many kernels is in the archive once and under many names here: hashing it for each
    name would read it as often.
    """
    try:
        entry = parse_entry(read(folder / ENTRY), folder)
    except (OSError, ValueError, RecursionError) as error:
        return str(error)
    if entry.digest != folder.name:
        return f"it lies under the name of another kernel ({entry.digest[:12]})"
    for name, sha256 in entry.files.items():
        if hashes.get(str((folder / name).relative_to(root))) != sha256:
            return f"the checksum of {name} does not match"
    return None


def _staged_kernels(staged: Layout) -> Iterator[KernelEntry]:
    for folder in kernel_folders(staged.kernels):
        yield parse_entry(read(folder / ENTRY), folder)


def _check_pack(staged: Layout, pack: Pack) -> None:
    missing = [digest for digest in pack.kernels if not staged.kernel(digest).is_dir()]
    if missing:
        raise ValueError(
            f"pack {pack.name} lacks {len(missing)} of its {len(pack.kernels)} kernels"
        )


def _copy_entries(
    store: Store, source: Layout, entries: Iterable[KernelEntry], *, keeps_pins: bool
) -> Imported:
    environments = [
        _is_new_environment(store, path.parent.name, fields)
        for path in environment_files(source.records)
        if (fields := sound_environment(path)) is not None
    ]
    records = [
        _placed(store, record if keeps_pins else replace(record, pinned=False))
        for path in record_files(source.records)
        if (record := sound_record(path)) is not None
    ]
    copied = copy_kernels(store, entries)
    quarantined = [store.add_quarantined(entry) for entry in _sound_quarantine(source)]
    packs = [pack for path in pack_files(source.packs) if (pack := sound_pack(path)) is not None]
    new_packs = [store.put_pack(pack) for pack in packs]
    unchanged = (
        environments.count(False),
        records.count("unchanged"),
        quarantined.count(False),
        new_packs.count(False),
    )
    return Imported(
        records=records.count("new"),
        kernels=copied.new,
        quarantined=quarantined.count(True),
        environments=environments.count(True),
        merged=records.count("merged"),
        unchanged=copied.existing + sum(unchanged),
        packs=tuple(packs),
        libraries=copied.libraries,
        signed=copied.signed,
        signatures_left_out=copied.signatures_left_out,
    )


def _is_new_environment(store: Store, digest: str, fields: Mapping[str, Any]) -> bool:
    exists = store.environment(digest) is not None
    store.put_environment(fields)
    return not exists


def _placed(store: Store, record: Record) -> Literal["new", "merged", "unchanged"]:
    """Merge a record into the store, and return the effect."""
    before = store.record(record.environment, record.op, record.digest)
    after = store.add_record(record)
    if before is None:
        return "new"
    return "unchanged" if after == before else "merged"


def _sound_quarantine(source: Layout) -> Iterator[Quarantined]:
    entries = (sound_quarantined(path) for path in quarantine_files(source.quarantined))
    return (entry for entry in entries if entry is not None)
