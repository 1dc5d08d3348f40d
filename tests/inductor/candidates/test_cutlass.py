"""CUTLASS kernels as choices of Inductor: offered, chosen, called, on a GPU that is not there."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import open_store
from inductor_plugin.config import process_environment
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.kernels.nvcc import NoToolkit, find
from inductor_plugin.ops import gemm, gemm_abi, launch
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import CppBuild
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.jobs import BenchCandidate, WorkerSettings
from tests.support.fakes.tasks import task
from tests.support.fakes.waiting import until
from tests.support.lowering import Arg, Lab

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

ATEN: Any = torch
BACKENDS = "ATEN,CUTLASS"
FP8 = torch.float8_e4m3fn


def cutlass_first(candidate: BenchCandidate) -> float:
    """Say that CUTLASS kernels are ten times faster than all others."""
    return 1.0 if isinstance(candidate.kernel, OpKernel) else 10.0


@pytest.fixture
def lab(cache_dir: Path) -> Iterator[Lab]:
    with Lab(cutlass_first, cache_dir).open() as opened:
        yield opened


def mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def calls(code: str) -> list[str]:
    """Return the calls of CUTLASS operators in generated code."""
    return re.findall(r"torch\.ops\.inductor_plugin\.(cutlass_\w+\.out\(.*\))", code)


def test_a_product_calls_the_kernel_it_was_built_as(lab: Lab) -> None:
    code = lab.lower(mm, Arg((256, 128)), Arg((128, 512)), gemm_backends=BACKENDS)
    (call,) = calls(code)
    entries = [entry for entry in lab.entries("template") if entry.name.startswith("cutlass::")]
    assert 4 <= len(entries) <= 16
    builds = [entry.build for entry in entries]
    assert all(isinstance(build, CppBuild) and build.language == "cuda" for build in builds)
    digests = {build.key.digest for build in builds if isinstance(build, CppBuild)}
    match = re.fullmatch(
        r"cutlass_mm\.out\(\w+, \w+, '(cutlass_sm90_\w+)@(\w+)', 'tt', 1, 0, 1, out=buf0\)", call
    )
    assert match is not None, call
    assert match[2] in digests
    assert "bf16_bf16_f32_bf16_tt" in match[1]


def test_a_call_is_that_of_a_call_site(lab: Lab) -> None:
    def chain(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return (torch.mm(torch.mm(a, b), c),)

    lab.lower(chain, Arg((256, 128)), Arg((128, 512)), Arg((512, 512)), gemm_backends=BACKENDS)
    (code,) = lab.written
    sites = re.findall(
        r"^(launch_buf\d) = inductor_plugin\.ops\.sites\.site"
        r"\('inductor_plugin::cutlass_mm\.out', \('cutlass_\w+@\w{64}', 'tt', 1, 0, 1\)\)$",
        code,
        re.M,
    )
    assert sites == ["launch_buf0", "launch_buf1"]
    assert code.index("import inductor_plugin.ops.sites") < code.index("launch_buf0 = ")
    assert re.findall(r"^ *(launch_buf\d\(.*\))$", code, re.M) == [
        "launch_buf0(a_1, b_1, None, out=buf0)",
        "launch_buf1(buf0, c_1, None, out=buf1)",
    ]


@pytest.mark.parametrize(
    ("function", "arguments", "pattern"),
    [
        (
            lambda a, b: (torch.mm(a, b.t()),),
            (Arg((256, 128)), Arg((512, 128))),
            r"cutlass_mm\.out\(\w+, reinterpret_tensor\(.*'tn', .*out=buf0\)",
        ),
        (
            lambda c, a, b: (torch.addmm(c, a, b, alpha=0.5, beta=2),),
            (Arg((512,)), Arg((256, 128)), Arg((128, 512))),
            r"cutlass_addmm\.out\(.*'tt', 1, 0, 1, 'row', 0\.5, 2\.0, out=buf0\)",
        ),
        (
            lambda a, b: (torch.bmm(a, b),),
            (Arg((4, 256, 128)), Arg((4, 128, 512))),
            r"cutlass_mm\.out\(\w+, \w+, .*out=buf0\)",
        ),
        (
            lambda c, a, b: (torch.baddbmm(c, a, b),),
            (Arg((4, 256, 512)), Arg((4, 256, 128)), Arg((4, 128, 512))),
            r"cutlass_addmm\.out\(.*'full', 1\.0, 1\.0, out=buf0\)",
        ),
        (
            lambda a, b: (ATEN._int_mm(a, b.t()),),
            (Arg((256, 128), torch.int8), Arg((512, 128), torch.int8)),
            r"cutlass_mm\.out\(.*s8_s8_s32_s32_tn.*out=buf0\)",
        ),
        (
            lambda a, b, x, y: (ATEN._scaled_mm(a, b.t(), x, y, out_dtype=torch.bfloat16),),
            (
                Arg((256, 128), FP8),
                Arg((512, 128), FP8),
                Arg((256, 1), torch.float32),
                Arg((1, 512), torch.float32),
            ),
            r"cutlass_scaled_mm\.out\(.*scale_rowwise.*out=buf0\)",
        ),
    ],
    ids=["transposed", "bias", "batch", "batch_bias", "int8", "fp8_rowwise"],
)
def test_each_operator_has_a_kernel(
    lab: Lab, function: Any, arguments: tuple[Arg, ...], pattern: str
) -> None:
    (call,) = calls(lab.lower(function, *arguments, gemm_backends=BACKENDS))
    assert re.fullmatch(pattern, call), call


def test_a_size_known_at_run_time_keeps_the_kernel(lab: Lab) -> None:
    code = lab.lower_dynamic(torch.mm, Arg((256, 128)), Arg((128, 512)), gemm_backends=BACKENDS)
    (call,) = calls(code)
    assert "'tt', 1, 0, 1, out=buf0" in call


def test_what_cutlass_refuses_is_said(lab: Lab) -> None:
    single = Arg((64, 64), torch.float32)
    lab.lower(mm, single, single, gemm_backends="ATEN,TRITON,CUTLASS")
    assert "tf32" in lab.record()["rejected"]["cutlass"].lower()


def test_without_a_compiler_the_reason_is_said(lab: Lab) -> None:
    code = lab.lower(
        mm,
        Arg((256, 128)),
        Arg((128, 512)),
        gemm_backends="ATEN,TRITON,CUTLASS",
        nvcc="/nowhere/nvcc",
    )
    assert calls(code) == []
    assert "/nowhere/nvcc" in lab.record()["rejected"]["cutlass"]


def test_who_does_not_want_cutlass_gets_none(lab: Lab) -> None:
    code = lab.lower(mm, Arg((256, 128)), Arg((128, 512)), gemm_backends="ATEN,TRITON")
    assert calls(code) == []
    assert "without CUTLASS" in lab.record()["rejected"]["cutlass"]


@pytest.mark.slow
@pytest.mark.skipif(isinstance(find("", process_environment()), NoToolkit), reason="needs nvcc")
def test_what_is_built_is_what_the_call_finds(lab: Lab, tmp_path: Path) -> None:
    code = lab.lower(mm, Arg((256, 128)), Arg((128, 512)), gemm_backends=BACKENDS)
    (call,) = calls(code)
    entries = [entry for entry in lab.entries("template") if entry.name.startswith("cutlass::")]
    named = re.search(r"'(\w+@\w+)'", call)
    assert named is not None
    built = [(entry, entry.build) for entry in entries if isinstance(entry.build, CppBuild)]
    chosen = [entry for entry, build in built if build.key.digest in named[1]][:1]
    more = [entry for entry, build in built if build.key.digest not in named[1]][:1]
    store = open_store(tmp_path / "kernels")
    settings = WorkerSettings(sys_path=tuple(sys.path), kind="compile")
    pool = CompilePool(1, settings, memory_bytes_per_job=0)
    builder = Builder(store, pool, Counters(), SpanTrace(), 500)
    fresh = [replace(entry, ready=False, outcome=None) for entry in (*chosen, *more)]
    try:
        for competitor in fresh:
            builder.add(task([competitor]), competitor, lambda: None)
        builder.flush()
        until(lambda: all(entry.ready or entry.outcome for entry in fresh), 550)
    finally:
        pool.close()
    assert [entry.outcome for entry in fresh] == [None, None]
    launch.add_kernel_folder(tmp_path / "kernels")
    function = launch.find_kernel(gemm.PRODUCTS, named[1])
    assert function is not None
    sizes = {"m": 256, "n": 512, "k": 128, "lead_a": 128, "lead_b": 512, "lead_d": 512}
    assert gemm_abi.can_implement(function, gemm_abi.new_call(**sizes, sm_count=132)) is None
    assert gemm_abi.workspace_bytes(function, gemm_abi.new_call(**sizes, sm_count=132)) == 0
    odd = {**sizes, "k": 127, "lead_a": 127}
    reason = gemm_abi.can_implement(function, gemm_abi.new_call(**odd, sm_count=132))
    assert reason is not None
    assert function.symbol in reason
