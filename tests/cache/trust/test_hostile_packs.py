"""Packs and wheels of an attacker: each is refused with its reason, and none of their code runs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inductor_plugin.cache import Pack, open_store
from inductor_plugin.cache.pack import dump_pack
from inductor_plugin.cache.transfer.archive import import_archive
from inductor_plugin.cache.transfer.installed import take_installed
from inductor_plugin.cache.trust.policy import Trust
from inductor_plugin.errors import ArchiveError, TrustError
from tests.support.cache import archives
from tests.support.cache.packs import stale
from tests.support.trust.payload import (
    EXPIRED,
    FRIEND,
    LIBRARY,
    STRANGER,
    TRUST,
    Kernel,
    load_all,
    marking_call,
    marking_module,
)

Make = Callable[[str], Kernel]
NOT_TRUSTED = "holds native code that is not trusted"
SCRIPT = "source.cu"
"""A second file of a kernel: Python that leaves the mark, too."""


@pytest.fixture
def make(tmp_path: Path, payload: bytes, mark: Path) -> Iterator[Make]:
    def kernel(name: str = "k") -> Kernel:
        files = {LIBRARY: payload, SCRIPT: marking_call(mark).encode()}
        return Kernel(tmp_path / f"files-{name}", files, name)

    yield kernel
    assert not mark.exists(), "code of the attacker ran"


def refused(file: Path, tmp_path: Path, *, trusted: bool = False, trust: Trust = TRUST) -> str:
    """Return why an import is refused; nothing of it may be in the cache, and nothing is loaded."""
    store = open_store(tmp_path / "cache", trust=trust)
    with pytest.raises((TrustError, ArchiveError)) as caught:
        import_archive(store, file, trusted=trusted)
    assert list(store.iter_kernels()) == []
    assert store.packs() == []
    assert load_all(store) == 0
    return str(caught.value)


def test_the_library_of_these_tests_leaves_its_mark_where_it_is_loaded(
    tmp_path: Path, payload: bytes, mark: Path
) -> None:
    (tmp_path / "x.so").write_bytes(payload)
    ctypes.CDLL(str(tmp_path / "x.so"))
    assert mark.exists()
    mark.unlink()


def test_a_pack_of_a_friend_is_taken_and_loaded(tmp_path: Path, payload: bytes, mark: Path) -> None:
    kernel = Kernel(tmp_path / "files", {LIBRARY: payload}).signed()
    store = open_store(tmp_path / "cache", trust=TRUST)
    taken = import_archive(store, archives.write(tmp_path / "x", kernel.members()))
    assert (taken.kernels, taken.signed) == (1, 1)
    assert load_all(store) == 1
    assert mark.exists()
    mark.unlink()


def test_a_refused_pack_leaves_a_damaged_kernel_of_the_cache_as_it_is(
    tmp_path: Path, make: Make
) -> None:
    kernel = make("k")
    file = archives.write(tmp_path / "x", kernel.members())
    store = open_store(tmp_path / "cache", trust=TRUST)
    import_archive(store, file, trusted=True)
    (library,) = store.layout.kernels.rglob(LIBRARY)
    library.chmod(0o600)
    library.write_bytes(b"cut")
    with pytest.raises(TrustError, match=NOT_TRUSTED):
        import_archive(open_store(tmp_path / "cache", trust=TRUST), file)
    assert library.read_bytes() == b"cut"


def swapped(kernel: Kernel) -> None:
    kernel.signed().with_library(kernel.files[LIBRARY] + b"\0")


def of_another_kernel(kernel: Kernel) -> None:
    kernel.signed().with_key(source="another")


def for_another_gpu(kernel: Kernel) -> None:
    kernel.signed().with_key(target="sm_90a")


def of_another_compiler(kernel: Kernel) -> None:
    kernel.signed().with_key(toolchain="g++ 13")


def with_other_flags(kernel: Kernel) -> None:
    kernel.signed().with_key(flags="-O3 -ffast-math")


def with_fewer_registers(kernel: Kernel) -> None:
    kernel.signed().fields["resources"]["registers"] = 8


def with_another_file(kernel: Kernel) -> None:
    kernel.signed().files["sitecustomize.py"] = kernel.files[SCRIPT]
    kernel.fields["files"]["sitecustomize.py"] = archives.sha256(kernel.files[SCRIPT])


def with_a_file_less(kernel: Kernel) -> None:
    kernel.signed()
    del kernel.files[SCRIPT], kernel.fields["files"][SCRIPT]


def with_zeros(kernel: Kernel) -> None:
    kernel.fields["signatures"] = {FRIEND.public: "A" * 86}


def cut(kernel: Kernel) -> None:
    signatures = kernel.signed().fields["signatures"]
    signatures[FRIEND.public] = signatures[FRIEND.public][:-4]


def spelled_otherwise(kernel: Kernel) -> None:
    """A signature of 64 bytes has one text; the last character of another holds bits that nobody reads."""
    signatures = kernel.signed().fields["signatures"]
    text: str = signatures[FRIEND.public]
    last = {"A": "B", "Q": "R", "g": "h", "w": "x"}[text[-1]]
    signatures[FRIEND.public] = text[:-1] + last


def by_a_stranger_in_a_friends_name(kernel: Kernel) -> None:
    kernel.fields["signatures"] = {FRIEND.public: STRANGER.sign(kernel.entry)}


def of_a_statement_without_its_context(kernel: Kernel) -> None:
    from inductor_plugin.cache.trust import statement

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statement, "CONTEXT", "another protocol")
        kernel.signed()


@pytest.mark.parametrize(
    "change",
    [
        swapped, of_another_kernel, for_another_gpu, of_another_compiler, with_other_flags, with_fewer_registers,
        with_another_file, with_a_file_less, with_zeros, cut, spelled_otherwise, by_a_stranger_in_a_friends_name,
        of_a_statement_without_its_context,
    ],
)  # fmt: skip
@pytest.mark.parametrize("trusted", [False, True])
def test_a_forged_signature_of_a_friend_is_refused_even_with_trust(
    change: Callable[[Kernel], None], trusted: bool, make: Make, tmp_path: Path
) -> None:
    kernel = make("k")
    change(kernel)
    reason = refused(archives.write(tmp_path / "x", kernel.members()), tmp_path, trusted=trusted)
    assert NOT_TRUSTED in reason
    assert "changed after it was signed" in reason
    assert "a friend" in reason
    assert "--trust" not in reason


def without(kernel: Kernel) -> str:
    return "nobody has signed it"


def by_a_stranger(kernel: Kernel) -> str:
    kernel.signed(STRANGER)
    return f"it is signed by {STRANGER.public}, not by a key in trusted_keys"


def by_a_padded_key(kernel: Kernel) -> str:
    kernel.fields["signatures"] = {f"{FRIEND.public}=": FRIEND.sign(kernel.entry)}
    return "not by a key in trusted_keys"


def that_says_it_is_trusted(kernel: Kernel) -> str:
    kernel.fields["taken"] = {"by": "operator", "source": "you"}
    return "nobody has signed it"


def that_says_it_was_checked(kernel: Kernel) -> str:
    kernel.signed(STRANGER).fields["taken"] = {"by": "signature", "source": FRIEND.public}
    return "not by a key in trusted_keys"


def test_a_key_with_a_blank_is_no_name_of_a_signature(make: Make, tmp_path: Path) -> None:
    kernel = make("k")
    kernel.fields["signatures"] = {f"{FRIEND.public} ": FRIEND.sign(kernel.entry)}
    reason = refused(archives.write(tmp_path / "x", kernel.members()), tmp_path)
    assert "holds a damaged kernel" in reason
    assert "or one that is none" in reason


@pytest.mark.parametrize(
    "change",
    [
        without, by_a_stranger, by_a_padded_key, that_says_it_is_trusted, that_says_it_was_checked,
    ],
)  # fmt: skip
def test_what_no_friend_has_signed_is_refused_with_the_way_out(
    change: Callable[[Kernel], str], make: Make, tmp_path: Path
) -> None:
    kernel = make("k")
    why = change(kernel)
    reason = refused(archives.write(tmp_path / "x", kernel.members()), tmp_path)
    assert why in reason
    assert "INDUCTOR_PLUGIN_TRUSTED_KEYS" in reason
    assert "import it with --trust" in reason


def test_nobody_is_trusted_where_no_key_is_named(make: Make, tmp_path: Path) -> None:
    file = archives.write(tmp_path / "x", make("k").signed().members())
    assert FRIEND.public in refused(file, tmp_path, trust=Trust())


def test_a_pack_of_a_friend_whose_key_has_expired_is_refused_with_the_day(
    make: Make, tmp_path: Path
) -> None:
    file = archives.write(tmp_path / "x", make("k").signed().members())
    reason = refused(file, tmp_path, trust=EXPIRED)
    assert "it is signed by a friend (ed25519:" in reason
    assert "whose key expired on 2020-01-31" in reason
    assert "import it with --trust" in reason
    store = open_store(tmp_path / "operator", trust=EXPIRED)
    import_archive(store, file, trusted=True)
    (entry,) = store.iter_kernels()
    assert entry.taken is not None
    assert entry.taken.by == "operator"


def test_an_expired_key_makes_no_forged_signature_better(make: Make, tmp_path: Path) -> None:
    kernel = make("k")
    swapped(kernel)
    file = archives.write(tmp_path / "x", kernel.members())
    assert "changed after it was signed" in refused(file, tmp_path, trusted=True, trust=EXPIRED)


def test_of_two_signers_one_whose_key_counts_is_enough(make: Make, tmp_path: Path) -> None:
    both = Trust({**EXPIRED.keys, STRANGER.public: "another"}, EXPIRED.expires)
    kernel = make("k").signed().signed(STRANGER)
    store = open_store(tmp_path / "cache", trust=both)
    assert import_archive(store, archives.write(tmp_path / "x", kernel.members())).signed == 1


def many(kernel: Kernel) -> str:
    kernel.fields["signatures"] = {f"{n}": "s" for n in range(17)}
    return "more than 16 signatures"


def long(kernel: Kernel) -> str:
    kernel.fields["signatures"] = {FRIEND.public: "s" * 4096}
    return "or one that is none"


def as_a_list(kernel: Kernel) -> str:
    kernel.fields["signatures"] = [FRIEND.public]
    return "damaged kernel"


def of_numbers(kernel: Kernel) -> str:
    kernel.fields["signatures"] = {FRIEND.public: 1}
    return "damaged kernel"


def taken_by_magic(kernel: Kernel) -> str:
    kernel.fields["taken"] = {"by": "magic", "source": ""}
    return "no way to take a kernel"


def with_a_file_that_nobody_lists(kernel: Kernel) -> str:
    kernel.signed().files["sitecustomize.py"] = kernel.files[SCRIPT]
    return "does not list sitecustomize.py"


@pytest.mark.parametrize(
    "change", [many, long, as_a_list, of_numbers, taken_by_magic, with_a_file_that_nobody_lists]
)
def test_what_is_no_entry_of_a_kernel_is_damage_whatever_the_operator_says(
    change: Callable[[Kernel], str], make: Make, tmp_path: Path
) -> None:
    kernel = make("k")
    why = change(kernel)
    file = archives.write(tmp_path / "x", kernel.members())
    assert why in refused(file, tmp_path, trusted=True)


@pytest.mark.parametrize("name", ["../../outside.so", "kernels/ab/../../x.so", "/tmp/x.so"])
def test_a_signed_kernel_opens_no_way_for_files_elsewhere(
    name: str, make: Make, tmp_path: Path, payload: bytes
) -> None:
    file = archives.write(tmp_path / "x", {**make("k").signed().members(), name: payload})
    assert "no path of a cache" in refused(file, tmp_path)


def test_one_kernel_that_is_not_signed_keeps_all_out(make: Make, tmp_path: Path) -> None:
    other = make("b")
    members = {**make("a").signed().members(), **other.members()}
    reason = refused(archives.write(tmp_path / "x", members), tmp_path)
    assert f"(1 kernels, {other.entry.digest[:12]} first: nobody has signed it)" in reason


def test_a_signed_kernel_lends_its_name_to_no_pack(make: Make, tmp_path: Path) -> None:
    signed, other = make("a").signed(), make("b")
    digests = tuple(sorted((signed.entry.digest, other.entry.digest)))
    pack = Pack("H200", "sm_90a", 1.0, {}, ("m:f",), ("mm",), digests)
    members = {**signed.members(), **other.members(), f"packs/{pack.name}.json": dump_pack(pack)}
    assert "nobody has signed it" in refused(archives.write(tmp_path / "x", members), tmp_path)


def install(
    folder: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, name: str
) -> Path:
    """Put a wheel's files where pip does, in a package whose import leaves the mark; return its pack."""
    site = folder / "site"
    package = site / "evil_kernels"
    package.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    marking_module(package, "__init__", mark)
    pack = package / "kernels.pack"
    pack.write_bytes(content)
    stale(site, name)
    return pack


def test_the_pack_of_a_wheel_that_nobody_signed_is_refused_and_named(
    make: Make, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archives.write(tmp_path / "x", make("k").members()).read_bytes()
    pack = install(tmp_path, mark, monkeypatch, content, "evil_kernels")
    store = open_store(tmp_path / "cache", trust=TRUST)
    (problem,) = take_installed(store)
    assert NOT_TRUSTED in problem
    assert str(pack) in problem
    assert load_all(store) == 0
    assert "evil_kernels" not in sys.modules


@pytest.mark.parametrize(
    "name", ["evil_kernels.kernels", "evil_kernels.kernels:run", "../evil_kernels", ".evil_kernels"]
)
def test_a_wheel_runs_no_code_by_its_name(
    name: str, mark: Path, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archives.write(tmp_path / "x", make("k").members()).read_bytes()
    install(tmp_path, mark, monkeypatch, content, name)
    (problem,) = take_installed(open_store(tmp_path / "cache", trust=TRUST))
    assert "no package at the top" in problem
    assert "evil_kernels" not in sys.modules
