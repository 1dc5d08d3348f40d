"""What a node must have to compile as the sender would, and how files travel."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.farm.parcel import addressed, packed, parcel_of, refusal, unpacked
from inductor_plugin.worker.jobs import Compiled, CppCompileJob, TritonCompileJob

SOURCE = CppSource("key", "int x;", "kernel")


def cpp(folder: Path, *words: str) -> CppCompileJob:
    return CppCompileJob(
        (SOURCE,), ("g++", *words, "{source}", "-o", "{output}"), str(folder), 60.0
    )


def test_a_machine_compiles_what_it_has_sent_itself(tmp_path: Path) -> None:
    parcel = parcel_of(cpp(tmp_path, "-march=native", f"-I{tmp_path}"))
    assert parcel.paths == (str(tmp_path),)
    assert refusal(parcel) == ""


@pytest.mark.parametrize("name", ["torch", "inductor-plugin", "compiler", "processor", "python"])
def test_other_software_refuses_and_says_what_differs(tmp_path: Path, name: str) -> None:
    parcel = parcel_of(cpp(tmp_path, "-march=native"))
    other = replace(parcel, facts={**parcel.facts, name: "another"})
    assert refusal(other).startswith(f"{name} is ")
    assert "'another'" in refusal(other)


def test_a_node_without_a_folder_of_headers_refuses(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    parcel = parcel_of(cpp(tmp_path, "-isystem", str(headers)))
    shutil.rmtree(headers)
    assert refusal(parcel) == f"{headers} does not exist there"


def test_the_processor_matters_only_where_code_is_for_this_one(tmp_path: Path) -> None:
    assert "processor" not in parcel_of(cpp(tmp_path)).facts
    assert "compiler" not in parcel_of(TritonCompileJob("k", "k", "", (), 1.0)).facts


def test_files_of_triton_lie_where_triton_looks_for_them(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    job = TritonCompileJob("k", "k", "", (("TRITON_CACHE_DIR", str(here)), ("X", "1")), 1.0)
    sent = addressed(job, there)
    assert isinstance(sent, TritonCompileJob)
    assert dict(sent.environment) == {"TRITON_CACHE_DIR": str(there), "X": "1"}
    (there / "HASH").mkdir(parents=True)
    (there / "HASH" / "k.cubin").write_bytes(b"machine code")
    compiled = [Compiled("k", "ok")]
    assert unpacked(job, packed(sent, compiled, there)) == compiled
    assert (here / "HASH" / "k.cubin").read_bytes() == b"machine code"


def test_a_library_of_several_kernels_travels_once(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    (there / "unit.so").write_bytes(b"library")
    compiled = [Compiled(key, "ok", library=str(there / "unit.so")) for key in "ab"]
    delivery = packed(cpp(there), [*compiled, Compiled("c", "crashed")], there)
    assert list(delivery.files) == ["unit.so"]
    taken = unpacked(cpp(here), delivery)
    assert [each.library for each in taken] == [str(here / "unit.so")] * 2 + [None]
    assert (here / "unit.so").read_bytes() == b"library"
