"""PTX out of a fat binary, as nvcc embeds it in host code and hands it to the CUDA runtime.

A fat binary is a header (magic 0xBA55ED50, version, sizes) and entries; an entry is a header of 64 bytes and more
(its kind at byte 0: 1 is PTX, 2 machine code; its size at 4, its payload's at 8, flags at 40) and the payload.
The layout is not documented; see llvm/lib/Offloading and CUDA's ``fatbinary_section.h``.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator

_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")
_PTX = 1
_COMPRESSED = 0x2000 | 0x8000


class FatBinaryError(Exception):
    """Bytes that are no fat binary, or one without readable PTX."""


def texts(image: bytes) -> list[str]:
    """Return all PTX of a fat binary.

    Raises:
        FatBinaryError: It is none, or its PTX is compressed.
    """
    return [text.split(b"\0")[0].decode() for text in _payloads(image)]


def _payloads(image: bytes) -> Iterator[bytes]:
    magic, _, header, size = _HEADER.unpack_from(image)
    if magic != _MAGIC:
        raise FatBinaryError(f"a fat binary begins with {_MAGIC:#x}, this with {magic:#x}")
    position, end = header, header + size
    while position < end:
        kind, _, entry, payload = _ENTRY.unpack_from(image, position)
        (flags,) = struct.unpack_from("<Q", image, position + 40)
        if kind == _PTX:
            if flags & _COMPRESSED:
                raise FatBinaryError("the PTX is compressed: compile with -Xfatbin=-compress=false")
            yield image[position + entry : position + entry + payload]
        position += entry + payload


def image_at(address: int) -> bytes:
    """Return the fat binary at an address of this process, as long as its header says."""
    _, _, header, size = _HEADER.unpack(ctypes.string_at(address, _HEADER.size))
    return ctypes.string_at(address, header + size)
