"""A signed kernel on its way: pack, import, export, merge, remote, eviction, wheel; and who vouches for what."""

from __future__ import annotations

import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Pack, Store, document, open_store
from inductor_plugin.cache.entry import ENTRY, Taken
from inductor_plugin.cache.remote.disk import LocalFiles
from inductor_plugin.cache.remote.transfer import TransferPart, pull, push
from inductor_plugin.cache.transfer import parcel
from inductor_plugin.cache.transfer.archive import (
    export_archive,
    import_archive,
    import_bytes,
    merge_stores,
)
from inductor_plugin.cache.transfer.tape import contents
from inductor_plugin.cache.transfer.wheel import PACK_FILE, write_wheel
from inductor_plugin.cache.trust.listing import vouchers
from inductor_plugin.cache.trust.policy import Trust
from inductor_plugin.errors import TrustError
from tests.support.cache.records import (
    ENVIRONMENT,
    decision,
    kernel_key,
    measured,
    put_library,
    record,
)
from tests.support.trust.payload import FRIEND, STRANGER, TRUST

DIGEST = kernel_key().digest


def built(path: Path) -> Store:
    """Return a cache with a kernel that was built in it, the winner of a record, and a pack of it."""
    store = open_store(path)
    store.put_environment(ENVIRONMENT)
    kernel = put_library(store)
    store.put_record(record(measured("a", kernel=kernel.digest), decision=decision("a")))
    store.put_pack(Pack("H200", "sm_90a", 1.0, {}, ("m:f",), ("mm",), (kernel.digest,)))
    return store


def by(store: Store) -> tuple[str, set[str]]:
    """Return why a cache has taken the kernel, and who has signed it."""
    entry = store.kernel(DIGEST)
    assert entry is not None
    return entry.taken.by if entry.taken else "built", set(entry.signatures)


def test_a_signature_passes_through_everything(tmp_path: Path) -> None:
    first, file = built(tmp_path / "first"), tmp_path / "x.pack"
    export_archive(first, file, pack=first.packs()[0], signer=FRIEND)
    assert by(first) == ("built", set())  # the cache is as it was
    second = open_store(tmp_path / "second", trust=TRUST)
    assert import_archive(second, file).signed == 1
    assert by(second) == ("signature", {FRIEND.public})
    export_archive(second, tmp_path / "y")
    third = open_store(tmp_path / "third", trust=TRUST)
    assert import_archive(third, tmp_path / "y").signed == 1
    merged = open_store(tmp_path / "merged", trust=TRUST)
    assert merge_stores(merged, open_store(third.root, read_only=True)).signed == 1
    assert by(merged) == ("signature", {FRIEND.public})
    strange = open_store(tmp_path / "strange")  # trusts no key
    copied = merge_stores(strange, open_store(third.root, read_only=True))
    assert (copied.kernels, copied.signed) == (1, 0)
    merged.put_environment(ENVIRONMENT)
    merged.put_record(record(measured("a", kernel=DIGEST), decision=decision("a")))
    remote = LocalFiles(tmp_path / "remote")
    assert push(merged, remote, TransferPart(kernels=True)).changed == 1
    fourth = open_store(tmp_path / "fourth", trust=TRUST)
    assert pull(fourth, remote, TransferPart(kernels=True), source="file:///r").amounts.kernels == 1
    assert by(fourth) == ("signature", {FRIEND.public})
    export_archive(fourth, tmp_path / "z")
    last = open_store(tmp_path / "last", trust=TRUST)
    import_archive(last, tmp_path / "z")
    assert by(last) == ("signature", {FRIEND.public})
    assert last.verify() == []
    assert last.prune(max_bytes=0).kernels == 1
    import_archive(last, tmp_path / "z")
    assert by(last) == ("signature", {FRIEND.public})


def test_the_eviction_of_others_leaves_a_kernel_its_signature(tmp_path: Path) -> None:
    export_archive(built(tmp_path / "first"), tmp_path / "x", signer=FRIEND)
    store = open_store(tmp_path / "second", trust=TRUST)
    import_archive(store, tmp_path / "x")
    other = store.put_kernel(kernel_key("other"), {"kernel.so": b"x" * 100_000})
    an_hour_ago = time.time() - 3600
    os.utime(other.folder / ENTRY, (an_hour_ago, an_hour_ago))
    pruned = store.prune(max_bytes=50_000)
    assert (pruned.kernels, pruned.records) == (1, 0)
    after = open_store(store.root, trust=TRUST)
    assert after.kernel(other.digest) is None
    assert by(after) == ("signature", {FRIEND.public})
    assert (
        vouchers(after.root, after.iter_kernels(), TRUST).text()
        == "0 built here, 1 signed by a friend"
    )


def test_trust_does_not_travel(tmp_path: Path) -> None:
    export_archive(built(tmp_path / "first"), tmp_path / "x")
    second = open_store(tmp_path / "second")
    import_archive(second, tmp_path / "x", trusted=True)
    assert by(second) == ("operator", set())
    export_archive(second, tmp_path / "y", signer=FRIEND)  # nobody signs the code of others
    sent = contents((tmp_path / "y").read_bytes(), tmp_path / "y")
    (described,) = (text for name, text in sent.items() if name.endswith(ENTRY))
    assert b"taken" not in described
    assert b"signatures" not in described
    with pytest.raises(TrustError, match="nobody has signed it"):
        import_archive(open_store(tmp_path / "third", trust=TRUST), tmp_path / "y")
    push(second, LocalFiles(tmp_path / "remote"), TransferPart(kernels=True), signer=FRIEND)
    (edition,) = (tmp_path / "remote").rglob("0000.json")
    assert b"taken" not in edition.read_bytes()
    fourth = open_store(tmp_path / "fourth", trust=TRUST)
    done = pull(fourth, LocalFiles(tmp_path / "remote"), TransferPart(kernels=True))
    assert done.amounts.refused == 1


def test_what_is_not_signed_leaves_a_cache_byte_for_byte(tmp_path: Path) -> None:
    store = built(tmp_path / "first")
    entry = store.kernel(DIGEST)
    assert entry is not None
    fields: dict[str, Any] = json.loads((entry.folder / ENTRY).read_text())
    assert {"signatures", "taken"} & fields.keys() == set()
    export_archive(store, tmp_path / "x")
    before = (tmp_path / "x").read_bytes()
    export_archive(store, tmp_path / "x", signer=None)
    assert (tmp_path / "x").read_bytes() == before


def test_a_second_signature_is_added_to_the_first(tmp_path: Path) -> None:
    store = built(tmp_path / "first")
    export_archive(store, tmp_path / "x", signer=FRIEND)
    export_archive(store, tmp_path / "y", signer=STRANGER)
    both = Trust({**TRUST.keys, STRANGER.public: "another"})
    second = open_store(tmp_path / "second", trust=both)
    import_archive(second, tmp_path / "x")
    taken = import_archive(second, tmp_path / "y")
    assert (taken.kernels, taken.signed, taken.unchanged) == (0, 0, 4)
    assert by(second) == ("signature", {FRIEND.public, STRANGER.public})
    # With the first key withdrawn the second one still vouches for it.
    left = open_store(second.root, trust=Trust({STRANGER.public: ""}))
    assert left.kernel(DIGEST) is not None
    assert second.verify() == []


def test_a_signature_of_an_own_build_comes_back_to_it(tmp_path: Path) -> None:
    store = built(tmp_path / "first")
    export_archive(store, tmp_path / "x", signer=FRIEND)
    import_archive(open_store(store.root, trust=TRUST), tmp_path / "x")
    assert by(open_store(store.root)) == ("built", {FRIEND.public})


def test_a_kernel_whose_key_was_withdrawn_is_replaced_by_an_own_build(tmp_path: Path) -> None:
    export_archive(built(tmp_path / "first"), tmp_path / "x", signer=FRIEND)
    import_archive(open_store(tmp_path / "second", trust=TRUST), tmp_path / "x")
    store = open_store(tmp_path / "second")
    assert store.kernel(DIGEST) is None
    put_library(store)
    assert by(open_store(tmp_path / "second")) == ("built", set())


def test_what_is_here_already_needs_nobodys_word(tmp_path: Path) -> None:
    store = built(tmp_path / "first")
    export_archive(store, tmp_path / "x")
    assert import_archive(store, tmp_path / "x").unchanged == 4
    assert by(store) == ("built", set())


def test_a_wheel_carries_the_signature_of_its_pack(tmp_path: Path) -> None:
    store = built(tmp_path / "first")
    export_archive(store, tmp_path / "x.pack", pack=store.packs()[0], signer=FRIEND)
    with zipfile.ZipFile(write_wheel(tmp_path / "x.pack", tmp_path).file) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(PACK_FILE))
        (tmp_path / "y").write_bytes(wheel.read(name))
    assert import_archive(open_store(tmp_path / "b", trust=TRUST), tmp_path / "y").signed == 1


@pytest.mark.parametrize("name", ["z\udcff.pack", "é.pack"])
def test_a_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    export_archive(built(tmp_path / "first"), tmp_path / name)
    store = open_store(tmp_path / "second")
    import_archive(store, tmp_path / name, trusted=True)
    assert open_store(store.root).kernel(DIGEST) is not None
    assert store.verify() == []


def test_a_cache_says_who_vouches_for_what(tmp_path: Path) -> None:
    export_archive(built(tmp_path / "first"), tmp_path / "x", signer=FRIEND)
    store = open_store(tmp_path / "second", trust=TRUST)
    import_archive(store, tmp_path / "x")
    store.put_kernel(kernel_key("own"), {"kernel.so": b"own"})
    other = open_store(tmp_path / "other")
    other.put_kernel(kernel_key("other"), {"kernel.so": b"other"})
    export_archive(other, tmp_path / "y")
    import_archive(store, tmp_path / "y", trusted=True)
    vouching = vouchers(store.root, store.iter_kernels(), TRUST)
    assert vouching.text() == "1 built here, 1 signed by a friend, 1 taken with --trust"
    ((signed),) = vouching.signed
    assert (signed.key, signed.name, signed.kernels) == (FRIEND.public, "a friend", 1)
    refused = vouchers(store.root, store.iter_kernels(), Trust())
    assert [each.digest for each in refused.refused] == [DIGEST]
    assert f"1 refused ({DIGEST[:12]}: it is signed by {FRIEND.public}" in refused.text()


def loaded(folder: Path) -> Store:
    """Return a cache with a kernel that has come among artifacts of ``torch.compiler``."""
    entry = built(folder / "first").kernel(DIGEST)
    assert entry is not None
    store = open_store(folder / "loaded", trust=TRUST)
    assert import_bytes(store, parcel.of_kernel(entry), f"kernel/{DIGEST}").kernels == 1
    return store


def test_nobody_is_said_to_vouch_for_what_came_with_artifacts(tmp_path: Path) -> None:
    """No operator was asked, so `--trust` is not what they were taken with."""
    store = loaded(tmp_path)
    assert by(store) == ("artifacts", set())
    vouching = vouchers(store.root, store.iter_kernels(), TRUST)
    assert (vouching.artifacts, vouching.operator, vouching.refused) == (1, 0, ())
    assert "--trust" not in vouching.text()
    assert "1 loaded with artifacts of torch.compiler, for which nobody vouches" in vouching.text()
    merged = open_store(tmp_path / "merged")
    merge_stores(merged, open_store(store.root, read_only=True))
    assert by(merged) == ("artifacts", set())


def test_what_was_merged_is_no_own_build_and_nobody_signs_it(tmp_path: Path) -> None:
    """The word of the operator who has taken a kernel with `--trust` does not travel either."""
    first = built(tmp_path / "first")
    export_archive(first, tmp_path / "x")
    taken = open_store(tmp_path / "taken")
    import_archive(taken, tmp_path / "x", trusted=True)
    for source in (first, taken):
        merged = open_store(source.root.with_name(f"{source.root.name}-merged"))
        merge_stores(merged, open_store(source.root, read_only=True))
        entry = merged.kernel(DIGEST)
        assert entry is not None
        assert entry.taken == Taken("directory", str(source.root))
        export_archive(merged, tmp_path / "y", signer=FRIEND)
        with pytest.raises(TrustError, match="nobody has signed it"):
            import_archive(open_store(tmp_path / "there", trust=TRUST), tmp_path / "y")
        vouching = vouchers(merged.root, merged.iter_kernels(), TRUST)
        assert vouching.text() == "0 built here, 1 merged from another cache"
    own = open_store(tmp_path / "first")  # what was built here stays an own build
    merge_stores(own, open_store(taken.root, read_only=True))
    assert by(own) == ("built", set())


def test_an_old_cache_is_read_and_its_artifacts_are_distinguished(tmp_path: Path) -> None:
    """Until they had a word of their own, artifacts were written as the operator's, by their keys."""
    store = loaded(tmp_path)
    path = store.layout.kernel(DIGEST) / ENTRY
    for source, way in ((f"kernel/{DIGEST}", "artifacts"), ("/home/me/x.pack", "operator")):
        fields = document.load(path.read_bytes())
        taken = {"by": "operator", "source": source}
        path.write_bytes(document.dump({**fields, "taken": taken}))
        old = open_store(store.root)
        assert old.verify() == []
        assert by(old) == (way, set())


def test_no_signature_is_looked_at_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own builds need no package; signed ones say which is missing."""
    store = built(tmp_path / "first")
    export_archive(store, tmp_path / "x", signer=FRIEND)
    second = open_store(tmp_path / "second", trust=TRUST)
    import_archive(second, tmp_path / "x")
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    assert open_store(store.root, trust=TRUST).kernel(DIGEST) is not None
    assert open_store(second.root, trust=TRUST).kernel(DIGEST) is None
    with pytest.raises(TrustError, match=r"pip install \"inductor-plugin\[trust\]\""):
        import_archive(open_store(tmp_path / "third", trust=TRUST), tmp_path / "x")
    import_archive(open_store(tmp_path / "third", trust=TRUST), tmp_path / "x", trusted=True)
