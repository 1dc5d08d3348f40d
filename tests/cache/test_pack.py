from __future__ import annotations

import gzip
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.cache import Pack, Store, document, open_store
from inductor_plugin.cache.pack import dump_pack, parse_pack
from inductor_plugin.cache.transfer import tape
from inductor_plugin.cache.transfer.archive import export_archive, import_archive, merge_stores
from inductor_plugin.errors import ArchiveError
from tests.support.cache.records import kernel_key

LIBRARY = os.urandom(200_000)


def pack_of(*digests: str) -> Pack:
    return Pack(
        target="H200",
        arch="sm_90a",
        created=1000.0,
        software={"nvcc": "nvcc 13.0.88"},
        models=("m:f",),
        problems=("mm(1x2, 2x3)",),
        kernels=tuple(sorted(digests)),
    )


def two_in_one_library(path: Path) -> tuple[Store, list[str]]:
    store = open_store(path / "cache")
    built = path / "batch.so"
    built.write_bytes(LIBRARY)
    first = store.put_kernel(kernel_key("a"), {"kernel.so": built, "source.cu": b"a"})
    second = store.put_kernel(
        kernel_key("b"), {"kernel.so": first.path("kernel.so"), "source.cu": b"b"}
    )
    return store, [first.digest, second.digest]


def test_a_pack_reads_back_as_it_was_written() -> None:
    pack = pack_of("b", "a")
    assert parse_pack(dump_pack(pack)) == pack
    assert pack.name.startswith("sm_90a-")
    assert pack.name == replace(pack, created=1.0, models=("other:f",)).name
    others = (
        replace(pack, kernels=("a",)),
        replace(pack, arch="sm_80"),
        replace(pack, target="H20"),
    )
    assert len({pack.name, *(other.name for other in others)}) == 4


def test_a_damaged_pack_says_what_is_wrong() -> None:
    data = dump_pack(pack_of("a"))
    with pytest.raises(ValueError, match="checksum"):
        parse_pack(data.replace(b"H200", b"H100"))
    with pytest.raises(ValueError, match="start with its checksum"):
        parse_pack(b"{}")


def test_kernels_of_one_library_share_its_file(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    first, second = (store.kernel(digest) for digest in digests)
    assert first is not None
    assert second is not None
    assert first.path("kernel.so").samefile(second.path("kernel.so"))
    assert store.usage().kernel_bytes < 1.1 * len(LIBRARY)


def test_a_file_from_elsewhere_is_copied(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    entry = store.kernel(digests[0])
    assert entry is not None
    assert not entry.path("kernel.so").samefile(tmp_path / "batch.so")


def test_an_archive_holds_a_shared_library_once_and_gives_it_back_shared(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    pack = pack_of(*digests)
    file = tmp_path / "x.pack"
    counts = export_archive(store, file, pack=pack)
    assert (counts["kernels"], counts["packs"]) == (2, 1)
    assert file.stat().st_size < 1.2 * len(LIBRARY)
    other = open_store(tmp_path / "other")
    taken = import_archive(other, file, trusted=True)
    assert taken.kernels == 2
    assert taken.packs == (pack,)
    first, second = (other.kernel(digest) for digest in digests)
    assert first is not None
    assert second is not None
    assert first.path("kernel.so").read_bytes() == LIBRARY
    assert first.path("kernel.so").samefile(second.path("kernel.so"))
    assert other.verify() == []
    assert other.packed() == frozenset(digests)
    assert import_archive(other, file, trusted=True).unchanged == 3


def test_a_pack_is_exported_alone(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    export_archive(store, tmp_path / "x.pack", pack=pack_of(digests[0]))
    other = open_store(tmp_path / "other")
    import_archive(other, tmp_path / "x.pack", trusted=True)
    assert other.kernel(digests[0]) is not None
    assert other.kernel(digests[1]) is None


def test_a_pack_whose_kernel_is_gone_is_not_written(tmp_path: Path) -> None:
    store, _ = two_in_one_library(tmp_path)
    with pytest.raises(ArchiveError, match=r"not in .* any more"):
        export_archive(store, tmp_path / "x.pack", pack=pack_of("0" * 64))
    assert not (tmp_path / "x.pack").exists()


def test_everything_exported_holds_the_packs_too(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    store.put_pack(pack_of(*digests))
    export_archive(store, tmp_path / "x")
    other = open_store(tmp_path / "other")
    assert import_archive(other, tmp_path / "x", trusted=True).packs == (pack_of(*digests),)


def test_an_archive_that_lacks_kernels_of_its_pack_is_refused(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    pack = pack_of(*digests, "0" * 64)
    store.put_pack(pack)
    with gzip.open(tmp_path / "x", "wb") as file:
        tape.write({f"packs/{pack.name}.json": store.layout.pack(pack.name)}, file)
    other = open_store(tmp_path / "other")
    with pytest.raises(ArchiveError, match="lacks 3 of its 3 kernels"):
        import_archive(other, tmp_path / "x", trusted=True)
    assert other.kernel(digests[0]) is None


def test_a_pack_that_lost_a_kernel_is_not_exported_with_the_rest(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    store.put_pack(pack_of(*digests, "0" * 64))
    export_archive(store, tmp_path / "x")
    taken = import_archive(open_store(tmp_path / "other"), tmp_path / "x", trusted=True)
    assert (taken.kernels, taken.packs) == (2, ())


def test_merging_takes_packs_over(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    store.put_pack(pack_of(*digests))
    other = open_store(tmp_path / "other")
    assert merge_stores(other, store).packs == (pack_of(*digests),)
    assert other.packs() == [pack_of(*digests)]


def test_a_damaged_note_is_written_again(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    pack = pack_of(*digests)
    export_archive(store, tmp_path / "x", pack=pack)
    path = store.layout.pack(pack.name)
    path.write_bytes(b"{}")
    assert open_store(store.root).packs() == []
    import_archive(open_store(store.root), tmp_path / "x", trusted=True)
    assert open_store(store.root).packs() == [pack]
    path.write_bytes(b"{}")
    export_archive(open_store(store.root), tmp_path / "x", pack=pack)
    assert import_archive(open_store(tmp_path / "other"), tmp_path / "x", trusted=True).packs == (
        pack,
    )


def test_a_damaged_note_of_a_pack_is_found_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, digests = two_in_one_library(tmp_path)
    pack = pack_of(*digests)
    store.put_pack(pack)
    path = store.layout.pack(pack.name)
    path.write_bytes(path.read_bytes().replace(b"H200", b"H100"))
    fresh = open_store(store.root)
    assert [finding.kind for finding in fresh.verify()] == ["pack"]
    assert fresh.packs() == []
    assert "damaged cache entry" in caplog.text


def test_a_pack_that_is_not_whole_is_named(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    store.put_pack(pack_of(*digests))
    assert store.verify_packs() == []
    entry = store.kernel(digests[0])
    assert entry is not None
    (entry.folder / "source.cu").write_bytes(b"edited")
    (problem,) = store.verify_packs()
    assert "has lost 1 of its 2 kernels" in problem
    path = store.layout.pack(pack_of(*digests).name)
    path.write_bytes(path.read_bytes().replace(b"H200", b"H100"))
    (problem,) = store.verify_packs()
    assert "is damaged: its checksum does not match" in problem


def test_kernels_are_found_by_what_they_are(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    key = kernel_key("a")
    results = store.kernels_like(key.template, key.config, key.target)
    assert {result.digest for result in results} == set(digests)
    assert store.kernels_like(key.template, "another", key.target) == []
    later = replace(key, config="another")
    store.put_kernel(later, {"kernel.so": b"c"})
    store.put_pack(pack_of(later.digest))
    assert [
        kernel.digest for kernel in store.kernels_like(key.template, "another", key.target)
    ] == [later.digest]


def test_a_cache_in_memory_keeps_packs_for_the_process(tmp_path: Path) -> None:
    store = open_store(tmp_path / "x", memory_only=True)
    assert store.put_pack(pack_of("a"))
    assert not store.put_pack(pack_of("a"))
    assert store.packed() == frozenset({"a"})


def test_a_pack_whose_kernel_is_gone_or_that_is_another_versions(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    pack = pack_of(*digests)
    store.put_pack(pack)
    shutil.rmtree(store.layout.kernel(digests[0]))
    assert store.verify_packs() == [f"pack {pack.name} has lost 1 of its 2 kernels"]
    path = store.layout.pack(pack.name)
    path.write_bytes(document.dump({**document.load(path.read_bytes()), "format": 2}))
    assert store.verify_packs() == []


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_pack_that_comes_later_is_seen(tmp_path: Path, in_memory: bool) -> None:
    store = open_store(tmp_path / "cache", memory_only=in_memory)
    assert store.packed() == frozenset()
    (store if in_memory else open_store(tmp_path / "cache")).put_pack(pack_of("a"))
    assert store.packed() == {"a"}


def test_after_everything_is_removed_a_pack_is_added_anew(tmp_path: Path) -> None:
    store, digests = two_in_one_library(tmp_path)
    pack = pack_of(*digests)
    assert store.put_pack(pack)
    assert not store.put_pack(pack)
    assert len(store.kernels_like("gemm", "64x64", "x86_64")) == 2
    assert store.clear()["packs"] == 1
    assert store.kernels_like("gemm", "64x64", "x86_64") == []
    assert (store.packs(), store.packed()) == ([], frozenset())
    assert store.put_pack(pack)
    assert open_store(store.root).packs() == [pack]
