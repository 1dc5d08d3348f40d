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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from inductor_plugin.cache import atomic
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.errors import ArchiveError

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
    rf"|packs/{_PART}\.json"
)


def write(root: Path, names: Sequence[str], packed: gzip.GzipFile) -> None:
    """Write files below ``root`` as an archive; equal contents are written once.

    Raises:
        OSError: A file cannot be read, or changed meanwhile.
    """
    hashes = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names}
    manifest = json.dumps({"format": SCHEMA, "members": hashes}, indent=1).encode()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, MANIFEST, manifest)
        written: set[str] = set()
        for name in names:
            if hashes[name] in written:
                continue
            written.add(hashes[name])
            data = (root / name).read_bytes()
            if hashlib.sha256(data).hexdigest() != hashes[name]:
                # A record was written meanwhile; the manifest has the checksum of its old content.
                raise OSError(f"{name} changed while it was exported; export again")
            _add(archive, name, data)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o600
    archive.addfile(member, io.BytesIO(data))


def unpack(file: Path, staging: Path) -> None:
    """Write an archive's members into a private folder, each checked against the manifest.

    Raises:
        ArchiveError: The file is missing, damaged, of another format, or unsafe.
    """
    placed: dict[str, Path] = {}
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
                sha256 = hashes.pop(member.name, None)
                if sha256 is None:
                    raise ArchiveError(
                        f"{file} holds {member.name!r} twice or outside its manifest; export it again"
                    )
                _place(archive, member, staging / member.name, sha256)
                placed.setdefault(sha256, staging / member.name)
    except FileNotFoundError:
        raise ArchiveError(f"there is no file {file}; name one written by `export`") from None
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise ArchiveError(
            f"{file} is damaged or no export file: {error}; export it again"
        ) from error
    if hashes is None:
        raise ArchiveError(f"{file} is empty; export it again")
    for name in [name for name, sha256 in hashes.items() if sha256 in placed]:
        _refuse_foreign(name, str(file))
        _repeat(placed[hashes.pop(name)], staging / name)
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
    if member.name != MANIFEST:
        _refuse_foreign(member.name, file)
    limit = _MAX_MANIFEST_BYTES if member.name == MANIFEST else MAX_MEMBER_BYTES
    if member.size > limit:
        raise ArchiveError(
            f"{file} holds {member.name!r} of {member.size} bytes; the limit is {limit}"
        )


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


def _manifest(archive: tarfile.TarFile, member: tarfile.TarInfo, file: Path) -> dict[str, str]:
    stream = archive.extractfile(member)
    if member.name != MANIFEST or stream is None:
        raise ArchiveError(f"{file} does not start with {MANIFEST}; it was not written by `export`")
    fields = json.loads(stream.read())
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


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, sha256: str) -> None:
    """Write one member; raise ArchiveError if its checksum differs from the manifest."""
    stream = archive.extractfile(member)
    assert stream is not None
    actual = hashlib.sha256()
    atomic.make_folder(path.parent)
    with path.open("xb") as file:
        while block := stream.read(_BLOCK):
            actual.update(block)
            file.write(block)
    path.chmod(0o700 if path.suffix == ".so" else 0o600)
    if actual.hexdigest() != sha256:
        raise ArchiveError(
            f"the checksum of {member.name!r} is not that of the manifest; export it again"
        )
