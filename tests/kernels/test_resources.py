from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inductor_plugin.cache import Resources
from inductor_plugin.kernels.cuobjdump import (
    TritonLaunch,
    cuobjdump,
    of_unit,
    parse_ptxas,
    parse_triton,
    parse_usage,
    triton_usage,
    usage,
)
from inductor_plugin.kernels.resources import KernelResources, why_not, why_not_on
from inductor_plugin.problem.target import target

CUBIN = """
Resource usage:
 Common:
  GLOBAL:0
 Function _Z2spILi64EEvPfPi:
  REG:32 STACK:6272 SHARED:0 LOCAL:0 CONSTANT[0]:544 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z1kPf:
  REG:10 STACK:0 SHARED:1536 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
LIBRARY = """
Fatbin elf code:
================
arch = sm_89
code version = [1,8]
host = linux
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:0

Fatbin elf code:
================
arch = sm_90a
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function _Z1kPf:
  REG:10 STACK:0 SHARED:1536 LOCAL:8 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin ptx code:
================
arch = sm_90a
compressed
"""
PTXAS = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z2spILi64EEvPfPi' for 'sm_90a'
ptxas info    : Function properties for _Z2spILi64EEvPfPi
    6272 bytes stack frame, 15932 bytes spill stores, 16308 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 6272 bytes cumulative stack size
ptxas info    : Compile time = 1212.317 ms
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90a'
ptxas info    : Function properties for _Z1kPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 512 bytes smem
"""
KERNEL = KernelResources("k", "sm_90a", 168, threads=384, dynamic_shared_bytes=200 << 10)


def test_the_kernels_of_a_cubin_are_read():
    spilling, plain = parse_usage(CUBIN, "sm_90a")
    assert (spilling.kernel, spilling.registers) == ("_Z2spILi64EEvPfPi", 32)
    assert (spilling.stack_bytes, spilling.spilled_bytes) == (6272, 6272)
    assert (plain.registers, plain.static_shared_bytes, plain.arch) == (10, 512, "sm_90a")


def test_what_cuda_reserves_is_not_the_kernels():
    older = CUBIN.replace("SHARED:1536", "SHARED:512")
    assert parse_usage(older, "sm_89")[1].static_shared_bytes == 512
    assert parse_usage(CUBIN, "sm_89")[1].static_shared_bytes == 1536


def test_a_library_names_its_architecture():
    (kernel,) = parse_usage(LIBRARY)
    assert kernel.arch == "sm_90a"
    assert (kernel.static_shared_bytes, kernel.stack_bytes) == (512, 8)


@pytest.mark.parametrize("text", ["", "cuobjdump info: no device code", "REG:12 SHARED:0"])
def test_other_text_holds_no_kernel(text: str):
    assert parse_usage(text) == ()
    assert parse_ptxas(text) == ()


def test_ptxas_tells_spills():
    spilling, plain = parse_ptxas(PTXAS)
    assert (spilling.spill_store_bytes, spilling.spill_load_bytes) == (15932, 16308)
    assert (spilling.spilled_bytes, spilling.arch) == (16308, "sm_90a")
    assert (plain.kernel, plain.registers, plain.static_shared_bytes) == ("_Z1kPf", 10, 512)
    assert plain.spilled_bytes == 0


def test_an_array_in_local_memory_is_no_spill_where_ptxas_says_so():
    array = replace(KERNEL, stack_bytes=4096, spill_store_bytes=0, spill_load_bytes=0)
    assert why_not_on(target("H100"), array) is None
    unknown = replace(KERNEL, stack_bytes=4096)
    assert why_not_on(target("H100"), unknown) == (
        "it uses local memory of 4096 bytes a thread; 64 are accepted"
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"dynamic_shared_bytes": 227 << 10}, None),
        ({"dynamic_shared_bytes": (227 << 10) + 1}, "232449 bytes of shared memory"),
        ({"static_shared_bytes": 28 << 10}, "233472 bytes of shared memory"),
        ({"threads": 1056}, "it has 1056 threads"),
        ({"threads": 512}, "512 threads of 168 registers"),
        ({"threads": 512, "registers": 128}, None),
        ({"threads": None, "registers": 255}, None),
        ({"spill_store_bytes": 64, "spill_load_bytes": 12}, None),
        ({"spill_store_bytes": 12, "spill_load_bytes": 68}, "it spills 68 bytes"),
    ],
)
def test_what_does_not_fit_says_why(change: dict[str, int], reason: str | None):
    said = why_not_on(target("H100"), replace(KERNEL, **change))  # type: ignore[arg-type]
    assert said is None if reason is None else reason in (said or "")


def test_what_fits_one_gpu_may_not_fit_another():
    assert why_not_on(target("H200"), KERNEL) is None
    assert "has 101376" in (why_not_on(target("L40S"), KERNEL) or "")
    spilling = replace(KERNEL, spill_store_bytes=100, spill_load_bytes=100)
    assert why_not_on(target("H100"), spilling, spill_limit_bytes=128) is None


def test_the_cache_keeps_registers_spills_and_shared_memory():
    kernel = replace(KERNEL, static_shared_bytes=48, spill_store_bytes=4, spill_load_bytes=8)
    assert kernel.stored() == Resources(
        registers=168, spills=8, shared_bytes=(200 << 10) + 48, threads=384
    )


UNIT = """
ptxas info    : Compiling entry function '_ZN7cutlass13device_kernelIN8unit_k_a1KEEEvNT_6ParamsE' for 'sm_90a'
ptxas info    : Function properties for _ZN7cutlass13device_kernelIN8unit_k_a1KEEEvNT_6ParamsE
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
ptxas info    : Compiling entry function '_ZN8unit_k_a6reduceEv' for 'sm_90a'
ptxas info    : Function properties for _ZN8unit_k_a6reduceEv
    80 bytes stack frame, 72 bytes spill stores, 76 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 80 bytes cumulative stack size
ptxas info    : Compiling entry function '_ZN9unit_k_ab1KEv' for 'sm_90a'
ptxas info    : Function properties for _ZN9unit_k_ab1KEv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 200 registers, used 0 barriers, 512 bytes smem
"""


def test_kernels_of_one_unit_are_told_apart_by_their_namespace():
    resources = of_unit(UNIT, ["unit_k_a", "unit_k_ab", "unit_gone"])
    assert resources == {
        "unit_k_a": Resources(registers=168, spills=76),
        "unit_k_ab": Resources(registers=200, spills=0),
    }
    assert of_unit(UNIT, [""]) == {"": Resources(registers=200, spills=76)}
    assert of_unit("", [""]) == {}


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (Resources(255, 64, 227 << 10, 256), None),
        (Resources(255, 65), "it spills 65 bytes a thread; 64 are accepted"),
        (Resources(32, 0, (227 << 10) + 1), "232449 bytes of shared memory"),
        (Resources(168, 0, 0, 512), "512 threads of 168 registers"),
        (Resources(), None),
    ],
)
def test_what_the_cache_keeps_is_enough_to_judge(known: Resources, reason: str | None):
    said = why_not(target("H100"), known)
    assert said is None if reason is None else reason in (said or "")
    assert why_not(None, known) is None
    assert why_not(target("H100"), None) is None


def test_tritons_metadata_is_read():
    facts = {
        "name": "mm",
        "target": {"backend": "cuda", "arch": 90, "warp_size": 32},
        "shared": 65536,
        "num_warps": 8,
        "num_stages": 3,
    }
    launch = parse_triton(json.dumps(facts))
    assert launch == TritonLaunch("mm", 90, 65536, 8, 3)
    kernel = launch.of(parse_usage(CUBIN, "sm_90")[1])
    assert (kernel.threads, kernel.shared_bytes) == (256, 65536 + 512)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "mm", "target": {"arch": "gfx942"}}'])
def test_other_metadata_is_an_error(text: str):
    with pytest.raises(ValueError, match="no metadata of a Triton kernel"):
        parse_triton(text)


def test_a_file_without_kernels_gives_a_reason(tmp_path: Path):
    tool = tmp_path / "cuobjdump"
    missing = usage(tmp_path / "x.cubin", tool=tool)
    assert isinstance(missing, str)
    assert "did not run" in missing
    tool.write_text("#!/bin/sh\necho 'File does not contain device code' >&2\nexit 255\n")
    tool.chmod(0o755)
    assert usage(tmp_path / "x.cubin", tool=tool) == (
        "x.cubin shows no kernels: File does not contain device code"
    )
    reason = triton_usage(tmp_path / "x.cubin", tool)
    assert isinstance(reason, str)
    assert "No such file" in reason
    tool.write_text("#!/bin/sh\nexit 0\n")
    assert usage(tmp_path / "x.cubin", tool=tool) == "x.cubin shows no kernels: no output"


def test_what_a_tool_says_before_it_fails_does_not_count(tmp_path: Path):
    tool, text = tmp_path / "cuobjdump", tmp_path / "text"
    text.write_text(CUBIN)
    for status in (0, 3):
        tool.write_text(f"#!/bin/sh\ncat {text}\nexit {status}\n")
        tool.chmod(0o755)
        kernels = usage(tmp_path / "x.cubin", "sm_90", tool)
        assert isinstance(kernels, str) is (status == 3)


def test_cuobjdump_beside_nvcc_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    toolkit, path = tmp_path / "toolkit", tmp_path / "path"
    for program in (toolkit / "nvcc", toolkit / "cuobjdump", path / "cuobjdump"):
        program.parent.mkdir(exist_ok=True)
        program.write_text("")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(path))
    assert cuobjdump() == path / "cuobjdump"
    (path / "nvcc").symlink_to(toolkit / "nvcc")
    assert cuobjdump() == toolkit / "cuobjdump"


def test_triton_brings_a_cuobjdump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("PATH", str(tmp_path))
    tool = cuobjdump()
    assert tool is not None
    assert tool.parts[-4:] == ("backends", "nvidia", "bin", "cuobjdump")


@pytest.mark.skipif(cuobjdump() is None, reason="needs cuobjdump")
def test_a_file_that_is_no_kernel_is_told_apart(tmp_path: Path):
    (tmp_path / "x.cubin").write_text("nothing")
    reason = usage(tmp_path / "x.cubin")
    assert isinstance(reason, str)
    assert "shows no kernels" in reason


@pytest.mark.skipif(
    torch.version.cuda is None or cuobjdump() is None, reason="needs Triton for CUDA and cuobjdump"
)
@pytest.mark.compat
@pytest.mark.parametrize("name", ["H100", "L40S"])
def test_a_kernel_of_tritons_is_read_whole(name: str, cache_dir: Path, inductor_cache: Path):
    from inductor_plugin.aot.fake_device import as_target
    from tests.support.lowering import Arg, Lab, library_last

    with as_target(name), Lab(library_last, cache_dir).open() as lab:
        lab.lower(lambda a, b: (torch.mm(a, b),), Arg((256, 128)), Arg((128, 512)))  # pyright: ignore
    cubins = list(inductor_cache.glob("triton/0/*/*.cubin"))
    assert cubins
    for cubin in cubins:
        kernel = triton_usage(cubin)
        assert isinstance(kernel, KernelResources), kernel
        assert 16 < kernel.registers <= 255
        assert kernel.threads in {64, 128, 256, 512}
        assert 0 < kernel.dynamic_shared_bytes <= target(name).shared_per_block
        assert kernel.static_shared_bytes == 0
        assert why_not_on(target(name), kernel) is None


@pytest.mark.skipif(
    shutil.which("nvcc") is None or cuobjdump() is None, reason="needs nvcc and cuobjdump"
)
def test_ptxas_and_cuobjdump_agree_on_a_kernel(tmp_path: Path):
    source = tmp_path / "k.cu"
    source.write_text(
        "__global__ void k(float* a) { __shared__ float s[128]; s[threadIdx.x] = a[threadIdx.x];"
        " __syncthreads(); a[threadIdx.x] = s[127 - threadIdx.x]; }"
    )
    for arch in ("sm_80", "sm_90a"):
        built = tmp_path / f"{arch}.cubin"
        done = subprocess.run(
            ["nvcc", f"-arch={arch}", "-cubin", "-Xptxas", "-v", source, "-o", built],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        (usage_of,) = parse_ptxas(done.stderr)
        read = usage(built, arch)
        assert not isinstance(read, str)
        assert replace(read[0], spill_store_bytes=0, spill_load_bytes=0) == usage_of
        assert usage_of.static_shared_bytes == 512
