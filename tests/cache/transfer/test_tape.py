"""The members of an archive, one after the other."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from inductor_plugin.cache.transfer import tape
from inductor_plugin.errors import ArchiveError


def test_an_archive_of_another_format_is_refused_before_it_is_unpacked(tmp_path: Path):
    manifest = json.dumps({"format": 2, "members": {}}).encode()
    with tarfile.open(tmp_path / "x", "w:gz") as out:
        head = tarfile.TarInfo(tape.MANIFEST)
        head.size = len(manifest)
        out.addfile(head, io.BytesIO(manifest))
    with pytest.raises(ArchiveError, match="has format 2, this version reads 1"):
        tape.check_start(tmp_path / "x")


def test_an_entry_that_is_written_during_an_export_is_not_exported_in_two_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    states = iter((b"before", b"behind"))

    def read(_: object) -> bytes:
        return next(states)

    monkeypatch.setattr(tape, "_read", read)
    with (
        gzip.open(tmp_path / "x", "wb") as packed,
        pytest.raises(OSError, match="changed while it was exported"),
    ):
        tape.write({"records/e/mm/a.json": tmp_path}, packed)
