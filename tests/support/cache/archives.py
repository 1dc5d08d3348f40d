"""Archives written by hand, with members that `export` would not write."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inductor_plugin.cache import KernelKey, document
from inductor_plugin.cache.transfer.tape import MANIFEST


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(
    file: Path, members: Mapping[str, bytes], manifest: Mapping[str, str] | None = None
) -> Path:
    """Write an archive; its manifest has the members' checksums unless one is passed."""
    listed = (
        {name: sha256(data) for name, data in members.items()} if manifest is None else manifest
    )
    head = json.dumps({"format": 1, "members": dict(listed)}).encode()
    with tarfile.open(file, "w:gz", compresslevel=1) as out:
        for name, data in {MANIFEST: head, **members}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return file


def record_member(fields: Mapping[str, Any]) -> dict[str, bytes]:
    """Return a record as a member, wherever its own fields place it."""
    place = f"records/{fields['environment']}/{fields['op']}/{fields['digest']}.json"
    return {place: document.dump(dict(fields))}


def kernel_entry(key: Mapping[str, Any], library: bytes, **fields: Any) -> tuple[str, bytes]:
    """Return the folder and the entry of a kernel of one file."""
    digest = KernelKey(**key).digest
    entry = {
        "format": 1,
        "digest": digest,
        "created": 1.0,
        "bytes": len(library),
        "resources": {"registers": None, "spills": None, "shared_bytes": None, "threads": None},
        "key": dict(key),
        "files": {"kernel.so": sha256(library)},
    }
    return f"kernels/{digest[:2]}/{digest}", document.dump({**entry, **fields})


def kernel_members(key: Mapping[str, Any], library: bytes, **fields: Any) -> dict[str, bytes]:
    """Return a kernel of one file as members."""
    folder, entry = kernel_entry(key, library, **fields)
    return {f"{folder}/entry.json": entry, f"{folder}/kernel.so": library}
