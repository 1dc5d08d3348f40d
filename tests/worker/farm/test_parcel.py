"""What a node must have to compile as the sender would, and how files travel."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.farm import parcel as parcel_module
from inductor_plugin.worker.farm import places
from inductor_plugin.worker.farm.parcel import (
    Delivery,
    addressed,
    arrived,
    packed,
    parcel_of,
    unpacked,
    why_not_compiled,
)
from inductor_plugin.worker.jobs import Compiled, CppCompileJob, TritonCompileJob

SOURCE = CppSource("key", "int x;", "kernel")


def cpp(folder: Path, *words: str) -> CppCompileJob:
    return CppCompileJob(
        (SOURCE,), ("g++", *words, "{source}", "-o", "{output}"), str(folder), 60.0
    )


def test_a_machine_compiles_what_it_has_sent_itself(tmp_path: Path) -> None:
    parcel = parcel_of(cpp(tmp_path, "-march=native", f"-I{tmp_path}"))
    assert parcel.paths == (str(tmp_path),)
    assert why_not_compiled(parcel) is None


@pytest.mark.parametrize("name", ["torch", "inductor-plugin", "compiler", "processor", "python"])
def test_other_software_refuses_and_says_what_differs(tmp_path: Path, name: str) -> None:
    parcel = parcel_of(cpp(tmp_path, "-march=native"))
    other = replace(parcel, facts={**parcel.facts, name: "another"})
    assert str(why_not_compiled(other)).startswith(f"{name} is ")
    assert "'another'" in str(why_not_compiled(other))


def test_a_node_without_a_folder_of_headers_refuses(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    parcel = parcel_of(cpp(tmp_path, "-isystem", str(headers)))
    shutil.rmtree(headers)
    assert why_not_compiled(parcel) == f"{headers} does not exist there"


def headers_of(folder: Path) -> Path:
    """Return a header that is precompiled."""
    header = folder / "first.h"
    header.write_text("")
    header.with_name("first.h.gch").write_bytes(b"compiled")
    return header


def test_a_node_without_the_precompiled_header_compiles_without_it(tmp_path: Path) -> None:
    header = headers_of(tmp_path)
    parcel = parcel_of(cpp(tmp_path, "-include", str(header), "-O1"))
    assert parcel.paths == ()
    assert arrived(parcel).job == parcel.job  # where it is
    header.with_name("first.h.gch").unlink()
    assert arrived(parcel).job == cpp(tmp_path, "-O1")
    header.unlink()
    assert arrived(parcel).job == cpp(tmp_path, "-O1")
    assert why_not_compiled(arrived(parcel)) is None


def test_a_header_that_another_user_has_put_there_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parcel = parcel_of(cpp(tmp_path, "-include", str(headers_of(tmp_path))))
    monkeypatch.setattr("os.geteuid", lambda: -1)
    assert arrived(parcel).job == cpp(tmp_path)


def test_a_header_that_is_not_only_for_speed_is_needed(tmp_path: Path) -> None:
    header = headers_of(tmp_path)
    header.with_name("first.h.gch").unlink()
    parcel = parcel_of(cpp(tmp_path, "-include", str(header)))
    header.unlink()
    assert why_not_compiled(arrived(parcel)) == f"{header} does not exist there"


def test_what_lies_in_a_package_is_found_in_the_nodes_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there" / "torch", tmp_path / "here" / "torch"
    for folder in (there, here):
        (folder / "include").mkdir(parents=True)
    monkeypatch.setattr(parcel_module, "folders", lambda: {"torch": str(there)})
    parcel = parcel_of(cpp(tmp_path, f"-I{there}/include", f"-L{there}/lib", "-DX=/no/path"))
    shutil.rmtree(there.parent)
    monkeypatch.setattr(places, "folders", dict[str, str])
    assert why_not_compiled(arrived(parcel)) == f"{there}/include does not exist there"
    monkeypatch.setattr(places, "folders", lambda: {"torch": str(here)})
    moved = arrived(parcel)
    # What the node's package has not either keeps its name: the compiler says that it is missing.
    assert moved.job == cpp(tmp_path, f"-I{here}/include", f"-L{there}/lib", "-DX=/no/path")
    assert why_not_compiled(moved) is None


def test_what_triton_runs_is_the_nodes_if_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
        (folder / "ptxas").write_text("an assembler")
    monkeypatch.setattr(parcel_module, "folders", lambda: {"triton": str(there)})
    variables = (("CUDA_HOME", str(there)), ("TRITON_PTXAS_PATH", str(there / "ptxas")), ("X", "1"))
    parcel = parcel_of(TritonCompileJob("k", "k", "", variables, 1.0))
    shutil.rmtree(there)
    monkeypatch.setattr(places, "folders", lambda: {"triton": str(here)})
    moved = arrived(parcel)
    assert isinstance(moved.job, TritonCompileJob)
    assert dict(moved.job.environment) == {"TRITON_PTXAS_PATH": str(here / "ptxas"), "X": "1"}
    assert why_not_compiled(moved) is None
    (here / "ptxas").write_text("another one")
    parcel_module._digest.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert str(why_not_compiled(moved)).startswith("TRITON_PTXAS_PATH is ")
    (here / "ptxas").unlink()
    assert "does not exist there" in str(why_not_compiled(replace(moved, facts={})))


def test_jobs_that_need_the_same_are_refused_by_the_same(tmp_path: Path) -> None:
    first, second = parcel_of(cpp(tmp_path, "-O1")), parcel_of(cpp(tmp_path, "-O2"))
    assert first.needs == second.needs
    assert first.needs != parcel_of(cpp(tmp_path, f"-I{tmp_path}")).needs
    assert first.needs != parcel_of(cpp(tmp_path, "-march=native")).needs


def test_inductors_folder_is_the_senders_where_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, usable in ((tmp_path / "new", True), (tmp_path / "file" / "new", False)):
        variables = (("TORCHINDUCTOR_CACHE_DIR", str(folder)),)
        sent = addressed(TritonCompileJob("k", "k", "", variables, 1.0), tmp_path / "job")
        assert isinstance(sent, TritonCompileJob)
        assert sent.environment[0][1] == (str(folder) if usable else f"{tmp_path}/job-inductor")


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
    sent = replace(cpp(here), sources=tuple(replace(SOURCE, key=key) for key in "abc"))
    taken = unpacked(sent, delivery)
    assert [each.library for each in taken] == [str(here / "unit.so")] * 2 + [None]
    assert (here / "unit.so").read_bytes() == b"library"


@pytest.mark.parametrize(
    ("compiled", "why"),
    [
        ((), r"answers for \[\], not for \['key'\]"),
        ((Compiled("other", "ok"),), "answers for"),
    ],
)
def test_what_a_node_answers_is_about_the_jobs_kernels(
    tmp_path: Path, compiled: tuple[Compiled, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        unpacked(cpp(tmp_path), Delivery(compiled, {}, "n"))
