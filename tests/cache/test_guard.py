"""Which files are read, whose files a cache may hold, and what is advised where it may not."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from inductor_plugin.cache import atomic, guard, open_store
from inductor_plugin.cache.guard import (
    OWN,
    exists,
    is_folder,
    open_regular,
    read,
    read_keys,
    why_not_trusted,
    why_not_trusted_kernel,
)
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cli.disk import cache as examined
from inductor_plugin.errors import CacheRefusedError
from tests.support.cache.records import give_away, kernel_key, put_library

DIGEST = kernel_key().digest


def owned_by(monkeypatch: pytest.MonkeyPatch, uids: dict[str, int]) -> None:
    """Pretend that files of these names belong to other users, and that this user is not root."""

    def pretend(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def stat(path: Path, *args: object, **options: object) -> os.stat_result:
            values = list(real(path, *args, **options))
            values[4] = uids.get(path.name, 1000)
            return os.stat_result(values)

        return stat

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "stat", pretend(Path.stat))
    monkeypatch.setattr(Path, "lstat", pretend(Path.lstat))


def test_a_cache_that_belongs_to_root_is_accepted(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_dir.mkdir(mode=0o755)
    owned_by(monkeypatch, {cache_dir.name: 0})
    assert why_not_trusted(cache_dir) is None
    owned_by(monkeypatch, {cache_dir.name: 65534})
    assert "belongs to user 65534, not to user 1000" in str(why_not_trusted(cache_dir))


def test_a_directory_that_another_user_makes_just_before_is_refused(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder = atomic.make_folder

    def late(path: Path) -> None:
        if path == cache_dir:
            path.mkdir()
            path.chmod(0o777)
        make_folder(path)

    monkeypatch.setattr(atomic, "make_folder", late)
    with pytest.raises(CacheRefusedError, match="may be written by everyone"):
        open_store(cache_dir)


@pytest.mark.parametrize("what", ["above", "folder", "kernel.so", "entry.json"])
def test_a_kernel_that_others_may_replace_is_not_loaded_and_not_removed(
    cache_dir: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = put_library(open_store(cache_dir)).folder
    path = {"above": folder.parent, "folder": folder}.get(what, folder / what)
    path.chmod(0o777)
    assert open_store(cache_dir).kernel(DIGEST) is not None  # nobody else gets into the directory
    for reached in (cache_dir, folder.parent.parent, folder.parent, folder):
        reached.chmod(reached.stat().st_mode | 0o055)
    store = open_store(cache_dir)
    assert store.kernel(DIGEST) is None
    assert "not trusted" in caplog.text
    assert f"chmod go-w {path}" in caplog.text
    assert [damage.kind for damage in store.verify()] == ["kernel"]
    assert folder.is_dir()
    path.chmod(0o755)
    assert store.kernel(DIGEST) is not None
    assert store.verify() == []


def test_a_kernel_of_another_user_is_not_loaded(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_library(open_store(cache_dir))
    for name in (DIGEST, DIGEST[:2], "kernel.so"):
        with monkeypatch.context() as patched:
            owned_by(patched, {name: 65534})
            assert open_store(cache_dir).kernel(DIGEST) is None
            owned_by(patched, {name: 0})
            assert open_store(cache_dir).kernel(DIGEST) is not None


@pytest.mark.parametrize("path", ["/", "/tmp", "/dev/null", "/dev"])
def test_no_mode_of_the_systems_folders_is_to_be_changed(path: str) -> None:
    refusal = why_not_trusted(Path(path))
    assert "chmod" not in str(refusal)
    if path in ("/", "/tmp"):
        assert refusal is not None


def below(parent: Path, mode: int) -> Path:
    """Return a path two folders below one of this mode."""
    (parent / "inner").mkdir(parents=True, mode=0o755)
    parent.chmod(mode)
    return parent / "inner" / "cache"


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o773])
def test_a_folder_above_in_which_everyone_may_rename_is_refused_and_nothing_is_made(
    mode: int, tmp_path: Path
) -> None:
    path = below(tmp_path / "a b", mode)
    with pytest.raises(CacheRefusedError) as refused:
        open_store(path)
    assert f"everyone may rename what is in {tmp_path / 'a b'} (mode {mode:04o})" in str(
        refused.value
    )
    assert str(refused.value).endswith(f"run: chmod o-w '{tmp_path / 'a b'}'")
    assert not path.exists()
    finding = examined(path)
    assert (finding.state, "everyone may rename" in finding.detail) == ("broken", True)
    (tmp_path / "a b").chmod(0o755)
    assert open_store(path).degraded is None
    (tmp_path / "a b").chmod(mode)  # an existing one is refused, too
    with pytest.raises(CacheRefusedError, match="everyone may rename"):
        open_store(path, read_only=True)
    assert why_not_trusted(path, above=False) is None


@pytest.mark.parametrize("mode", [0o1777, 0o775, 0o2770, 0o755])
def test_usual_folders_above_are_accepted(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /tmp; as homes and folders of a group under a umask of 002; as a home that belongs to another user in a container."""
    path = below(tmp_path / "above", mode)
    assert open_store(path).degraded is None
    owned_by(monkeypatch, {"above": 65534})
    assert why_not_trusted(path) is None


def test_a_volume_of_a_container_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes mounts an emptyDir with mode 0777, of root: who is not root can change neither."""
    path = below(tmp_path / "volume", 0o777)
    assert why_not_trusted(path) is not None

    def is_mount(folder: Path) -> bool:
        return folder == tmp_path / "volume"

    monkeypatch.setattr(Path, "is_mount", is_mount)
    assert open_store(path).degraded is None


def test_the_advice_on_a_folder_of_others_is_for_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = below(tmp_path / "above", 0o777)
    owned_by(monkeypatch, {"above": 0})
    assert str(why_not_trusted(path)).endswith("ask its owner for chmod +t")


def test_the_folders_above_what_a_link_leads_to_count_too(tmp_path: Path) -> None:
    path = below(tmp_path / "open", 0o777)
    (tmp_path / "link").symlink_to(path.parent)
    assert "everyone may rename" in str(why_not_trusted(tmp_path / "link" / "cache"))


@pytest.mark.parametrize("is_relative", [True, False])
def test_the_folders_of_links_between_count_too(*, is_relative: bool, tmp_path: Path) -> None:
    """Who may rename the middle one of three decides where the first leads to."""
    real, between = tmp_path / "real", tmp_path / "open"
    for folder in (real, between, tmp_path / "cache"):
        folder.mkdir(mode=0o755)
    (real / "keys").write_text("")
    (real / "keys").chmod(0o600)
    (between / "mid").symlink_to("../real" if is_relative else real)
    (tmp_path / "link").symlink_to("open/mid" if is_relative else between / "mid")
    assert why_not_trusted(tmp_path / "link") is None
    assert read_keys(tmp_path / "link" / "keys", 100).refusal is None
    between.chmod(0o777)
    for refusal in (
        why_not_trusted(tmp_path / "link"),
        why_not_trusted(tmp_path / "link" / "deeper" / "cache"),
        read_keys(tmp_path / "link" / "keys", 100).refusal,
    ):
        assert f"everyone may rename what is in {between} " in str(refusal)
    for name in ("kernels", "records"):
        (tmp_path / "cache" / name).symlink_to(tmp_path / "link")
        assert str(between) in str(why_not_trusted(tmp_path / "cache"))
        (tmp_path / "cache" / name).unlink()
    assert why_not_trusted(tmp_path / "cache") is None


def test_a_link_to_itself_is_no_way(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((OSError, RuntimeError)):
        why_not_trusted(tmp_path / "loop")


@pytest.mark.parametrize("link", ["kernels", "kernels/ab", "kernels/ab/abcd", "kernels/ab/abcd/k"])
def test_modes_matter_of_what_lies_outside_a_cache_that_only_its_owner_enters(
    link: str, cache_dir: Path, tmp_path: Path
) -> None:
    folder, outside = cache_dir / "kernels" / "ab" / "abcd", tmp_path / "big" / "moved"
    folder.mkdir(parents=True)
    file = folder / "k"
    file.write_bytes(b"")
    file.chmod(0o666)
    folder.chmod(0o777 if link != "kernels/ab/abcd/k" else 0o755)
    cache_dir.chmod(0o700)
    assert why_not_trusted_kernel(cache_dir, folder, ["k"]) is None
    outside.parent.mkdir(mode=0o755)
    (cache_dir / link).rename(outside)
    (cache_dir / link).symlink_to(outside)
    assert "may be written by everyone" in str(why_not_trusted_kernel(cache_dir, folder, ["k"]))
    for path in (folder, file):
        path.chmod(0o755)
    assert why_not_trusted_kernel(cache_dir, folder, ["k"]) is None
    outside.parent.chmod(0o777)
    assert "everyone may rename" in str(why_not_trusted_kernel(cache_dir, folder, ["k"]))


def test_modes_do_not_matter_of_what_a_link_leads_to_within_a_closed_cache(
    cache_dir: Path,
) -> None:
    folder = cache_dir / "kernels" / "ab" / "abcd"
    (cache_dir / "moved").mkdir(parents=True)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(cache_dir / "moved")
    (cache_dir / "moved").chmod(0o777)
    cache_dir.chmod(0o700)
    assert why_not_trusted_kernel(cache_dir, folder, []) is None


def test_keys_are_those_of_the_file_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of one that is there when owner and mode are looked at."""
    file, sound = tmp_path / "keys", tmp_path / "sound"
    for each, mode in ((file, 0o666), (sound, 0o600)):
        each.write_text(each.name)
        each.chmod(mode)

    def swapped(path: Path) -> object:
        opened = open_regular(path)
        sound.replace(file)
        return opened

    monkeypatch.setattr(guard, "open_regular", swapped)
    stored = read_keys(file, 100)
    assert (stored.content, stored.mode) == (b"keys", 0o666)
    assert "may be written by everyone" in str(stored.refusal)
    monkeypatch.undo()
    assert read_keys(file, 5).refusal is None
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_keys(file, 4)


def test_keys_below_a_folder_in_which_everyone_may_rename_are_refused(tmp_path: Path) -> None:
    file = below(tmp_path / "above", 0o777)
    file.write_text("")
    file.chmod(0o600)
    assert "replace the keys below it" in str(read_keys(file, 100).refusal)


def test_folders_of_others_beside_the_caches_own_do_not_matter(cache_dir: Path) -> None:
    open_store(cache_dir)
    (cache_dir / "shared").mkdir()
    (cache_dir / "shared").chmod(0o777)
    assert why_not_trusted(cache_dir) is None


def test_every_folder_of_a_cache_that_is_read_is_looked_at(cache_dir: Path) -> None:
    open_store(cache_dir)
    of_layout = {
        value.name
        for name, kind in vars(Layout).items()
        if isinstance(kind, property)
        and not (value := getattr(Layout(cache_dir), name)).suffix
        and value.parent == cache_dir
    }
    assert of_layout - {"damaged"} == set(OWN)
    (cache_dir / "graphs").mkdir(exist_ok=True)
    (cache_dir / "graphs").chmod(0o777)
    assert "graphs may be written by everyone" in str(why_not_trusted(cache_dir))


def test_a_path_with_blanks_is_quoted_in_the_advice(tmp_path: Path) -> None:
    folder = tmp_path / "a b; c"
    folder.mkdir()
    folder.chmod(0o777)
    assert str(why_not_trusted(folder)).endswith(f"run: chmod go-w '{folder}'")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read(path, 5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read(path, 4)


def test_a_file_without_a_size_is_read_whole():
    assert b"Name:" in read("/proc/self/status")
    with pytest.raises(ValueError, match="more than 9 bytes"):
        read("/proc/self/status", 9)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="more than"):
        read(path)


def test_what_has_no_content_of_its_own_is_refused_at_once(tmp_path: Path):
    pipe, door, link = tmp_path / "pipe", tmp_path / "socket", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(door))
        for path in (pipe, door, link):
            with pytest.raises(ValueError, match="not a file"):
                read(path)
    with pytest.raises(IsADirectoryError):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")


def test_a_link_is_followed_only_if_it_may_be(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    assert read(tmp_path / "link") == b"content"
    with pytest.raises(ValueError, match="it is a link"):
        open_regular(tmp_path / "link", follow=False)
    with pytest.raises(ValueError, match="link to itself"):
        read(tmp_path / "loop")


def test_looking_where_one_may_not_look_is_no_error(tmp_path: Path):
    assert exists(tmp_path)
    assert is_folder(tmp_path)
    assert not exists(tmp_path / ("n" * 300))  # ENAMETOOLONG, which Path.exists raises
    assert not is_folder(tmp_path / ("n" * 300))


@pytest.mark.parametrize(("root_mode", "trusted"), [(0o700, True), (0o755, False)])
def test_in_a_cache_that_only_its_owner_enters_modes_below_do_not_matter(
    cache_dir: Path, root_mode: int, trusted: bool
) -> None:
    """An open folder in a closed one is closed, too."""
    folder = cache_dir / "kernels" / "ab"
    folder.mkdir(parents=True)
    (folder / "kernel.so").write_bytes(b"")
    (folder / "kernel.so").chmod(0o666)
    for open_folder in (folder, folder.parent):
        open_folder.chmod(0o755)
    cache_dir.chmod(root_mode)
    assert (why_not_trusted_kernel(cache_dir, folder, ["kernel.so"]) is None) is trusted


def test_who_may_not_change_what_is_refused_is_advised_to_name_another(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another directory for kernels, another file for keys; nobody changes the mode of a folder like /tmp."""
    shared, file = tmp_path / "shared", tmp_path / "keys"
    shared.mkdir()
    shared.chmod(0o1777)
    assert str(why_not_trusted(shared)).endswith("; choose another cache directory")
    cache_dir.mkdir()
    file.write_text("")
    for path in (cache_dir, file):
        give_away(path, monkeypatch)
    for refusal, content, remedy in (
        (why_not_trusted(cache_dir), "kernels", "choose another cache directory"),
        (read_keys(file, 100).refusal, "keys", "name another file"),
    ):
        assert refusal is not None
        assert refusal.what.endswith(f"who could replace the {content} in it")
        assert refusal.remedy == f"{remedy}, or copy it and own the copy"
