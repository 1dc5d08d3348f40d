"""What a measurement takes along: each file once by its content, at the node's own paths."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.kernels.call import (
    BufferRef,
    CppKernel,
    ExternKernel,
    Kernel,
    ModuleKernel,
    OpKernel,
    RequestKernel,
    SequenceKernel,
    SequenceStep,
)
from inductor_plugin.worker.bench_farm.parcel import Packer, addressed
from inductor_plugin.worker.jobs import BenchCandidate, FinalJob, Sampling, ScreenJob
from tests.support.candidates.operands import tensor

ONCE = Sampling(1, 1, 0.1, 1.0, cold_cache=False)
C = tensor(4, 4)


def candidate(kernel: Kernel, *inputs: Any) -> BenchCandidate:
    return BenchCandidate("kernel", kernel, inputs, C, 1.0)


def screen(kernel: Kernel, *inputs: Any, **more: Any) -> ScreenJob:
    return ScreenJob("problem", None, candidate(kernel, *inputs), ONCE, None, **more)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def library(tmp_path: Path) -> str:
    path = tmp_path / "here" / "kernel.so"
    path.parent.mkdir()
    path.write_bytes(b"machine code")
    return str(path)


def there(path: str, content: bytes, folder: Path) -> str:
    return str(folder / "files" / sha256(content) / Path(path).name)


def test_a_job_without_files_travels_as_it_is(tmp_path: Path) -> None:
    job = screen(ExternKernel("mm", (("alpha", 1),)), tensor(4, 4), tensor(4, 4))
    parcel = Packer().pack(job)
    assert parcel.digests() == ()
    assert addressed(parcel, tmp_path) == job


def test_a_library_is_sent_and_found_at_the_nodes_path(library: str, tmp_path: Path) -> None:
    packer, node = Packer(), tmp_path / "node"
    parcel = packer.pack(screen(CppKernel("gemm", library, (4,))))
    assert parcel.digests() == (sha256(b"machine code"),)
    assert packer.content(parcel.digests()[0]) == b"machine code"
    job = addressed(parcel, node)
    assert isinstance(job, ScreenJob)
    assert job.candidate.kernel == CppKernel("gemm", there(library, b"machine code", node), (4,))


def test_a_cutlass_library_is_named_in_an_argument(library: str, tmp_path: Path) -> None:
    kernel = OpKernel("ns::mm", (f"symbol@{library}", 1, "text"), ("module",))
    job = addressed(Packer().pack(screen(kernel)), tmp_path)
    assert isinstance(job, ScreenJob)
    own = f"symbol@{there(library, b'machine code', tmp_path)}"
    assert job.candidate.kernel == replace(kernel, args=(own, 1, "text"))


def test_weights_in_files_travel_for_library_candidate_scratch_and_ends(tmp_path: Path) -> None:
    paths: list[str] = []
    for name in ("weight", "packed", "scratch", "end"):
        (tmp_path / name).write_bytes(name.encode())
        paths.append(str(tmp_path / name))
    specs = [tensor(4, 4, file=path) for path in paths]
    step = SequenceStep(ExternKernel("mm"), (BufferRef(0),), BufferRef(1))
    job = screen(
        SequenceKernel((step,), (specs[2],)),
        specs[1],
        ends=(screen(ExternKernel("mm"), specs[3]),),
    )
    job = replace(job, library=candidate(ExternKernel("mm"), specs[0]))
    parcel, node = Packer().pack(job), tmp_path / "node"
    assert set(parcel.files) == set(paths)
    sent = addressed(parcel, node)
    assert isinstance(sent, ScreenJob)
    assert isinstance(sent.candidate.kernel, SequenceKernel)
    assert sent.library is not None
    places = [
        sent.library.inputs[0].file,
        sent.candidate.inputs[0].file,
        sent.candidate.kernel.scratch[0].file,
        sent.ends[0].candidate.inputs[0].file,
    ]
    assert places == [there(path, Path(path).name.encode(), node) for path in paths]


def test_equal_contents_are_one_and_a_changed_file_is_another(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    first.write_bytes(b"same")
    second.write_bytes(b"same")
    packer = Packer()
    job = FinalJob(
        "problem",
        tuple(candidate(ExternKernel("mm"), tensor(4, 4, file=str(p))) for p in (first, second)),
        1,
        ONCE,
    )
    assert packer.pack(job).digests() == (sha256(b"same"),)
    second.unlink()
    second.write_bytes(b"other")
    assert packer.pack(job).digests() == (sha256(b"same"), sha256(b"other"))
    assert packer.content(sha256(b"other")) == b"other"


class Entry:
    """A kernel of the cache."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.files = folder, {name: sha256(b"cubin")}

    def path(self, name: str) -> Path:
        return self.folder / name


def test_a_triton_kernel_takes_module_and_binaries_along(tmp_path: Path) -> None:
    module = tmp_path / "cabc.py"
    module.write_bytes(b"def kernel(): ...")
    (tmp_path / "HASH--k.cubin").write_bytes(b"cubin")
    variables = (
        ("CUDA_HOME", "/nowhere"),
        ("OTHER", "1"),
        ("TORCHINDUCTOR_CACHE_DIR", "/here/inductor"),
        ("TRITON_CACHE_DIR", "/here/triton"),
        ("TRITON_PTXAS_PATH", str(module)),  # there, too
    )
    kernel = RequestKernel(b"pickled", variables, str(module), "digest")
    cached: Any = {"digest": Entry(tmp_path, "HASH--k.cubin")}.get
    packer, node = Packer(cached), tmp_path / "node"
    parcel = packer.pack(screen(kernel))
    assert parcel.kernels == {"HASH--k.cubin": sha256(b"cubin")}
    assert packer.content(sha256(b"cubin")) == b"cubin"
    job = addressed(parcel, node)
    assert isinstance(job, ScreenJob)
    own = job.candidate.kernel
    assert isinstance(own, RequestKernel)
    assert own.module == there(str(module), b"def kernel(): ...", node)
    assert dict(own.environment) == {
        "OTHER": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(node / "inductor"),
        "TRITON_CACHE_DIR": str(node / "triton"),
        "TRITON_PTXAS_PATH": str(module),
    }


def test_a_generated_module_finds_tritons_folders_of_the_node(tmp_path: Path) -> None:
    part = ModuleKernel("source", (("TRITON_CACHE_DIR", "/here/triton"),))
    job = addressed(
        Packer().pack(screen(SequenceKernel((SequenceStep(part, (BufferRef(0),)),)))), tmp_path
    )
    assert isinstance(job, ScreenJob)
    assert isinstance(job.candidate.kernel, SequenceKernel)
    own = job.candidate.kernel.parts[0].kernel
    assert own == ModuleKernel("source", (("TRITON_CACHE_DIR", str(tmp_path / "triton")),))


def test_a_file_that_is_gone_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        Packer().pack(screen(CppKernel("gemm", str(tmp_path / "gone"))))


def test_a_triton_kernel_that_has_left_the_cache_is_compiled_there(tmp_path: Path) -> None:
    job = screen(RequestKernel(b"pickled", (), "", "digest"))
    parcel = Packer().pack(job)
    assert (parcel.files, parcel.kernels) == ({}, {})
    assert addressed(parcel, tmp_path) == job


def test_finals_take_the_files_of_their_library_kernel_along(library: str, tmp_path: Path) -> None:
    other = candidate(CppKernel("gemm", library, (4,)))
    job = FinalJob("problem", (candidate(ExternKernel("mm")),), 1, ONCE, library=other)
    sent = addressed(Packer().pack(job), tmp_path / "node")
    assert sent.library is not None
    own = there(library, b"machine code", tmp_path / "node")
    assert sent.library.kernel == CppKernel("gemm", own, (4,))
