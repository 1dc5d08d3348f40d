"""The members of a gzipped tar, read with limits on everything that a file may state of itself.

`tarfile` reads an extended header into memory before anything can look at it, and stops at the end mark
without reading on to gzip's checksum. A tar that `export` writes has plain files, and extended headers
only for their names: anything else is refused.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inductor_plugin.errors import ArchiveError

MAX_HEADER_BYTES = 64 << 10
"""Largest extended header; it holds one name."""

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20
_PADDING = 64 << 10
"""Zeros behind the end mark: tar fills up a record, of 10 KiB by default."""
_FOREIGN = "it was not written by `export`, do not use it"


@dataclass(frozen=True)
class Member:
    """One file of an archive.

    Attributes:
        name: Its path in the archive, not yet checked.
        size: Its bytes.
        blocks: Return an iterator over its content; to be called before the next member is read.
    """

    name: str
    size: int
    blocks: Callable[[], Iterator[bytes]]


def members(file: Path, data: bytes | None = None) -> Iterator[Member]:
    """Yield the members of an archive in their order.

    Args:
        file: The archive.
        data: Its bytes, if it is no file; ``file`` is then its name for messages.

    Raises:
        ArchiveError: The file is missing, damaged, or has members that `export` does not write.
    """
    if data is not None:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            yield from _members(_Tape(stream, file))
        return
    if not file.exists():
        raise ArchiveError(f"there is no file {file}; name one written by `export` or `precompile`")
    if not file.is_file():
        raise ArchiveError(f"{file} is no plain file; name one written by `export` or `precompile`")
    try:
        with file.open("rb") as raw, gzip.GzipFile(fileobj=raw) as stream:
            yield from _members(_Tape(stream, file))
    except OSError as error:
        raise ArchiveError(f"{file} cannot be read: {error}") from error


class _Tape:
    """The unpacked bytes of an archive, in order."""

    def __init__(self, stream: gzip.GzipFile, file: Path) -> None:
        self._stream = stream
        self.file = file

    def read(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            ArchiveError: There are fewer, or they are damaged.
        """
        data = self.up_to(size)
        if len(data) < size:
            raise self.damaged("it ends too early")
        return data

    def up_to(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end; raise ArchiveError if they are damaged."""
        try:
            return self._stream.read(size)
        except (EOFError, OSError, zlib.error) as error:
            raise self.damaged(str(error)) from error

    def damaged(self, reason: str) -> ArchiveError:
        """Return the error for a damaged file."""
        return ArchiveError(f"{self.file} is damaged or no export file: {reason}; export it again")


def _members(tape: _Tape) -> Iterator[Member]:
    name = None
    while any(block := tape.up_to(_BLOCK)):
        if len(block) < _BLOCK:
            raise tape.damaged("it ends too early")
        header = _header(block, tape)
        padded = -(-header.size // _BLOCK) * _BLOCK
        if header.type == tarfile.XHDTYPE:
            name = _long_name(tape.read(padded)[: header.size], tape)
            continue
        left = [padded]
        yield Member(name or header.name, header.size, partial(_blocks, tape, header.size, left))
        name = None
        while left[0]:  # a member that the caller did not read
            left[0] -= len(tape.read(min(left[0], _CHUNK)))
    if not block:
        raise tape.damaged("it has no end mark")
    rest = tape.up_to(_PADDING + 1)
    if name is not None or len(rest) > _PADDING or any(rest):
        raise tape.damaged("there is something behind its end")


def _header(block: bytes, tape: _Tape) -> tarfile.TarInfo:
    """Return a member's header; raise ArchiveError unless it is one that `export` writes."""
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise tape.damaged(str(error)) from error
    if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.XHDTYPE):
        raise ArchiveError(
            f"{tape.file} holds {header.name!r}, which is no plain file (a link, device or folder); "
            f"{_FOREIGN}"
        )
    limit = MAX_HEADER_BYTES if header.type == tarfile.XHDTYPE else None
    if header.size < 0 or (limit is not None and header.size > limit):
        raise ArchiveError(
            f"{tape.file} holds a header of {header.size} bytes; the limit is {limit}; {_FOREIGN}"
        )
    return header


def _blocks(tape: _Tape, size: int, left: list[int]) -> Iterator[bytes]:
    """Yield the content of a member; ``left`` has what is still to be read of it, with its padding."""
    while size > 0:
        block = tape.read(min(size, _CHUNK))
        size -= len(block)
        left[0] -= len(block)
        yield block


def _long_name(content: bytes, tape: _Tape) -> str:
    """Return the name in an extended header: records ``LENGTH path=NAME``, LENGTH with itself."""
    name = None
    while content:
        length, _, _ = content.partition(b" ")
        digits = int(length) if length.isdigit() and len(length) < 6 else 0
        record, content = content[:digits], content[digits:]
        key, separator, value = record[len(length) + 1 :].partition(b"=")
        whole = digits > 0 and len(record) == digits and value.endswith(b"\n")
        if key != b"path" or not separator or not whole:
            raise ArchiveError(
                f"{tape.file} holds an extended header with more than a name; {_FOREIGN}"
            )
        name = value[:-1].decode("utf-8", "surrogateescape")
    if name is None:
        raise tape.damaged("an extended header is empty")
    return name
