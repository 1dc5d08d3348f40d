"""Several signatures of one kernel: false ones take nobody's place, and there is room for those that count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.cache import KernelEntry, Store, open_store
from inductor_plugin.cache.document import dump, load
from inductor_plugin.cache.entry import ENTRY, MAX_SIGNATURES, parse_entry
from inductor_plugin.cache.transfer.archive import export_archive, import_archive, merge_stores
from inductor_plugin.cache.transfer.kernels import admitted, copy_kernels
from inductor_plugin.cache.trust.keys import Signer, is_signature
from inductor_plugin.cache.trust.policy import Trust
from inductor_plugin.cache.trust.signatures import joined, true_signatures
from tests.support.cache.records import put_library
from tests.support.trust.payload import FRIEND, STRANGER, TRUST, of_many

FALSE = "A" * 86
"""64 bytes in base64, which no key has made of anything."""
JUNK = {f"junk{number}": "x" for number in range(MAX_SIGNATURES)}


def signed(entry: KernelEntry, *signers: Signer, **fields: str) -> KernelEntry:
    by = {signer.public: signer.sign(entry) for signer in signers}
    return replace(entry, signatures={**by, **fields})


def take(store: Store, entry: KernelEntry, *, trusted: bool = False) -> KernelEntry:
    """Take a kernel over as an import does; return it as the next process sees it."""
    copy_kernels(store, admitted(store, [entry], "x.pack", trusted=trusted))
    kernel = open_store(store.root, trust=store.trust).kernel(entry.digest)
    assert kernel is not None
    return kernel


def test_only_what_a_key_has_made_of_this_kernel_is_a_true_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = put_library(open_store(tmp_path / "a"))
    claims = signed(entry, STRANGER, **{FRIEND.public: FALSE, "junk": "x"})
    assert true_signatures(claims).keys() == {STRANGER.public}
    assert true_signatures(entry) == {}
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    assert true_signatures(claims).keys() == {STRANGER.public, FRIEND.public}


def test_of_a_key_the_first_signature_stays_and_of_many_the_first() -> None:
    assert joined({"a": "1"}, {"a": "2", "b": "3"}) == {"a": "1", "b": "3"}
    assert [*joined({"z": "1"}, JUNK)] == ["z", *list(JUNK)[:-1]]


def test_an_import_that_nobody_vouches_for_leaves_the_signatures_that_are_here(
    tmp_path: Path,
) -> None:
    source = put_library(open_store(tmp_path / "source"))
    store = open_store(tmp_path / "relay")  # passes on what a friend has signed, and trusts no key
    assert take(store, signed(source, FRIEND), trusted=True).signatures.keys() == {FRIEND.public}
    for trusted in (False, True):
        hostile = signed(source, **{FRIEND.public: FALSE, "junk": "x"})
        kept = take(store, hostile, trusted=trusted)
        assert kept.signatures.keys() == {FRIEND.public}
        assert is_signature(kept, FRIEND.public, kept.signatures[FRIEND.public])
    assert take(store, signed(source, STRANGER)).signatures.keys() == {FRIEND.public}
    both = take(store, signed(source, STRANGER), trusted=True)  # the operator's word
    assert both.signatures.keys() == {FRIEND.public, STRANGER.public}


def test_a_false_signature_that_is_here_gives_way_to_the_true_one(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    entry = put_library(store)
    files = {name: entry.path(name) for name in entry.files}
    hostile = {"signatures": {FRIEND.public: FALSE}}
    other = open_store(tmp_path / "b", trust=TRUST)
    other.put_kernel(entry.key, files, None, hostile)  # of an older version, which took any text
    kept = take(other, signed(entry, FRIEND))
    assert kept.signatures == signed(entry, FRIEND).signatures


def test_signatures_that_fill_an_entry_make_room_for_one_that_counts(tmp_path: Path) -> None:
    source = put_library(open_store(tmp_path / "source"))
    store = open_store(tmp_path / "full", trust=TRUST)
    put_library(store)
    assert take(store, replace(source, signatures=JUNK)).signatures == {}
    full = replace(source, signatures=of_many(source))
    assert take(store, full).signatures == {}
    assert len(take(store, full, trusted=True).signatures) == MAX_SIGNATURES
    kept = take(store, signed(source, FRIEND))
    assert len(kept.signatures) == MAX_SIGNATURES
    assert kept.signatures[FRIEND.public] == FRIEND.sign(source)


@pytest.mark.parametrize("others", [JUNK, None])
def test_an_export_has_room_for_its_own_signature(
    others: dict[str, str] | None, tmp_path: Path
) -> None:
    store = open_store(tmp_path / "own")
    entry = put_library(open_store(tmp_path / "source"))
    files = {name: entry.path(name) for name in entry.files}
    signatures = of_many(entry) if others is None else others
    store.put_kernel(entry.key, files, None, {"signatures": signatures})
    export_archive(store, tmp_path / "x", signer=FRIEND)
    there = open_store(tmp_path / "there", trust=TRUST)
    assert import_archive(there, tmp_path / "x").signed == 1
    kernel = there.kernel(entry.digest)
    assert kernel is not None
    assert FRIEND.public in kernel.signatures
    assert len(kernel.signatures) == (MAX_SIGNATURES if others is None else 1)


def test_a_merge_leaves_false_signatures_behind(tmp_path: Path) -> None:
    source, target = open_store(tmp_path / "source"), open_store(tmp_path / "target")
    entry = put_library(open_store(tmp_path / "own"))
    files = {name: entry.path(name) for name in entry.files}
    claims = signed(entry, FRIEND, **{STRANGER.public: FALSE})
    source.put_kernel(entry.key, files, None, {"signatures": dict(claims.signatures)})
    merge_stores(target, source)
    kernel = open_store(target.root, trust=Trust()).kernel(entry.digest)
    assert kernel is not None
    assert kernel.signatures.keys() == {FRIEND.public}


@pytest.mark.parametrize("trust", [Trust(), TRUST], ids=["of nobody", "of the signer"])
def test_a_merge_says_how_many_signatures_have_no_room(trust: Trust, tmp_path: Path) -> None:
    entry = put_library(open_store(tmp_path / "own"))
    files = {name: entry.path(name) for name in entry.files}
    target, source = open_store(tmp_path / "target", trust=trust), open_store(tmp_path / "source")
    target.put_kernel(entry.key, files, None, {"signatures": of_many(entry)})
    theirs = dict(signed(entry, FRIEND).signatures)
    source.put_kernel(entry.key, files, None, {"signatures": theirs})
    assert merge_stores(target, source).signatures_left_out == 1  # the friend's, or one of the many
    kernel = target.kernel(entry.digest)
    assert kernel is not None
    assert len(kernel.signatures) == MAX_SIGNATURES
    assert (FRIEND.public in kernel.signatures) == (trust is TRUST)
    assert merge_stores(target, source).signatures_left_out == (0 if trust is TRUST else 1)


def test_signatures_that_find_room_or_are_of_another_build_are_not_left_out(tmp_path: Path) -> None:
    entry = put_library(open_store(tmp_path / "own"))
    files = {name: entry.path(name) for name in entry.files}
    roomy, full = open_store(tmp_path / "roomy"), open_store(tmp_path / "full")
    roomy.put_kernel(entry.key, files, None, {"signatures": dict([*of_many(entry).items()][1:])})
    full.put_kernel(entry.key, files, None, {"signatures": of_many(entry)})
    source, other = open_store(tmp_path / "source"), open_store(tmp_path / "other")
    source.put_kernel(
        entry.key, files, None, {"signatures": dict(signed(entry, FRIEND).signatures)}
    )
    assert merge_stores(roomy, source).signatures_left_out == 0
    build = open_store(tmp_path / "build").put_kernel(entry.key, {"kernel.so": b"another"})
    content = {"kernel.so": build.path("kernel.so")}
    other.put_kernel(entry.key, content, None, {"signatures": {FRIEND.public: FRIEND.sign(build)}})
    assert merge_stores(full, other).signatures_left_out == 0


@pytest.mark.parametrize(
    "name", ["", "a b", "\x1b]0;owned\x07\nERROR: forged line", "\u202e", "k" * 129]
)
def test_what_no_key_and_no_signature_looks_like_makes_a_kernel_a_damaged_one(
    name: str, tmp_path: Path
) -> None:
    entry = put_library(open_store(tmp_path / "a"))
    fields = load((entry.folder / ENTRY).read_bytes())
    for signatures in ({name: "x"}, {"x": name}):
        with pytest.raises(ValueError, match="one that is none"):
            parse_entry(dump({**fields, "signatures": signatures}), entry.folder)
    later = parse_entry(dump({**fields, "signatures": {"mldsa:k": "x"}}), entry.folder)
    assert later.signatures == {"mldsa:k": "x"}


def test_a_signature_of_another_build_says_nothing_of_the_one_that_is_here(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    entry = put_library(store)
    build = open_store(tmp_path / "b").put_kernel(entry.key, {"kernel.so": b"another"})
    signatures = {"signatures": {FRIEND.public: FRIEND.sign(build)}}
    assert store.put_kernel(entry.key, {"kernel.so": b"another"}, None, signatures) == entry
    assert entry.signatures == {}
