"""Cache directories and key files that others have changed: refused, and none of their code runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from inductor_plugin.cache import Pack, open_second, open_store
from inductor_plugin.cache.transfer.archive import export_archive, import_archive, merge_stores
from inductor_plugin.cache.trust.keys import open_signer
from inductor_plugin.cache.trust.listing import vouchers
from inductor_plugin.cache.trust.policy import Trust, parse_trust, trust_or_nobody
from inductor_plugin.cli.disk import cache as examined
from inductor_plugin.errors import CacheRefusedError, TrustError
from tests.support.cache.records import give_away
from tests.support.trust.payload import (
    EXPIRED,
    FRIEND,
    LIBRARY,
    STRANGER,
    TRUST,
    Kernel,
    load_all,
)


@pytest.fixture
def root(tmp_path: Path, kernel: Kernel) -> Path:
    """A cache directory with the attacker's library as if it were an own build."""
    store = open_store(tmp_path / "cache")
    kernel.place(store)
    return store.root


Change = Callable[[Path, pytest.MonkeyPatch], None]


def of_another_user(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(root, monkeypatch)


def writable_by_the_group(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.chmod(0o770)


def writable_by_everyone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.chmod(0o703)


def sticky_as_tmp(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.chmod(0o1777)


def with_a_shelf_for_everyone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "kernels").chmod(0o777)


def with_a_shelf_of_another_user(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(root / "kernels", monkeypatch)


def with_private_files_for_everyone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "private").mkdir(exist_ok=True)
    (root / "private").chmod(0o777)


@pytest.mark.parametrize(
    "change",
    [
        of_another_user, writable_by_the_group, writable_by_everyone, sticky_as_tmp, with_a_shelf_for_everyone,
        with_a_shelf_of_another_user, with_private_files_for_everyone,
    ],
)  # fmt: skip
def test_a_directory_that_others_may_change_is_refused_by_one_rule_wherever_it_is_named(
    change: Change, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(root, monkeypatch)
    with pytest.raises(CacheRefusedError) as own:
        open_store(root)
    with pytest.raises(CacheRefusedError) as merged:
        open_store(root, read_only=True)
    assert str(own.value) == str(merged.value)
    reason = str(own.value).removeprefix("the cache directory is refused: ")
    assert "who could replace the kernels in it" in reason
    assert open_second(root) is None
    finding = examined(root)
    assert finding.state == "broken"
    assert f"{finding.detail}; {finding.remedy}" == reason


def test_what_may_not_be_looked_at_is_a_finding_of_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("inductor_plugin.cli.disk.why_not_trusted", fails)
    finding = examined(tmp_path)
    assert finding.state == "broken"
    assert f"{tmp_path} is not used: [Errno 13] Permission denied" in finding.detail


def test_a_relative_folder_that_is_only_read_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_writable(path: object, mode: int) -> bool:
        return False

    open_store(tmp_path / "own")
    monkeypatch.setattr("inductor_plugin.cache.directory.os.access", not_writable)
    monkeypatch.chdir(tmp_path)
    assert "is not used" not in examined(Path("own")).detail


def link_to_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    library = folder / LIBRARY
    library.rename(folder.parent / "moved.so")
    library.symlink_to(folder.parent / "moved.so")
    return f"damaged cache entry {folder}: {LIBRARY}: it is a link"


def pipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / LIBRARY).unlink()
    os.mkfifo(folder / LIBRARY)
    return f"damaged cache entry {folder}: {LIBRARY}: it is a pipe or a device"


def more_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / LIBRARY).write_bytes((folder / LIBRARY).read_bytes() + b"\0")
    return f"damaged cache entry {folder}: {LIBRARY}: it is larger than its kernel"


def other_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    content = bytearray((folder / LIBRARY).read_bytes())
    content[-1] ^= 1
    (folder / LIBRARY).write_bytes(content)
    return f"damaged cache entry {folder}: the checksum of {LIBRARY} does not match"


def for_everyone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for path in (folder.parents[2], folder.parents[1], folder.parent, folder):
        path.chmod(0o755)  # who may enter the cache
    (folder / LIBRARY).chmod(0o666)
    return f"it is not trusted: {folder / LIBRARY} may be written by everyone (mode 0666)"


def folder_for_everyone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for path in (folder.parents[2], folder.parents[1], folder.parent):
        path.chmod(0o755)
    folder.chmod(0o777)
    return f"it is not trusted: {folder} may be written by everyone (mode 0777)"


def library_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    give_away(folder / LIBRARY, monkeypatch)
    return "belongs to user"


@pytest.mark.parametrize(
    "change",
    [
        link_to_elsewhere, pipe, more_content, other_content, for_everyone, folder_for_everyone,
        library_of_another_user,
    ],
)  # fmt: skip
def test_a_kernel_that_others_may_have_changed_is_not_handed_out_and_its_reason_is_logged(
    change: Callable[[Path, pytest.MonkeyPatch], str],
    root: Path,
    kernel: Kernel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store(root)
    why = change(store.layout.kernel(kernel.entry.digest), monkeypatch)
    assert caplog.text == ""
    assert store.kernel(kernel.entry.digest) is None
    assert why in caplog.text
    assert load_all(store) == 0


def shelf_for_everyone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for path in (folder.parents[2], folder.parents[1]):
        path.chmod(0o755)
    folder.parent.chmod(0o777)
    return f"it is not trusted: {folder.parent} may be written by everyone (mode 0777)"


@pytest.mark.parametrize(
    "change", [for_everyone, folder_for_everyone, shelf_for_everyone, library_of_another_user]
)
def test_a_kernel_that_others_may_have_changed_is_neither_merged_nor_signed_nor_exported(
    change: Callable[[Path, pytest.MonkeyPatch], str],
    root: Path,
    kernel: Kernel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, digest = open_store(root), kernel.entry.digest
    store.put_pack(Pack("H200", "sm_90a", 1.0, {}, ("m:f",), ("mm",), (digest,)))
    whole = export_archive(store, tmp_path / "whole")
    assert (whole["kernels"], whole["packs"]) == (1, 1)
    why = change(store.layout.kernel(digest), monkeypatch).removeprefix("it is not trusted: ")
    target = open_store(tmp_path / "target")
    assert merge_stores(target, open_store(root, read_only=True)).kernels == 0
    assert f"1 kernels of {root} are left out" in caplog.text
    assert why in caplog.text
    caplog.clear()
    counts = export_archive(open_store(root), tmp_path / "x", signer=FRIEND)
    assert (counts["kernels"], counts["packs"]) == (0, 0)
    assert why in caplog.text
    assert import_archive(open_store(tmp_path / "there", trust=TRUST), tmp_path / "x").kernels == 0
    (refused,) = vouchers(root, open_store(root).iter_kernels(), TRUST).refused
    assert refused.digest == digest
    assert why in refused.reason
    assert load_all(target) == 0


def withdrawn(kernel: Kernel) -> tuple[Trust, str]:
    return Trust(), "not by a key in trusted_keys"


def stripped(kernel: Kernel) -> tuple[Trust, str]:
    del kernel.fields["signatures"]
    return TRUST, "nobody has signed it"


def signed_anew_by_a_stranger(kernel: Kernel) -> tuple[Trust, str]:
    del kernel.fields["signatures"]
    kernel.signed(STRANGER)
    return TRUST, "not by a key in trusted_keys"


def with_another_library(kernel: Kernel) -> tuple[Trust, str]:
    kernel.with_library(kernel.files[LIBRARY] + b"\0")
    return TRUST, "changed after it was signed"


def of_an_expired_key(kernel: Kernel) -> tuple[Trust, str]:
    return EXPIRED, "it is signed by a friend (ed25519:"


@pytest.mark.parametrize(
    "change",
    [withdrawn, stripped, signed_anew_by_a_stranger, with_another_library, of_an_expired_key],
)
def test_a_kernel_that_came_by_a_signature_needs_it_at_each_load(
    change: Callable[[Kernel], tuple[Trust, str]],
    kernel: Kernel,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel.signed().fields["taken"] = {"by": "signature", "source": "x.pack"}
    trust, why = change(kernel)
    store = open_store(tmp_path / "cache", trust=trust)
    folder = kernel.place(store)
    assert load_all(store) == 0
    assert why in caplog.text
    assert folder.is_dir()  # the key may be trusted again
    second = open_second(store.root, trust)
    assert second is not None
    assert second.kernel(kernel.entry.digest) is None
    caplog.clear()
    other = open_store(tmp_path / "other", trust=trust)
    assert merge_stores(other, open_store(store.root, read_only=True, trust=trust)).kernels == 1
    assert load_all(other) == 0
    # It is copied, and needs its signature there, too; one that is of another content is left behind.
    assert ("nobody has signed it" if change is with_another_library else why) in caplog.text


def key_file(folder: Path) -> Path:
    file = folder / "keys"
    file.write_text(f"# ours\n{STRANGER.public} attacker\n")
    file.chmod(0o600)
    return file


def for_all(file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file.chmod(0o666)
    return "may be written by everyone"


def for_the_group(file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file.chmod(0o660)
    return "may be written by its group"


def of_someone(file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    give_away(file, monkeypatch)
    return "belongs to user"


def gone(file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file.unlink()
    return "there is no such file"


def with_a_short_key(file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file.write_text("ed25519:AAAA\n")
    return "are not 32 bytes"


def with_another_algorithm(file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file.write_text(f"rsa:{'A' * 43}\n")
    return "is no key"


def binary(file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file.write_bytes(b"\xff\xfe")
    return "cannot be read"


@pytest.mark.parametrize(
    "change",
    [for_all, for_the_group, of_someone, gone, with_a_short_key, with_another_algorithm, binary],
)
def test_a_file_of_keys_that_others_may_change_or_that_is_none_trusts_nobody(
    change: Callable[[Path, pytest.MonkeyPatch], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = key_file(tmp_path)
    assert parse_trust(str(file)).keys == {STRANGER.public: "attacker"}
    why = change(file, monkeypatch)
    with pytest.raises(TrustError, match=why):
        parse_trust(f"{FRIEND.public},{file}")
    assert trust_or_nobody(f"{FRIEND.public},{file}").keys == {}
    assert why in caplog.text


@pytest.mark.parametrize(
    ("mode", "content", "why"),
    [
        (0o644, None, "may be read by others"),
        (0o640, None, r"may be read by others \(mode 0640\)"),  # by its group
        (0o604, None, r"may be read by others \(mode 0604\)"),
        (0o660, None, "may be written by its group"),
        (0o600, b"no key", "holds no private key"),
        (0o600, b"", "holds no private key"),
    ],
)
def test_a_signing_key_that_others_know_is_not_used(
    mode: int, content: bytes | None, why: str, tmp_path: Path
) -> None:
    from inductor_plugin.cache.trust.keys import new_key

    file = tmp_path / "key"
    new_key(file)
    assert open_signer(file) is not None
    if content is not None:
        file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(TrustError, match=why):
        open_signer(file)
