"""Triton's files of a kernel, carried from one folder of Triton's to another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inductor_plugin.kernels import triton_files


def compiled_in(folder: Path, kernel: str = "mm") -> Path:
    """Write what Triton writes for a kernel."""
    own = folder / "HASH"
    own.mkdir(parents=True)
    for end, content in (("cubin", b"\x7fELF\x00"), ("json", b"{}"), ("ptx", b"// ptx")):
        (own / f"{kernel}.{end}").write_bytes(content)
    paths = {f"{kernel}.{end}": str(own / f"{kernel}.{end}") for end in ("cubin", "json", "ptx")}
    (own / f"__grp__{kernel}.json").write_text(json.dumps({"child_paths": paths}))
    (own / "lock").touch()
    return own


def kept(files: dict[str, bytes], folder: Path) -> dict[str, Path]:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in files}


def test_a_kernel_is_whole_in_its_new_place(tmp_path: Path) -> None:
    own = compiled_in(tmp_path / "a")
    files = kept(triton_files.collect(tmp_path / "a"), tmp_path / "kept")
    assert sorted(files) == [
        *("HASH--__grp__mm.json", "HASH--mm.cubin", "HASH--mm.json", "HASH--mm.ptx"),
    ]
    triton_files.place(files, tmp_path / "b")
    there = tmp_path / "b" / "HASH"
    assert (there / "mm.cubin").read_bytes() == (own / "mm.cubin").read_bytes()
    group = json.loads((there / "__grp__mm.json").read_text())
    assert group["child_paths"]["mm.cubin"] == str(there / "mm.cubin")
    assert sorted(p.name for p in there.iterdir()) == sorted(
        p.name for p in own.iterdir() if p.name != "lock"
    )


def test_what_is_kept_names_no_place(tmp_path: Path) -> None:
    compiled_in(tmp_path / "a")
    compiled_in(tmp_path / "elsewhere")
    first, second = (triton_files.collect(tmp_path / name) for name in ("a", "elsewhere"))
    assert first == second
    assert str(tmp_path).encode() not in b"".join(first.values())


def test_what_is_there_stays(tmp_path: Path) -> None:
    compiled_in(tmp_path / "a")
    files = kept(triton_files.collect(tmp_path / "a"), tmp_path / "kept")
    (tmp_path / "b" / "HASH").mkdir(parents=True)
    (tmp_path / "b" / "HASH" / "mm.cubin").write_bytes(b"other")
    triton_files.place(files, tmp_path / "b")
    assert (tmp_path / "b" / "HASH" / "mm.cubin").read_bytes() == b"other"


def test_the_group_comes_last(tmp_path: Path) -> None:
    compiled_in(tmp_path / "a")
    files = kept(triton_files.collect(tmp_path / "a"), tmp_path / "kept")
    files["HASH--mm.ptx"] = tmp_path / "gone"
    with pytest.raises(FileNotFoundError):
        triton_files.place(files, tmp_path / "b")
    assert not (tmp_path / "b" / "HASH" / "__grp__mm.json").exists()
    assert not list((tmp_path / "b" / "HASH").glob("tmp.*"))


def test_a_name_the_cache_cannot_keep_is_not_kept(tmp_path: Path) -> None:
    compiled_in(tmp_path / "a", "k" * 120)
    assert triton_files.collect(tmp_path / "a") == {}


def test_an_empty_folder_has_nothing(tmp_path: Path) -> None:
    assert triton_files.collect(tmp_path) == {}
