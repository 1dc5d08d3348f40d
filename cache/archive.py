"""One file that carries a cache, or a part of it, to another machine; and merging two caches.

The file is a gzipped tar: ``manifest.json`` first, with the SHA-256 of every member, then the
members in sorted order with fixed times and owners, so that equal caches give equal files.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from inductor_plugin.cache import atomic
from inductor_plugin.cache.entry import ENTRY, damage_of_folder, parse_entry
from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import Layout, part
from inductor_plugin.cache.quarantine import Quarantined, parse_quarantined, quarantine_files
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.records import (
    environment_files,
    parse_environment,
    parse_record,
    record_files,
)
from inductor_plugin.cache.store import Store
from inductor_plugin.cache.verify import unlisted
from inductor_plugin.errors import ArchiveError, CacheError

MANIFEST = "manifest.json"
MAX_MEMBER_BYTES = 1 << 30
MAX_TOTAL_BYTES = 64 << 30
MAX_MEMBERS = 1_000_000
_MAX_MANIFEST_BYTES = 256 << 20
_BLOCK = 1 << 20

_PART = r"[0-9A-Za-z_][0-9A-Za-z_.+-]{0,134}"
_MEMBER = re.compile(
    rf"records/{_PART}/environment\.json|records/{_PART}/{_PART}/{_PART}\.json"
    rf"|kernels/[0-9A-Za-z_.+-]{{2}}/{_PART}/{_PART}|quarantine/{_PART}/{_PART}\.json"
)


@dataclass(frozen=True)
class Imported:
    """What came out of an archive or another cache.

    Attributes:
        records: Records that were not there before.
        kernels: Kernels that were not there before.
        quarantined: Quarantine entries that were not there before.
        environments: Environments that were not there before.
        merged: Records that were there and know more, or something newer, now.
        unchanged: All that was there before and stays as it was, of every kind.
    """

    records: int = 0
    kernels: int = 0
    quarantined: int = 0
    environments: int = 0
    merged: int = 0
    unchanged: int = 0


def export_archive(
    store: Store, file: Path, *, environment: str | None = None, op: str | None = None
) -> dict[str, int]:
    """Write what is sound in a cache to one file, and return how many of each kind.

    Args:
        store: The cache.
        file: Where to, in a folder that is there; replaced whole.
        environment: Only environments whose digest starts so, and the kernels their records name.
        op: Only records of this operator, and the kernels they name.

    Raises:
        ArchiveError: Its folder is not there, or the file cannot be written.
    """
    if not file.parent.is_dir():
        raise ArchiveError(
            f"cannot write {file}: there is no folder {file.parent}; make it or name another file"
        )
    layout = store.layout
    names = [str(path.relative_to(layout.root)) for path in _selected(layout, environment, op)]
    draft = file.with_name(f".{file.name}.part")
    try:
        with draft.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
            _write(layout, sorted(names), packed)
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ArchiveError(f"cannot write {file}: {error}; name another file") from error
    return {
        "records": sum(name.startswith("records/") and name.count("/") == 3 for name in names),
        "kernels": sum(
            name.endswith(f"/{ENTRY}") and name.startswith("kernels/") for name in names
        ),
        "environments": sum(name.endswith("/environment.json") for name in names),
        "quarantined": sum(name.startswith("quarantine/") for name in names),
    }


def import_archive(store: Store, file: Path) -> Imported:
    """Take over an archive. Everything is checked before anything is placed.

    Records merge candidate by candidate, the newer measurement staying; kernels, environments and
    quarantine entries that are there already stay.

    Raises:
        ArchiveError: The file is not there, damaged, of another format, or unsafe.
        CacheError: The cache cannot be written.
    """
    if store.degraded is not None:
        raise CacheError(f"cannot import into {store.root}: {store.degraded}")
    staging = atomic.private_path(store.layout.private)
    try:
        staging.mkdir(mode=0o700)
        _unpack(file, staging)
        staged = Layout(staging)
        _check(staged, str(file))
        return _take_over(store, staged)
    except OSError as error:
        raise CacheError(f"cannot import {file} into {store.root}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def merge_stores(target: Store, source: Store) -> Imported:
    """Take everything sound in one cache over into another; what is damaged is left behind.

    Raises:
        CacheError: The target cannot be written.
    """
    if target.degraded is not None:
        raise CacheError(f"cannot merge into {target.root}: {target.degraded}")
    return _take_over(target, source.layout)


def _selected(layout: Layout, environment: str | None, op: str | None) -> Iterator[Path]:
    """Yield the sound files that belong into an archive."""
    environments: set[str] = set()
    kernels: set[str] = set()
    for path in record_files(layout.records):
        wanted = path.parent.parent.name.startswith(environment or "") and (
            op is None or path.parent.name == part(op)
        )
        record = _sound_record(path) if wanted else None
        if record is not None:
            environments.add(path.parent.parent.name)
            kernels.update(one.kernel for one in record.candidates.values() if one.kernel)
            yield path
    everything = environment is None and op is None
    for path in environment_files(layout.records):
        if (everything or path.parent.name in environments) and _sound_environment(path):
            yield path
    for folder in kernel_folders(layout.kernels):
        if (everything or folder.name in kernels) and damage_of_folder(folder) is None:
            entry = parse_entry((folder / ENTRY).read_bytes(), folder)
            yield from (folder / name for name in (ENTRY, *entry.files))
    for path in quarantine_files(layout.quarantined):
        if everything or path.parent.name in environments:
            yield path


def _sound_record(path: Path) -> Record | None:
    try:
        return parse_record(path.read_bytes(), path)
    except (OSError, ValueError):
        return None


def _sound_environment(path: Path) -> dict[str, Any] | None:
    try:
        return parse_environment(path.read_bytes(), path.parent.name)
    except (OSError, ValueError):
        return None


def _write(layout: Layout, names: list[str], packed: gzip.GzipFile) -> None:
    hashes = {name: hashlib.sha256((layout.root / name).read_bytes()).hexdigest() for name in names}
    manifest = json.dumps({"format": SCHEMA, "members": hashes}, indent=1).encode()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, MANIFEST, manifest)
        for name in names:
            data = (layout.root / name).read_bytes()
            if hashlib.sha256(data).hexdigest() != hashes[name]:
                # A record was written in between; its old content is what the manifest states.
                raise OSError(f"{name} changed while it was exported; export again")
            _add(archive, name, data)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o600
    archive.addfile(member, io.BytesIO(data))


def _unpack(file: Path, staging: Path) -> None:
    """Write an archive's members into a private folder, each checked against the manifest."""
    try:
        with tarfile.open(file, mode="r|gz") as archive:
            hashes: dict[str, str] | None = None
            total = 0
            for member in archive:
                _refuse_unsafe(member, str(file))
                if hashes is None:
                    hashes = _manifest(archive, member, file)
                    continue
                total += member.size
                if total > MAX_TOTAL_BYTES:
                    raise ArchiveError(f"{file} holds more than {MAX_TOTAL_BYTES} bytes; split it")
                stated = hashes.pop(member.name, None)
                if stated is None:
                    raise ArchiveError(
                        f"{file} holds {member.name!r} twice or outside its manifest; export it again"
                    )
                _place(archive, member, staging / member.name, stated)
    except FileNotFoundError:
        raise ArchiveError(f"there is no file {file}; name one written by `export`") from None
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise ArchiveError(
            f"{file} is damaged or no export file: {error}; export it again"
        ) from error
    if hashes is None:
        raise ArchiveError(f"{file} is empty; export it again")
    if hashes:
        raise ArchiveError(
            f"{file} lacks {len(hashes)} members, {min(hashes)!r} first; export it again"
        )


def _refuse_unsafe(member: tarfile.TarInfo, file: str) -> None:
    if not member.isreg():
        raise ArchiveError(
            f"{file} holds {member.name!r}, which is no plain file (a link, device or folder); "
            "it was not written by `export`, do not use it"
        )
    if member.name != MANIFEST and not _MEMBER.fullmatch(member.name):
        raise ArchiveError(
            f"{file} holds {member.name!r}, which is no path of a cache; "
            "it was not written by `export`, do not use it"
        )
    limit = _MAX_MANIFEST_BYTES if member.name == MANIFEST else MAX_MEMBER_BYTES
    if member.size > limit:
        raise ArchiveError(
            f"{file} holds {member.name!r} of {member.size} bytes; the limit is {limit}"
        )


def _manifest(archive: tarfile.TarFile, member: tarfile.TarInfo, file: Path) -> dict[str, str]:
    stream = archive.extractfile(member)
    if member.name != MANIFEST or stream is None:
        raise ArchiveError(f"{file} does not start with {MANIFEST}; it was not written by `export`")
    fields = json.loads(stream.read())
    if not isinstance(fields, dict) or not isinstance(cast("Any", fields).get("members"), dict):
        raise ArchiveError(f"{file} has a manifest without members; export it again")
    found = cast("dict[str, Any]", fields)
    if found.get("format") != SCHEMA:
        raise ArchiveError(
            f"{file} has format {found.get('format')!r}, this version reads {SCHEMA}; "
            "export it with a version of that format"
        )
    members: Mapping[str, Any] = found["members"]
    if len(members) > MAX_MEMBERS:
        raise ArchiveError(f"{file} names {len(members)} members; the limit is {MAX_MEMBERS}")
    return {name: str(stated) for name, stated in members.items()}


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, stated: str) -> None:
    """Write one member, and raise ArchiveError if it is not what the manifest says."""
    stream = archive.extractfile(member)
    assert stream is not None
    found = hashlib.sha256()
    atomic.make_folder(path.parent)
    with path.open("xb") as file:
        while block := stream.read(_BLOCK):
            found.update(block)
            file.write(block)
    path.chmod(0o700 if path.suffix == ".so" else 0o600)
    if found.hexdigest() != stated:
        raise ArchiveError(
            f"the checksum of {member.name!r} is not that of the manifest; export it again"
        )


def _check(staged: Layout, file: str) -> None:
    """Raise ArchiveError unless every staged file says what its place says."""
    try:
        for path in record_files(staged.records):
            parse_record(path.read_bytes(), path)
        for path in environment_files(staged.records):
            parse_environment(path.read_bytes(), path.parent.name)
        for path in quarantine_files(staged.quarantined):
            parse_quarantined(path.read_bytes())
    except ValueError as error:
        raise ArchiveError(f"{file} holds a damaged entry: {error}; export it again") from error
    for folder in kernel_folders(staged.kernels):
        reason = damage_of_folder(folder) or unlisted(folder)
        if reason is not None:
            raise ArchiveError(f"{file} holds a damaged kernel {folder.name}: {reason}")


def _take_over(store: Store, source: Layout) -> Imported:
    environments = [
        _is_new_environment(store, path.parent.name, fields)
        for path in environment_files(source.records)
        if (fields := _sound_environment(path)) is not None
    ]
    records = [
        _placed(store, record)
        for path in record_files(source.records)
        if (record := _sound_record(path)) is not None
    ]
    kernels, kernels_there = _take_kernels(store, kernel_folders(source.kernels))
    taken = [store.add_quarantined(one) for one in _sound_quarantine(source)]
    if store.degraded is not None:
        raise CacheError(f"{store.root} took only a part: {store.degraded}; free some space")
    there = (environments.count(False), records.count("unchanged"), taken.count(False))
    return Imported(
        records=records.count("new"),
        kernels=kernels,
        quarantined=taken.count(True),
        environments=environments.count(True),
        merged=records.count("merged"),
        unchanged=kernels_there + sum(there),
    )


def _is_new_environment(store: Store, digest: str, fields: Mapping[str, Any]) -> bool:
    known = store.environment(digest) is not None
    store.put_environment(fields)
    return not known


def _placed(store: Store, record: Record) -> Literal["new", "merged", "unchanged"]:
    """Merge a record in, and return what that changed."""
    before = store.record(record.environment, record.op, record.digest)
    after = store.put_record(record)
    if before is None:
        return "new"
    return "unchanged" if after == before else "merged"


def _take_kernels(store: Store, folders: Iterable[Path]) -> tuple[int, int]:
    """Publish kernels; return how many are new, and how many were there."""
    new = there = 0
    for folder in folders:
        if damage_of_folder(folder) is not None or not folder.exists():
            continue
        entry = parse_entry((folder / ENTRY).read_bytes(), folder)
        if store.kernel(entry.digest) is not None:
            there += 1
            continue
        files: dict[str, Path | bytes] = {name: folder / name for name in entry.files}
        store.put_kernel(entry.key, files, entry.resources)
        new += 1
    return new, there


def _sound_quarantine(source: Layout) -> Iterator[Quarantined]:
    found = (_sound_quarantined(path) for path in quarantine_files(source.quarantined))
    return (one for one in found if one is not None)


def _sound_quarantined(path: Path) -> Quarantined | None:
    try:
        return parse_quarantined(path.read_bytes())
    except (OSError, ValueError):
        return None
