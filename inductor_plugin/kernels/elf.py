"""Reads integers that a shared library exports from its file, without loading the library."""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"
"""64 bits, little-endian: the only format of CUDA's host compilers."""

_DYNSYM, _NOBITS = 11, 8
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True)
class _Section:
    kind: int
    address: int
    offset: int
    size: int
    link: int


def exported(path: Path, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the 32-bit integers of each exported name; missing names are left out.

    Args:
        path: The library.
        names: Names of ``int32_t`` constants or arrays of them.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no library, or truncated.
    """
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        raise ValueError(f"{path.name} is no 64-bit ELF library")
    try:
        return _exported(data, {name.encode(): name for name in names})
    except (struct.error, IndexError) as error:
        raise ValueError(f"{path.name} is cut off: {error}") from error


def _exported(data: bytes, names: dict[bytes, str]) -> dict[str, tuple[int, ...]]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [_section(data, table + index * size) for index in range(count)]
    numbers: dict[str, tuple[int, ...]] = {}
    for symbols in (section for section in sections if section.kind == _DYNSYM):
        texts = sections[symbols.link].offset
        for at in range(symbols.offset, symbols.offset + symbols.size, _SYMBOL.size):
            text, _, _, index, address, length = _SYMBOL.unpack_from(data, at)
            name = names.get(data[texts + text : data.index(b"\0", texts + text)])
            if name is None or not 0 < index < count:
                continue
            section = sections[int(index)]
            if section.kind == _NOBITS:
                continue
            start = section.offset + address - section.address
            numbers[name] = struct.unpack_from(f"<{length // 4}i", data, start)
    return numbers


def _section(data: bytes, at: int) -> _Section:
    _, kind, _, address, offset, size, link, _, _, _ = _SECTION.unpack_from(data, at)
    return _Section(kind, address, offset, size, link)
