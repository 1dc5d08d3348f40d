"""Fat binaries, as nvcc writes them."""

from __future__ import annotations

import struct


def entry(kind: int, payload: bytes, flags: int = 0) -> bytes:
    head = struct.pack("<HHIQ", kind, 1, 64, len(payload)).ljust(40, b"\0")
    return (head + struct.pack("<Q", flags)).ljust(64, b"\0") + payload


def image(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
