from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.cache import Pack, open_store
from inductor_plugin.installed import installed_packs, mismatch, take_installed
from inductor_plugin.wheel import PACK_FILE, write_wheel
from tests.test_wheel import pack_file

HOPPER = Pack("H200", "sm_90a", 1.0, {"nvcc": "nvcc 13.0.88"}, (), (), ())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an installed pack, on the module search path."""
    import zipfile

    folder = tmp_path / "site"
    with zipfile.ZipFile(write_wheel(pack_file(tmp_path), tmp_path).file) as wheel:
        wheel.extractall(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


def test_an_installed_pack_is_taken_once(site: Path, tmp_path: Path) -> None:
    (name,) = installed_packs()
    assert name == "inductor_plugin_pack_rtx_4090"
    store = open_store(tmp_path / "cache")
    assert take_installed(store) == []
    (pack,) = store.packs()
    assert store.kernel(pack.kernels[0]) is not None
    # The next process does not read it again: it would find it changed.
    (file,) = site.glob(f"*/{PACK_FILE}")
    stamp = file.stat()
    file.write_bytes(b"x" * stamp.st_size)
    import os

    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert take_installed(open_store(tmp_path / "cache")) == []


def test_a_new_version_is_taken_too(site: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    assert take_installed(store) == []
    (file,) = site.glob(f"*/{PACK_FILE}")
    file.write_bytes(pack_file(tmp_path, "H200", "sm_90a").read_bytes())
    assert take_installed(store) == []
    assert {one.arch for one in store.packs()} == {"sm_89", "sm_90a"}


def test_a_damaged_one_is_named_and_nothing_of_it_taken(site: Path, tmp_path: Path) -> None:
    (file,) = site.glob(f"*/{PACK_FILE}")
    file.write_bytes(file.read_bytes()[:-100])
    store = open_store(tmp_path / "cache")
    (problem,) = take_installed(store)
    assert "inductor_plugin_pack_rtx_4090 cannot be used" in problem
    assert list(store.iter_kernels()) == []
    assert store.packs() == []


def test_a_cache_that_takes_nothing_is_a_reason(site: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache", memory_only=True)
    (problem,) = take_installed(store)
    assert "cannot import" in problem


def test_packs_for_another_gpu_are_named() -> None:
    assert mismatch([], "sm_80", 13) is None
    assert mismatch([HOPPER], "sm_90a", 13) is None
    reason = mismatch([HOPPER], "sm_80", 13)
    assert reason is not None
    assert "H200 (sm_90a)" in reason
    assert "precompile --target" in reason
    assert mismatch([HOPPER, replace(HOPPER, arch="sm_80")], "sm_80", 13) is None


def test_packs_of_another_cuda_are_named() -> None:
    reason = mismatch([HOPPER], "sm_90a", 12)
    assert reason is not None
    assert "nvcc 13.0.88" in reason
    assert "CUDA 12" in reason
    # Triton's kernels need no runtime library.
    assert mismatch([replace(HOPPER, software={"nvcc": "none"})], "sm_90a", 12) is None
