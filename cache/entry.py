"""A compiled kernel in the cache: its files, their checksums, its resources."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from inductor_plugin.cache import document
from inductor_plugin.cache.key import SCHEMA, KernelKey

ENTRY = "entry.json"


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel on the device; None if unknown.

    Attributes:
        registers: Registers per thread.
        spills: Bytes spilled per thread.
        shared_bytes: Shared memory per block.
        threads: Threads per block.
    """

    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class KernelEntry:
    """A kernel in the cache.

    Attributes:
        digest: Its key's digest.
        key: Its key.
        files: SHA-256 of each file by name.
        bytes: Size of all files.
        resources: Its resources on the device.
        created: Time of publication, in seconds since 1970.
        folder: The folder of its files.
    """

    digest: str
    key: KernelKey
    files: Mapping[str, str]
    bytes: int
    resources: Resources
    created: float
    folder: Path = field(compare=False)

    def path(self, name: str) -> Path:
        """Return the path of one of the files.

        Raises:
            KeyError: The kernel has no such file.
        """
        if name not in self.files:
            raise KeyError(
                f"kernel {self.digest[:12]} has no {name!r}; it has {sorted(self.files)}"
            )
        return self.folder / name


def make_entry(
    folder: Path, key: KernelKey, names: list[str], resources: Resources | None
) -> bytes:
    """Return the text of ``entry.json`` for files in ``folder``.

    Raises:
        OSError: A file cannot be read.
    """
    return document.dump(
        {
            "format": SCHEMA,
            "digest": key.digest,
            "created": round(time.time(), 3),
            "bytes": sum((folder / name).stat().st_size for name in names),
            "resources": asdict(resources or Resources()),
            "key": key.fields(),
            "files": {name: file_sha256(folder / name) for name in sorted(names)},
        }
    )


def parse_entry(data: bytes, folder: Path) -> KernelEntry:
    """Return the entry described by the text of an ``entry.json``.

    Raises:
        ValueError: The text is damaged, of another format, or has another kernel's digest.
    """
    fields = document.load(data)
    if fields.get("format") != SCHEMA:
        raise ValueError(f"its format is {fields.get('format')!r}, not {SCHEMA}")
    try:
        key = KernelKey(**fields["key"])
        entry = KernelEntry(
            digest=fields["digest"],
            key=key,
            files={str(name): str(sha256) for name, sha256 in fields["files"].items()},
            bytes=int(fields["bytes"]),
            resources=Resources(**fields["resources"]),
            created=float(fields["created"]),
            folder=folder,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a kernel entry: {type(error).__name__}: {error}") from error
    if key.digest != entry.digest:
        raise ValueError(f"its digest {entry.digest[:12]} is not that of its key {key.digest[:12]}")
    if any("/" in name or name in ("", ".", "..", ENTRY) for name in entry.files):
        raise ValueError(f"it names files outside its folder: {sorted(entry.files)}")
    return entry


def damage(entry: KernelEntry) -> str | None:
    """Return the damage of a kernel's files, or None if all checksums match."""
    try:
        for name, sha256 in entry.files.items():
            if file_sha256(entry.folder / name) != sha256:
                return f"the checksum of {name} does not match"
    except OSError as error:
        return f"a file cannot be read: {error}"
    return None


def damage_of_folder(folder: Path) -> str | None:
    """Return the damage of a kernel's folder, or None if it is valid or does not exist."""
    try:
        entry = parse_entry((folder / ENTRY).read_bytes(), folder)
        reason = damage(entry)
        if reason is None and entry.digest != folder.name:
            reason = f"it lies under the name of another kernel ({entry.digest[:12]})"
    except (OSError, ValueError) as error:
        reason = str(error)
    return reason if folder.exists() else None


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Raises:
        OSError: The file cannot be read.
    """
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
    return sha256.hexdigest()
