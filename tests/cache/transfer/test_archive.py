from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from inductor_plugin.cache import Pack, Store, document, open_store
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.transfer import archive, tape
from inductor_plugin.cache.transfer.archive import (
    Imported,
    export_archive,
    import_archive,
    import_bytes,
    merge_stores,
)
from inductor_plugin.errors import ArchiveError, CacheError
from tests.support.cache import archives
from tests.support.cache.packs import SIGNER
from tests.support.cache.records import ENVIRONMENT, decision, kernel_key, measured, record


def filled(path: Path) -> Store:
    store = open_store(path)
    environment = store.put_environment(ENVIRONMENT)
    kernel = store.put_kernel(kernel_key(), {"kernel.so": b"library", "source.cpp": b"source"})
    store.put_record(
        record(measured("a", kernel=kernel.digest), measured("b"), decision=decision("a", 2))
    )
    store.put_record(record(measured("a"), problem=2, op="bmm"))
    store.put_kernel(kernel_key("unused"), {"kernel.so": b"other"})
    store.quarantine(environment, "c", {"status": "hung", "reason": "r"})
    return store


def contents(store: Store) -> dict[str, str]:
    root = store.root
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in ("records", "kernels", "quarantine")
        for path in (root / folder).rglob("*")
        if path.is_file()
    }


def write_archive(file: Path, members: list[tuple[tarfile.TarInfo, bytes]], *, listed: bool = True):
    hashes = {info.name: hashlib.sha256(data).hexdigest() for info, data in members if listed}
    manifest = json.dumps({"format": 1, "members": hashes}).encode()
    with tarfile.open(file, "w:gz") as out:
        head = tarfile.TarInfo(tape.MANIFEST)
        head.size = len(manifest)
        out.addfile(head, io.BytesIO(manifest))
        for info, data in members:
            info.size = len(data) if info.isreg() else 0
            out.addfile(info, io.BytesIO(data))


def test_fields_of_a_newer_version_are_imported_too(tmp_path: Path):
    source = open_store(tmp_path / "a")
    source.put_kernel(kernel_key(), {"kernel.so": b"library"}, None, {"newer": [1]})
    export_archive(source, tmp_path / "x.tar.gz")
    target = open_store(tmp_path / "b")
    import_archive(target, tmp_path / "x.tar.gz", trusted=True)
    (kernel,) = target.iter_kernels()
    assert kernel.extra == {"newer": [1]}


def test_what_is_exported_comes_back_byte_for_byte(tmp_path: Path):
    source = filled(tmp_path / "a")
    counts = export_archive(source, tmp_path / "x.tar.gz")
    assert counts == {"records": 2, "kernels": 2, "environments": 1, "quarantined": 1, "packs": 0}
    target = open_store(tmp_path / "b")
    taken = import_archive(target, tmp_path / "x.tar.gz", trusted=True)
    assert (taken.records, taken.kernels, taken.quarantined, taken.environments) == (2, 2, 1, 1)
    mine, theirs = contents(source), contents(target)
    entries = {
        name for name in mine if name.endswith("entry.json")
    }  # hold when they were published
    assert mine.keys() == theirs.keys()
    assert {n: h for n, h in mine.items() if n not in entries} == {
        n: h for n, h in theirs.items() if n not in entries
    }
    assert target.verify() == []
    assert list((tmp_path / "b" / "private").iterdir()) == []
    again = import_archive(target, tmp_path / "x.tar.gz", trusted=True)
    assert again == Imported(unchanged=2 + 2 + 1 + 1, libraries=2)
    assert contents(target) == theirs


def test_an_import_tells_new_from_merged_from_unchanged(tmp_path: Path):
    source, target = filled(tmp_path / "a"), open_store(tmp_path / "b")
    export_archive(source, tmp_path / "x")
    target.put_record(record(measured("c")))
    target.put_kernel(kernel_key("unused"), {"kernel.so": b"other"})
    taken = import_archive(target, tmp_path / "x", trusted=True)
    assert taken == Imported(
        records=1, kernels=1, quarantined=1, environments=1, merged=1, unchanged=1, libraries=2
    )


def test_an_export_makes_no_folder(tmp_path: Path):
    store, file = filled(tmp_path / "a"), tmp_path / "none" / "deep" / "x.tgz"
    with pytest.raises(ArchiveError, match=rf"there is no folder {file.parent}; make it"):
        export_archive(store, file)
    assert not (tmp_path / "none").exists()


def test_equal_caches_give_equal_files(tmp_path: Path):
    store = filled(tmp_path / "a")
    export_archive(store, tmp_path / "one")
    export_archive(store, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_an_export_can_be_a_part(tmp_path: Path):
    store = filled(tmp_path / "a")
    store.put_pack(Pack("H200", "sm_90a", 1.0, {}, ("m:f",), ("mm",), (kernel_key().digest,)))
    store.quarantine("f" * 64, "c", {"status": "hung"})
    of_all = {"records": 2, "kernels": 2, "environments": 1, "quarantined": 2, "packs": 1}
    assert export_archive(store, tmp_path / "x") == of_all
    assert export_archive(store, tmp_path / "x", op="mm") == {
        **dict.fromkeys(of_all, 1),
        "packs": 0,
    }
    here = export_archive(store, tmp_path / "x", environment=record().environment[:8])
    assert here == {**dict.fromkeys(of_all, 1), "records": 2, "packs": 0}
    nothing = export_archive(store, tmp_path / "x", environment="0000")
    assert nothing == dict.fromkeys(of_all, 0)


def test_what_is_damaged_is_not_exported(tmp_path: Path):
    store = filled(tmp_path / "a")
    (next(store.iter_kernels()).folder / "kernel.so").write_bytes(b"broken")
    assert export_archive(store, tmp_path / "x")["kernels"] == 1


@pytest.mark.parametrize("lies_in", ["second", "memory"])
def test_a_pack_may_have_kernels_that_are_not_in_the_cache_itself(tmp_path: Path, lies_in: str):
    if lies_in == "second":
        built = open_store(tmp_path / "a").put_kernel(kernel_key(), {"kernel.so": b"library"})
        store = open_store(tmp_path / "own", second=tmp_path / "a")
    else:
        store = open_store(tmp_path / "own", memory_only=True)
        built = store.put_kernel(kernel_key(), {"kernel.so": b"library"})
    pack = Pack("H200", "sm_90a", 1.0, {}, ("m:f",), ("mm",), (built.digest,))
    export_archive(store, tmp_path / "x", pack=pack, signer=SIGNER)
    target = open_store(tmp_path / "b")
    assert import_archive(target, tmp_path / "x", trusted=True).packs == (pack,)
    (kernel,) = target.iter_kernels()
    assert kernel.path("kernel.so").read_bytes() == b"library"
    # What was built elsewhere is not signed as a build of this cache.
    assert bool(kernel.signatures) is (lies_in == "memory")


@pytest.mark.parametrize("change", [b"cut", b""])
def test_a_damaged_quarantine_entry_is_not_exported(tmp_path: Path, change: bytes):
    store = filled(tmp_path / "a")
    (path,) = store.layout.quarantined.glob("*/*.json")
    path.write_bytes(change)
    assert export_archive(store, tmp_path / "x")["quarantined"] == 0
    import_archive(open_store(tmp_path / "b"), tmp_path / "x", trusted=True)


def test_an_import_does_not_lose_newer_timings(tmp_path: Path):
    source = filled(tmp_path / "a")
    export_archive(source, tmp_path / "x")
    target = open_store(tmp_path / "b")
    mine = record(measured("a", 7.0, measured_at=5000.0), measured("c", 3.0), updated=5000.0)
    target.put_record(mine)
    target.put_kernel(kernel_key(), {"kernel.so": b"mine"})
    import_archive(target, tmp_path / "x", trusted=True)
    stored = target.record(mine.environment, mine.op, mine.digest)
    assert stored is not None
    assert {n: candidate.median_ms for n, candidate in stored.candidates.items()} == {
        "a": 7.0,
        "b": 1.0,
        "c": 3.0,
    }
    kept = target.kernel(kernel_key().digest)
    assert kept is not None
    assert kept.path("kernel.so").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "records/../../evil",
        "kernels/ab/x/../../../evil",
        "kernels/../evil/kernel.so",
        "kernels/ab/cdevil/kernel.so",
        "evil",
        "locks/x.lock",
    ],
)
def test_a_member_outside_the_cache_is_refused(tmp_path: Path, name: str):
    write_archive(tmp_path / "x", [(tarfile.TarInfo(name), b"evil")])
    store = open_store(tmp_path / "b")
    with pytest.raises(ArchiveError, match="no path of a cache"):
        import_archive(store, tmp_path / "x", trusted=True)
    assert not list(tmp_path.rglob("evil"))
    assert contents(store) == {}


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
)
def test_links_devices_and_folders_are_refused(tmp_path: Path, kind: bytes):
    info = tarfile.TarInfo("records/e/mm/x.json")
    info.type, info.linkname = kind, "/etc/passwd"
    write_archive(tmp_path / "x", [(info, b"")])
    with pytest.raises(ArchiveError, match="no plain file"):
        import_archive(open_store(tmp_path / "b"), tmp_path / "x", trusted=True)


def test_a_member_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tape, "MAX_MEMBER_BYTES", 10)
    write_archive(tmp_path / "x", [(tarfile.TarInfo("records/e/mm/x.json"), b"x" * 11)])
    with pytest.raises(ArchiveError, match="limit is 10"):
        import_archive(open_store(tmp_path / "b"), tmp_path / "x", trusted=True)


def test_a_member_that_is_not_in_the_manifest_is_refused(tmp_path: Path):
    members = [(tarfile.TarInfo("records/e/mm/x.json"), b"x")]
    write_archive(tmp_path / "x", members, listed=False)
    with pytest.raises(ArchiveError, match="outside its manifest"):
        import_archive(open_store(tmp_path / "b"), tmp_path / "x", trusted=True)


def test_a_member_with_another_content_is_refused_and_nothing_is_placed(tmp_path: Path):
    export_archive(filled(tmp_path / "a"), tmp_path / "x")
    with tarfile.open(tmp_path / "x") as old:
        members = [(member, old.extractfile(member)) for member in old.getmembers()]
        content = [(member, stream.read()) for member, stream in members if stream]
    changed = content[-1][0].name
    with tarfile.open(tmp_path / "y", "w:gz") as new:
        for info, data in content:
            body = data[:-1] + b"?" if info.name == changed else data
            new.addfile(info, io.BytesIO(body))
    store = open_store(tmp_path / "b")
    with pytest.raises(ArchiveError, match="checksum"):
        import_archive(store, tmp_path / "y", trusted=True)
    assert contents(store) == {}


@pytest.mark.parametrize("length", [0, 30, 300, 1000])
def test_a_cut_archive_is_refused(tmp_path: Path, length: int):
    export_archive(filled(tmp_path / "a"), tmp_path / "x")
    (tmp_path / "y").write_bytes((tmp_path / "x").read_bytes()[:length])
    store = open_store(tmp_path / "b")
    with pytest.raises(ArchiveError):
        import_archive(store, tmp_path / "y", trusted=True)
    assert contents(store) == {}


def test_a_consistent_archive_with_an_invalid_entry_is_refused(tmp_path: Path):
    write_archive(tmp_path / "x", [(tarfile.TarInfo("records/e/mm/x.json"), b"no record")])
    with pytest.raises(ArchiveError, match="damaged entry"):
        import_archive(open_store(tmp_path / "b"), tmp_path / "x", trusted=True)
    rest = b'  "format": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"\n}\n"
    deep = b'{\n  "sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest
    write_archive(tmp_path / "x", [(tarfile.TarInfo("records/e/mm/x.json"), deep)])
    with pytest.raises(ArchiveError, match="damaged entry"):
        import_archive(open_store(tmp_path / "b"), tmp_path / "x", trusted=True)


def test_an_archive_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ArchiveError, match="there is no file"):
        import_archive(open_store(tmp_path / "b"), tmp_path / "nothing", trusted=True)


def test_repeated_members_count_before_any_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    library = b"x" * 1000
    names = [f"kernels/ab/ab{number}/kernel.so" for number in range(50)]
    hashes = dict.fromkeys(names, hashlib.sha256(library).hexdigest())
    manifest = json.dumps({"format": 1, "members": hashes}).encode()
    with tarfile.open(tmp_path / "x", "w:gz") as out:
        for name, data in ((tape.MANIFEST, manifest), (names[0], library)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    monkeypatch.setattr(tape, "MAX_TOTAL_BYTES", 40_000)
    with pytest.raises(ArchiveError, match="more than 40000 bytes"):
        tape.unpack(tmp_path / "x", tmp_path / "staging")
    assert len(list((tmp_path / "staging").rglob("kernel.so"))) == 1


def test_a_library_of_many_kernels_is_hashed_once_when_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = open_store(tmp_path / "a")
    for number in range(4):
        source.put_kernel(kernel_key(str(number)), {"kernel.so": b"library"})
    export_archive(source, tmp_path / "x")
    staging = tmp_path / "staging"
    hashes = tape.unpack(tmp_path / "x", staging)

    def read(path: Path) -> str:
        pytest.fail(f"{path} is read")

    with monkeypatch.context() as patched:
        patched.setattr("inductor_plugin.cache.entry.file_sha256", read)
        archive._check(Layout(staging), "x", hashes)  # pyright: ignore[reportPrivateUsage]
    assert import_archive(open_store(tmp_path / "b"), tmp_path / "x", trusted=True).libraries == 1


def test_a_full_disk_is_not_the_fault_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    export_archive(filled(tmp_path / "a"), tmp_path / "x")
    store = open_store(tmp_path / "b")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tape, "_place", full)
    with pytest.raises(CacheError, match=r"cannot import .*No space left") as raised:
        import_archive(store, tmp_path / "x", trusted=True)
    assert not isinstance(raised.value, ArchiveError)


def test_two_caches_merge(tmp_path: Path):
    source, target = filled(tmp_path / "a"), open_store(tmp_path / "b")
    target.put_record(record(measured("c")))
    taken = merge_stores(target, source)
    assert (taken.records, taken.merged, taken.kernels) == (1, 1, 2)
    stored = record()
    kept = target.record(stored.environment, stored.op, stored.digest)
    assert kept is not None
    assert set(kept.candidates) == {"a", "b", "c"}
    assert target.verify() == []


@pytest.mark.parametrize("trusted", [False, True])
def test_only_a_trusted_archive_and_a_merge_keep_records_from_eviction(
    tmp_path: Path, *, trusted: bool
) -> None:
    """A stranger's record won over decisions of this machine, for ever."""
    theirs = record(measured("a"), measured("b"), decision=decision("a"), pinned=True)
    source = open_store(tmp_path / "a")
    source.put_environment(ENVIRONMENT)
    source.put_record(theirs)
    export_archive(source, tmp_path / "x.tar.gz")
    target = open_store(tmp_path / "b")
    import_archive(target, tmp_path / "x.tar.gz", trusted=trusted)
    assert [each.pinned for each in target.iter_records()] == [trusted]
    merge_stores(target, source)
    assert [each.pinned for each in target.iter_records()] == [True]
    artifact = open_store(tmp_path / "c")
    import_bytes(artifact, (tmp_path / "x.tar.gz").read_bytes(), "an artifact of torch.compiler")
    assert [each.pinned for each in artifact.iter_records()] == [False]


@pytest.mark.parametrize("kind", ["record", "kernel", "pack", "quarantine"])
def test_an_import_that_is_not_written_whole_fails(tmp_path: Path, kind: str):
    source, store = filled(tmp_path / "a"), open_store(tmp_path / "b")
    source.put_pack(Pack("H200", "sm_90a", 1.0, {}, ("m:f",), ("mm",), (kernel_key().digest,)))
    export_archive(source, tmp_path / "x")
    (stored, *_), (failed,) = source.iter_records(), source.iter_quarantine()
    places = {
        "record": store.layout.record(stored.environment, stored.op, stored.digest),
        "kernel": store.layout.kernel(kernel_key().digest) / "entry.json",
        "pack": store.layout.pack(source.packs()[0].name),
        "quarantine": store.layout.quarantine(failed.environment, failed.candidate),
    }
    place = places[kind]
    place.parent.mkdir(parents=True)
    place.write_bytes(document.dump({"format": 2}))  # of a newer version: it is not replaced
    with pytest.raises(CacheError, match="took only a part: 1 entries were not written"):
        import_archive(store, tmp_path / "x", trusted=True)
    with pytest.raises(CacheError, match="took only a part: 1 entries were not written"):
        merge_stores(open_store(tmp_path / "b"), source)


def test_nothing_is_taken_into_memory_only(tmp_path: Path):
    source = filled(tmp_path / "a")
    with pytest.raises(CacheError, match="memory only"):
        merge_stores(open_store(tmp_path / "b", memory_only=True), source)


def test_an_archive_that_lacks_a_member_is_refused(tmp_path: Path):
    listed = {"records/e/mm/a.json": "0" * 64, "records/e/mm/b.json": "1" * 64}
    archives.write(tmp_path / "x", {}, listed)
    with pytest.raises(ArchiveError, match=r"lacks 2 members, 'records/e/mm/a\.json' first"):
        import_archive(open_store(tmp_path / "b"), tmp_path / "x", trusted=True)
