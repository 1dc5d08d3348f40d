from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Pack, Store, open_store
from inductor_plugin.cache.transfer.archive import import_archive
from inductor_plugin.cache.transfer.installed import (
    Host,
    installed_packs,
    mismatch,
    take_installed,
)
from inductor_plugin.cache.transfer.wheel import PACK_FILE
from tests.support.cache.packs import TRUST, install, pack_file, stale

SOFTWARE = {"nvcc": "nvcc 13.0.88", "torch": "2.14.1", "triton": "3.8.0", "machine": "x86_64"}
HOPPER = Pack("H200", "sm_90a", 1.0, SOFTWARE, ("m:f",), (), ())
HOST = Host("sm_90a", 13, "x86_64", "2.14.1", "3.8.0", "3.12")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install(tmp_path, monkeypatch)


def test_an_installed_pack_is_taken_once(site: Path, tmp_path: Path) -> None:
    packs = installed_packs()
    (name,) = packs.files
    assert name.startswith("inductor_plugin_pack_rtx_4090_")
    assert packs.problems == ()
    store = open_store(tmp_path / "cache", trust=TRUST)
    assert take_installed(store) == []
    (pack,) = store.packs()
    assert store.kernel(pack.kernels[0]) is not None
    # The next process does not read it again: it would find it changed.
    (file,) = site.glob(f"*/{PACK_FILE}")
    stamp = file.stat()
    file.write_bytes(b"x" * stamp.st_size)
    import os

    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert take_installed(open_store(tmp_path / "cache", trust=TRUST)) == []


def test_a_pack_in_the_second_cache_is_looked_at_once(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert take_installed(open_store(tmp_path / "team", trust=TRUST)) == []
    taken: list[Path] = []

    def counted(store: Store, file: Path, **keywords: Any) -> Any:
        taken.append(file)
        return import_archive(store, file, **keywords)

    monkeypatch.setattr("inductor_plugin.cache.transfer.installed.import_archive", counted)
    for _ in range(3):
        store = open_store(tmp_path / "own", second=tmp_path / "team", trust=TRUST)
        assert take_installed(store) == []
        assert store.verify_packs() == []
    assert len(taken) == 1


def test_a_new_version_is_taken_too(site: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache", trust=TRUST)
    assert take_installed(store) == []
    (file,) = site.glob(f"*/{PACK_FILE}")
    file.write_bytes(pack_file(tmp_path, "H200", "sm_90a").read_bytes())
    assert take_installed(store) == []
    assert {pack.arch for pack in store.packs()} == {"sm_89", "sm_90a"}


def test_a_damaged_one_is_named_and_nothing_of_it_taken(site: Path, tmp_path: Path) -> None:
    (file,) = site.glob(f"*/{PACK_FILE}")
    file.write_bytes(file.read_bytes()[:-100])
    store = open_store(tmp_path / "cache", trust=TRUST)
    (problem,) = take_installed(store)
    assert "the installed pack inductor_plugin_pack_rtx_4090_" in problem
    assert "cannot be used" in problem
    assert list(store.iter_kernels()) == []
    assert store.packs() == []


def test_a_cache_that_takes_nothing_is_a_reason(site: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache", memory_only=True, trust=TRUST)
    (problem,) = take_installed(store)
    assert "cannot import" in problem


def test_kernels_that_were_evicted_come_back(site: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache", trust=TRUST)
    assert take_installed(store) == []
    (pack,) = store.packs()
    assert store.prune(max_bytes=0).kernels == 1
    assert store.kernel(pack.kernels[0]) is None
    again = open_store(tmp_path / "cache", trust=TRUST)
    assert take_installed(again) == []
    assert again.kernel(pack.kernels[0]) is not None


def test_a_pack_comes_back_whose_note_is_gone(site: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache", trust=TRUST)
    assert take_installed(store) == []
    shutil.rmtree(store.layout.packs)
    again = open_store(tmp_path / "cache", trust=TRUST)
    assert take_installed(again) == []
    assert len(again.packs()) == 1


@pytest.mark.parametrize("package", ["gone_kernels", "gone.kernels", "pickle", "json:dumps"])
def test_an_entry_point_that_leads_nowhere_is_named_and_the_others_are_taken(
    site: Path, tmp_path: Path, package: str
) -> None:
    stale(site, package)
    (problem,) = installed_packs().problems
    assert problem.startswith("the installed pack stale cannot be used: ")
    assert "install its wheel again, or uninstall it" in problem
    store = open_store(tmp_path / "cache", trust=TRUST)
    assert take_installed(store) == [problem]
    assert [pack.target for pack in store.packs()] == ["RTX 4090"]


def test_a_package_above_is_not_imported(site: Path) -> None:
    (site / "angry").mkdir()
    (site / "angry" / "__init__.py").write_text("raise RuntimeError('it ran')")
    stale(site, "angry.kernels")
    (problem,) = installed_packs().problems
    assert "no package at the top" in problem
    assert "angry" not in sys.modules


def test_a_pack_that_no_trusted_key_has_signed_is_refused_until_it_is_imported_with_trust(
    site: Path, tmp_path: Path
) -> None:
    store = open_store(tmp_path / "cache")
    (problem,) = take_installed(store)
    assert "--trust" in problem
    assert "trusted_keys" in problem
    assert list(store.iter_kernels()) == []
    assert store.packs() == []
    (file,) = site.glob(f"*/{PACK_FILE}")
    assert str(file) in problem
    import_archive(store, file, trusted=True)
    assert take_installed(store) == []


def test_packs_for_another_gpu_are_named() -> None:
    ampere = replace(HOST, arch="sm_80")
    assert mismatch([], ampere) is None
    assert mismatch([HOPPER], HOST) is None
    reason = mismatch([HOPPER], ampere)
    assert reason is not None
    assert "H200 (sm_90a)" in reason.what
    assert "precompile --target" in reason.remedy
    assert str(reason) == f"{reason.what}; {reason.remedy}"
    assert mismatch([HOPPER, replace(HOPPER, arch="sm_80")], ampere) is None


def test_packs_of_another_cuda_are_named() -> None:
    reason = mismatch([HOPPER], replace(HOST, cuda=12))
    assert reason is not None
    assert "nvcc 13.0.88" in reason.what
    assert "CUDA 12" in reason.what
    # Triton's kernels need no runtime library.
    assert mismatch([pack_with(nvcc="none")], replace(HOST, cuda=12)) is None
    assert mismatch([pack_with(nvcc="nvcc 12.8.93, nvcc 13.0.88")], HOST) is None


def test_packs_of_another_machine_are_named() -> None:
    reason = mismatch([HOPPER], replace(HOST, machine="aarch64"))
    assert reason is not None
    assert "made on x86_64, this machine is aarch64" in reason.what
    assert (
        mismatch([HOPPER, pack_with(machine="aarch64")], replace(HOST, machine="aarch64")) is None
    )
    unnoted = {name: value for name, value in SOFTWARE.items() if name != "machine"}
    assert mismatch([replace(HOPPER, software=unnoted)], HOST) is None


@pytest.mark.parametrize("other", [{"torch": "2.13.0"}, {"triton": "3.7.0"}, {"python": "3.11"}])
def test_packs_of_another_torch_or_triton_are_named(other: dict[str, str]) -> None:
    pack = pack_with(**other)
    reason = mismatch([pack], HOST)
    assert reason is not None
    assert next(iter(other.values())) in reason.what
    assert "here are torch 2.14.1, Triton 3.8.0" in reason.what
    assert "its CUTLASS kernels serve, Triton's are compiled anew" in reason.what
    assert mismatch([pack, HOPPER], HOST) is None
    # One without Triton kernels has nothing to compile anew.
    assert mismatch([replace(pack, models=("standard sm_90a",))], HOST) is None
    alone = mismatch([pack_with(nvcc="none", **other)], HOST)
    assert alone is not None
    assert "CUTLASS" not in alone.what
    assert "its Triton kernels are compiled anew" in alone.what


def pack_with(**software: str) -> Pack:
    return replace(HOPPER, software={**SOFTWARE, **software})
