"""A compiled kernel in the cache: its files, their checksums, its resources."""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from inductor_plugin.cache import document
from inductor_plugin.cache.document import (
    moment,
    optional,
    table,
    table_of,
    text,
    typed,
    unknown,
    whole,
)
from inductor_plugin.cache.guard import MISSING, exists, open_regular, read
from inductor_plugin.cache.key import SCHEMA, KernelKey

ENTRY = "entry.json"
MAX_SIGNATURES = 16

Way = Literal["signature", "operator", "artifacts", "directory"]
"""How a kernel that was built elsewhere gets into a cache; see `Taken`."""


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel on the device; None if unknown.

    Attributes:
        registers: Registers per thread.
        spills: Bytes spilled per thread.
        shared_bytes: Shared memory per block.
        threads: Threads per block.
        extra: Fields of a newer version; they are written back as they were read.
    """

    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    threads: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def fields(self) -> dict[str, Any]:
        """Return the resources by name, those of a newer version among them."""
        fields = asdict(self)
        extra = fields.pop("extra")
        return {**fields, **unknown(extra, fields)}


@dataclass(frozen=True)
class Taken:
    """Why a kernel that was built elsewhere is in this cache.

    Attributes:
        by: ``signature`` of a key in ``trusted_keys``, checked again at each load; the ``operator``, by ``--trust``;
            ``artifacts``, which a process has loaded by ``torch.compiler.load_cache_artifacts``, without asking; or another
            cache's ``directory``, which the operator has merged.
        source: The file, directory or URL it came from; the key of the artifact.
    """

    by: Way
    source: str


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
        extra: Fields of a newer version, as in `Resources`.
        signatures: Signatures of its statement (`cache.trust.statement`) by public key; they travel with it.
        taken: Why it is in this cache; None if it was built here. It does not travel.
    """

    digest: str
    key: KernelKey
    files: Mapping[str, str]
    bytes: int
    resources: Resources
    created: float
    folder: Path = field(compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    signatures: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    taken: Taken | None = field(default=None, compare=False)

    @property
    def further(self) -> dict[str, Any]:
        """The fields of ``entry.json`` that a copy keeps, besides key, files and resources."""
        signatures = {"signatures": dict(self.signatures)} if self.signatures else {}
        taken = {"taken": asdict(self.taken)} if self.taken is not None else {}
        return {**self.extra, **signatures, **taken}

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

    def holds(self, name: str, file: Path) -> bool:
        """Return whether one of the files has the bytes of another file; False if one cannot be read, as after an eviction."""
        try:
            return filecmp.cmp(file, self.path(name), shallow=False)
        except OSError:
            return False


def make_entry(
    folder: Path,
    key: KernelKey,
    names: list[str],
    resources: Resources | None,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the text of ``entry.json`` for files in ``folder``.

    Raises:
        OSError: A file cannot be read.
        ValueError: One is not a file.
    """
    fields = {
        "format": SCHEMA,
        "digest": key.digest,
        "created": round(time.time(), 3),
        "bytes": sum((folder / name).stat().st_size for name in names),
        "resources": (resources or Resources()).fields(),
        "key": key.fields(),
        "files": {name: file_sha256(folder / name) for name in sorted(names)},
    }
    return document.dump({**fields, **unknown(extra or {}, fields)})


def parse_entry(data: bytes, folder: Path) -> KernelEntry:
    """Return the entry described by the text of an ``entry.json``; every field's type was checked.

    Raises:
        ForeignError: The text is of another format, or its key has fields this version does not know.
        ValueError: It is damaged, or has another kernel's digest.
    """
    fields = document.load(data)
    document.check_format(fields, SCHEMA)
    try:
        values = typed(fields, _ENTRY)
        key = KernelKey(**typed(values["key"], _KEY))
        resources = typed(values["resources"], _RESOURCES)
    except ValueError as error:
        raise ValueError(f"it is not a kernel entry: {error}") from error
    try:
        provenance = {
            name: reader(fields[name]) for name, reader in _PROVENANCE.items() if name in fields
        }
    except ValueError as error:
        raise ValueError(f"its origin: {error}") from error
    names = unknown(values["key"], _KEY)
    if names:
        raise document.ForeignError(f"its key has the unknown fields {sorted(names)}")
    entry = KernelEntry(
        digest=values["digest"],
        key=key,
        files=values["files"],
        bytes=values["bytes"],
        resources=Resources(**resources, extra=unknown(values["resources"], _RESOURCES)),
        created=values["created"],
        folder=folder,
        extra=unknown(fields, {"format", *_ENTRY, *_PROVENANCE}),
        **provenance,
    )
    if key.digest != entry.digest:
        raise ValueError(f"its digest {entry.digest[:12]} is not that of its key {key.digest[:12]}")
    if any("/" in name or "\0" in name or name in ("", ".", "..", ENTRY) for name in entry.files):
        raise ValueError(f"it names files outside its folder: {sorted(entry.files)}")
    return entry


def read_entry(folder: Path) -> KernelEntry:
    """Return the entry in a kernel's folder.

    Raises:
        OSError: It does not exist or cannot be read.
        ForeignError: It is another version's.
        ValueError: It is damaged.
    """
    return parse_entry(read(folder / ENTRY), folder)


def damage(entry: KernelEntry) -> str | None:
    """Return the damage of a kernel's files, or None if all checksums match.

    Raises:
        OSError: A file cannot be read, which says nothing of its content.
    """
    reasons = (_damage_of_file(entry, name, sha256) for name, sha256 in entry.files.items())
    return next((reason for reason in reasons if reason is not None), None)


def _damage_of_file(entry: KernelEntry, name: str, sha256: str) -> str | None:
    try:
        if file_sha256(entry.folder / name, entry.bytes) != sha256:
            return f"the checksum of {name} does not match"
    except MISSING:
        return f"{name} is missing"
    except ValueError as error:
        return f"{name}: {error}"
    return None


def content_damage(folder: Path) -> str | None:
    """Return what is wrong with the content of a kernel's folder; None if it is valid or not there.

    Raises:
        OSError: A file cannot be read, which says nothing of its content.
        ForeignError: The kernel is another version's.
    """
    try:
        entry = read_entry(folder)
        reason = damage(entry)
        if reason is None and entry.digest != folder.name:
            reason = f"it lies under the name of another kernel ({entry.digest[:12]})"
    except document.ForeignError:
        raise
    except ValueError as error:
        reason = str(error)
    except MISSING:
        reason = f"{ENTRY} is missing"
    return reason if exists(folder) else None


def damage_of_folder(folder: Path) -> str | None:
    """Return why a kernel's folder cannot be used, or None if it can be or does not exist."""
    try:
        return content_damage(folder)
    except OSError as error:
        return f"it cannot be read: {error}" if exists(folder) else None
    except document.ForeignError as error:
        return f"it is another version's: {error}"


def file_sha256(path: Path, limit_bytes: int | None = None) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is a link, a pipe or a device, or has more than ``limit_bytes``.
    """
    sha256 = hashlib.sha256()
    with open_regular(path, follow=False) as file:
        if limit_bytes is not None and os.fstat(file.fileno()).st_size > limit_bytes:
            raise ValueError(f"it is larger than its kernel, {limit_bytes} bytes")
        while block := file.read(1 << 20):
            sha256.update(block)
    return sha256.hexdigest()


def _signatures(value: Any) -> dict[str, str]:
    signatures: dict[str, str] = table_of(text)(value)
    if len(signatures) > MAX_SIGNATURES or not all(
        map(_SIGNED.fullmatch, [*signatures, *signatures.values()])
    ):
        raise ValueError(f"it has more than {MAX_SIGNATURES} signatures, or one that is none")
    return signatures


def _taken(value: Any) -> Taken:
    fields = typed(value, {"by": text, "source": text})
    if fields["by"] not in get_args(Way):
        raise ValueError(f"it was taken by {fields['by']!r}, which is no way to take a kernel")
    # Until there was a word of their own, artifacts were written as the operator's, by their keys.
    if fields["by"] == "operator" and _ARTIFACT.fullmatch(fields["source"]):
        fields["by"] = "artifacts"
    return Taken(**fields)


_SIGNED = re.compile(r"[!-~]{1,128}")
"""A key or a signature, of algorithms to come, too: reports and logs quote it."""
_ARTIFACT = re.compile("kernel/[0-9a-f]{64}")
"""The key of a kernel among the artifacts of ``torch.compiler`` (`inductor.artifacts.artifact`)."""
_PROVENANCE: dict[str, Callable[[Any], Any]] = {"signatures": _signatures, "taken": _taken}
"""Fields that only kernels have that somebody vouches for."""
_KEY: dict[str, Callable[[Any], Any]] = dict.fromkeys(
    ("template", "source", "config", "target", "toolchain", "flags"), text
)
_RESOURCES: dict[str, Callable[[Any], Any]] = dict.fromkeys(
    ("registers", "spills", "shared_bytes", "threads"), optional(whole)
)
_ENTRY: dict[str, Callable[[Any], Any]] = {
    "digest": text,
    "key": table,
    "files": table_of(text),
    "bytes": whole,
    "resources": table,
    "created": moment,
}
