"""What a signature of a kernel says: these files, of these checksums, are the kernel of this key. Pure."""

from __future__ import annotations

import json

from inductor_plugin.cache.entry import KernelEntry

CONTEXT = "inductor-plugin kernel 1"
"""First field of every statement, so that a signature made for anything else says nothing of a kernel."""


def statement(entry: KernelEntry) -> bytes:
    """Return the bytes that are signed: key with toolchain and flags, SHA-256 of each file, sizes and resources.

    Not the time, which each cache writes anew, and not fields that this version does not know. A kernel cannot be signed as
    the kernel of another key: ``digest`` is that of the key (`parse_entry`).
    """
    fields = {
        "context": CONTEXT,
        "digest": entry.digest,
        "key": entry.key.fields(),
        "files": dict(entry.files),
        "bytes": entry.bytes,
        "resources": entry.resources.fields(),
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
