from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from inductor_plugin.cache.transfer.member import MAX_HEADER_BYTES, members
from inductor_plugin.errors import ArchiveError

LONG = f"kernels/ab/ab{'c' * 62}/{'d' * 130}"


def packed(file: Path, content: bytes) -> Path:
    file.write_bytes(gzip.compress(content, 1))
    return file


def tar(*names: str, form: int = tarfile.PAX_FORMAT, size: int = 700) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO(name[:1].encode() * size))
    return buffer.getvalue()


def test_members_are_those_of_tarfile(tmp_path: Path) -> None:
    file = packed(tmp_path / "x", tar("a", LONG, "b"))
    read = [(member.name, b"".join(member.blocks())) for member in members(file)]
    assert read == [("a", b"a" * 700), (LONG, b"k" * 700), ("b", b"b" * 700)]
    assert [member.name for member in members(file)] == ["a", LONG, "b"]  # without reading them


@pytest.mark.parametrize("kind", [b"x", b"L", b"K", b"g", b"S", b"X"])
def test_a_header_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = kind, 3 << 30
    file = packed(tmp_path / "x", header.tobuf(tarfile.GNU_FORMAT) + bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(ArchiveError, match=r"header of 3221225472 bytes|no plain file"):
        list(members(file))
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert MAX_HEADER_BYTES < 1 << 20


@pytest.mark.parametrize(
    "content",
    [b"14 size=100000\n", b"22 GNU.sparse.major=1\n", b"9 path=x", b"99999 path=x\n", b"x", b" "],
)
def test_an_extended_header_holds_a_name_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, len(content)
    block = header.tobuf(tarfile.USTAR_FORMAT) + content.ljust(512, b"\0")
    with pytest.raises(ArchiveError, match=r"more than a name|no name"):
        list(members(packed(tmp_path / "x", block + tar("a"))))


def test_what_stands_behind_the_end_is_refused(tmp_path: Path) -> None:
    whole = tar("a")
    file = tmp_path / "x"
    for odd in (
        gzip.compress(whole) + b"garbage",
        gzip.compress(whole + b"garbage"),
        gzip.compress(whole) + gzip.compress(whole),
        gzip.compress(whole + bytes(1 << 20)),
        gzip.compress(whole)[:-8] + b"\0" * 8,  # gzip's own checksum
        gzip.compress(whole[:1500]),
        gzip.compress(whole[:1536]),
        gzip.compress(b""),
        b"",
    ):
        file.write_bytes(odd)
        with pytest.raises(ArchiveError, match="damaged"):
            list(members(file))
    file.write_bytes(gzip.compress(whole) + bytes(100))  # gzip allows a block to be filled up
    assert len(list(members(file))) == 1


def test_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="is no plain file; name one written by"):
        list(members(tmp_path))
    with pytest.raises(ArchiveError, match="there is no file"):
        list(members(tmp_path / "none"))
