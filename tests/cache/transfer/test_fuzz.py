"""Whatever an archive is or holds: it is refused as a whole or imported whole, in little time."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, strategies

from inductor_plugin.cache import Pack, open_store
from inductor_plugin.cache.transfer import tape
from inductor_plugin.cache.transfer.archive import export_archive, import_archive
from inductor_plugin.errors import CacheError
from tests.support.cache.fuzz import WORDS, Attack, attacks, cases, quick
from tests.support.cache.records import ENVIRONMENT, decision, measured, put_library, record

SOUND = record(measured("a"), problem=2)
"""What the cache has that takes the archive."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive with an entry of each kind."""
    folder = tmp_path_factory.mktemp("archive")
    store = open_store(folder / "cache")
    environment = store.put_environment(ENVIRONMENT)
    entry = put_library(store)
    store.put_record(record(measured("a", kernel=entry.digest), decision=decision("a")))
    store.quarantine(environment, "c", {"candidate": "c", "status": "hung"})
    store.put_pack(Pack("H100", "sm_90a", 1.0, {"torch": "2"}, ("m:f",), ("mm",), (entry.digest,)))
    export_archive(store, folder / "archive")
    return folder / "archive"


def attacked(archive: Path, folder: Path, where: str, index: int, attack: Attack) -> Path:
    """Attack the file, the tar in it, or one member with the manifest's hash made to fit."""
    path = folder / "archive"
    if where == "file":
        path.write_bytes(archive.read_bytes())
        attack[1](path)
        return path
    if where == "tar":
        path.write_bytes(gzip.decompress(archive.read_bytes()))
        attack[1](path)
        if path.is_file() and path.stat().st_size < 1 << 30 and not path.is_symlink():
            path.write_bytes(gzip.compress(path.read_bytes(), 1))
        return path
    with tarfile.open(archive) as tar:
        members = {
            info.name: file.read() for info in tar if (file := tar.extractfile(info)) is not None
        }
    names = sorted(members.keys() - {tape.MANIFEST})
    member, name = folder / "member", names[index % len(names)]
    member.write_bytes(members[name])
    attack[1](member)
    members[name] = member.read_bytes()
    manifest = json.loads(members[tape.MANIFEST])
    manifest["members"][name] = hashlib.sha256(members[name]).hexdigest()
    members[tape.MANIFEST] = json.dumps(manifest).encode()
    with tarfile.open(path, "w:gz") as tar:
        for title, data in members.items():
            info = tarfile.TarInfo(title)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def survives(archive: Path, where: str, index: int, attack: Attack) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = attacked(archive, folder, where, index, attack)
        store = open_store(folder / "cache")
        store.put_environment(ENVIRONMENT)
        store.put_record(SOUND)
        with quick(attack[0]):
            try:
                import_archive(store, path, trusted=True)
            except CacheError:
                assert [r.digest for r in store.iter_records()] == [SOUND.digest], attack[0]
        assert store.verify() == [], attack[0]
        sound = open_store(folder / "cache").record(SOUND.environment, SOUND.op, SOUND.digest)
        assert sound is not None
        assert sound.candidates["a"].median_ms == 1.0


PLAIN = tuple(word for word in WORDS if word != "odd")
PLACES = strategies.one_of(
    strategies.tuples(strategies.sampled_from(["file", "tar"]), attacks()),
    strategies.tuples(strategies.just("member"), attacks(PLAIN)),
)


@cases(60)
@given(PLACES, strategies.integers(0, 20))
def test_no_archive_does_harm(archive: Path, place: tuple[str, Attack], index: int) -> None:
    survives(archive, place[0], index, place[1])


@pytest.mark.slow
@cases(1000)
@given(PLACES, strategies.integers(0, 20))
def test_no_archive_does_harm_at_length(
    archive: Path, place: tuple[str, Attack], index: int
) -> None:
    survives(archive, place[0], index, place[1])
