"""The file of an archive: a gzipped tar, ``manifest.json`` first, with the SHA-256 of every member.

Members follow in sorted order with fixed times and owners, so that equal caches give equal files.
A member with the content of an earlier one (a library of several kernels) is only in the manifest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from inductor_plugin.cache import atomic
from inductor_plugin.cache.guard import MAX_DOCUMENT_BYTES
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.transfer.member import Member, members
from inductor_plugin.errors import ArchiveError

MANIFEST = "manifest.json"
MAX_MEMBER_BYTES = 1 << 30
MAX_TOTAL_BYTES = 64 << 30
MAX_MEMBERS = 1_000_000
_MAX_MANIFEST_BYTES = 256 << 20

_PART = r"[0-9A-Za-z_][0-9A-Za-z_.+-]{0,134}"
_MEMBER = re.compile(
    rf"records/{_PART}/environment\.json|records/{_PART}/{_PART}/{_PART}\.json"
    # The folder of a kernel is named by the first two characters of its digest.
    rf"|kernels/(?P<start>[0-9A-Za-z_][0-9A-Za-z_+-])/(?P=start)[0-9A-Za-z_.+-]{{0,133}}/{_PART}"
    rf"|quarantine/{_PART}/{_PART}\.json"
    rf"|packs/{_PART}\.json"
)


def write(contents: Mapping[str, Path | bytes], packed: gzip.GzipFile) -> None:
    """Write files as an archive; equal contents are written once.

    Args:
        contents: Each member's file, or its content, by the member's name; written in this order.
        packed: The archive.

    Raises:
        OSError: A file cannot be read, or changed meanwhile.
    """
    hashes = {
        name: hashlib.sha256(_read(content)).hexdigest() for name, content in contents.items()
    }
    manifest = json.dumps({"format": SCHEMA, "members": hashes}, indent=1).encode()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, MANIFEST, manifest)
        written: set[str] = set()
        for name, content in contents.items():
            if hashes[name] in written:
                continue
            written.add(hashes[name])
            data = _read(content)
            if hashlib.sha256(data).hexdigest() != hashes[name]:
                # A record was written meanwhile; the manifest has the checksum of its old content.
                raise OSError(f"{name} changed while it was exported; export again")
            _add(archive, name, data)


def _read(content: Path | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o600
    archive.addfile(member, io.BytesIO(data))


def unpack(file: Path, staging: Path, data: bytes | None = None) -> dict[str, str]:
    """Write an archive's members into a private folder, each checked against the manifest.

    Args:
        file: The archive.
        staging: The folder.
        data: The archive's bytes, if it is no file; ``file`` is then its name for messages.

    Returns:
        The SHA-256 of each written file by its name.

    Raises:
        ArchiveError: The file is missing, damaged, of another format, or unsafe.
        OSError: The folder cannot be written to.
    """
    placed: dict[str, Member] = {}
    total = 0
    archive = members(file, data)
    hashes = _manifest(archive, file)
    missing = dict(hashes)
    for member in archive:
        _refuse_foreign(member.name, str(file))
        total = _within(total, member, file)
        sha256 = missing.pop(member.name, None)
        if sha256 is None:
            raise ArchiveError(
                f"{file} holds {member.name!r} twice or outside its manifest; export it again"
            )
        _place(member, staging / member.name, sha256)
        placed.setdefault(sha256, member)
    repeated = [name for name, sha256 in missing.items() if sha256 in placed]
    for name in repeated:  # all are counted before the first is written
        _refuse_foreign(name, str(file))
        total = _within(total, placed[missing[name]], file)
    for name in repeated:
        _repeat(staging / placed[missing.pop(name)].name, staging / name)
    if missing:
        raise ArchiveError(
            f"{file} lacks {len(missing)} members, {min(missing)!r} first; export it again"
        )
    return hashes


def contents(data: bytes, file: Path) -> dict[str, bytes]:
    """Return the members of an archive of documents, each checked against the manifest.

    Args:
        data: The archive.
        file: Its name, for messages.

    Raises:
        ArchiveError: It is damaged, of another format, or unsafe, or a member is larger than a document.
    """
    archive = members(file, data)
    hashes = _manifest(archive, file)
    known: dict[str, bytes] = {}
    for member in archive:
        _refuse_foreign(member.name, str(file))
        if member.size > MAX_DOCUMENT_BYTES:
            raise ArchiveError(
                f"{file} holds {member.name!r} of {member.size} bytes; the limit is {MAX_DOCUMENT_BYTES}"
            )
        content = b"".join(member.blocks())
        known[hashlib.sha256(content).hexdigest()] = content
    missing = [name for name, sha256 in hashes.items() if sha256 not in known]
    if missing:
        raise ArchiveError(
            f"{file} lacks {min(missing)!r}, or its checksum differs; export it again"
        )
    return {name: known[sha256] for name, sha256 in hashes.items()}


def check_start(file: Path) -> None:
    """Raise ArchiveError unless the file starts as an archive of this format does."""
    _manifest(members(file), file)


def _within(total: int, member: Member, file: Path) -> int:
    """Return the bytes of an archive with one more member; raise ArchiveError if they are too many."""
    if member.size > MAX_MEMBER_BYTES:
        raise ArchiveError(
            f"{file} holds {member.name!r} of {member.size} bytes; the limit is {MAX_MEMBER_BYTES}"
        )
    if total + member.size > MAX_TOTAL_BYTES:
        raise ArchiveError(f"{file} holds more than {MAX_TOTAL_BYTES} bytes; split it")
    return total + member.size


def _refuse_foreign(name: str, file: str) -> None:
    if not _MEMBER.fullmatch(name):
        raise ArchiveError(
            f"{file} holds {name!r}, which is no path of a cache; "
            "it was not written by `export`, do not use it"
        )


def _repeat(source: Path, path: Path) -> None:
    """Create a member with the content of another one."""
    atomic.make_folder(path.parent)
    try:
        os.link(source, path)
    except OSError:  # too many links, or a file system without them
        shutil.copy2(source, path)


def _manifest(archive: Iterator[Member], file: Path) -> dict[str, str]:
    """Return the SHA-256 of each member, from the first one."""
    member = next(archive, None)
    if member is None:
        raise ArchiveError(f"{file} is empty; export it again")
    if member.name != MANIFEST or member.size > _MAX_MANIFEST_BYTES:
        raise ArchiveError(f"{file} does not start with {MANIFEST}; it was not written by `export`")
    try:
        fields = json.loads(b"".join(member.blocks()))
    except (ValueError, RecursionError) as error:
        raise ArchiveError(
            f"{file} has a damaged manifest: {type(error).__name__}: {error}; export it again"
        ) from error
    if not isinstance(fields, dict) or not isinstance(cast("Any", fields).get("members"), dict):
        raise ArchiveError(f"{file} has a manifest without members; export it again")
    manifest = cast("dict[str, Any]", fields)
    if manifest.get("format") != SCHEMA:
        raise ArchiveError(
            f"{file} has format {manifest.get('format')!r}, this version reads {SCHEMA}; "
            "export it with a version of that format"
        )
    members: Mapping[str, Any] = manifest["members"]
    if len(members) > MAX_MEMBERS:
        raise ArchiveError(f"{file} names {len(members)} members; the limit is {MAX_MEMBERS}")
    return {name: str(sha256) for name, sha256 in members.items()}


def _place(member: Member, path: Path, sha256: str) -> None:
    """Write one member; raise ArchiveError if its checksum differs from the manifest."""
    actual = hashlib.sha256()
    atomic.make_folder(path.parent)
    with path.open("xb") as file:
        for block in member.blocks():
            actual.update(block)
            file.write(block)
    path.chmod(0o700 if path.suffix == ".so" else 0o600)
    if actual.hexdigest() != sha256:
        raise ArchiveError(
            f"the checksum of {member.name!r} is not that of the manifest; export it again"
        )
