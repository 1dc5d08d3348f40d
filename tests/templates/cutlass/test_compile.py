"""Kernels compiled by nvcc, loaded and asked on a machine that may have no GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inductor_plugin.errors import KernelError
from inductor_plugin.kernels import nvcc
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.kernels.cuobjdump import usage
from inductor_plugin.kernels.nvcc import Toolkit
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.ops import gemm, gemm_abi, launch
from inductor_plugin.ops.abi import KernelFunction
from inductor_plugin.ops.gemm_abi import GemmCall
from inductor_plugin.problem import Operand
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.source import source
from inductor_plugin.worker.child import compile as child_compile
from inductor_plugin.worker.jobs import Compiled, CppCompileJob, Event
from tests.support.cutlass.toolkit import load_runtime

pytestmark = pytest.mark.slow

BF16 = GemmConfig(
    "sm_90a", (128, 128, 64), (2, 1, 1), "pingpong", "bf16", "bf16", "bf16", "bf16", "f32"
)
FP8 = replace(BF16, tile=(128, 128, 128), a="e4m3", b="e4m3", align_a=16, align_b=16)
SM80 = replace(BF16, arch="sm_80", schedule="multistage", cluster=(1, 1, 1), tile=(128, 128, 32))
M, N, K = 4096, 2048, 1024

HOPPER = {
    "plain": BF16,
    "stream_k": replace(BF16, schedule="stream_k", layout_b="row"),
    "row": replace(BF16, bias="row"),
    "fp8": replace(FP8, scale="rowwise", bias="row"),
}
EPILOGUES = {
    "column": replace(BF16, schedule="cooperative", cluster=(1, 1, 1), bias="column"),
    "odd": replace(BF16, tile=(64, 128, 64), align_d=1, layout_a="column"),
    "fp8": replace(
        FP8,
        schedule="cooperative",
        b="e5m2",
        scale="tensor",
        bias="full",
        fast_accumulation=False,
    ),
    "int8": replace(FP8, a="s8", b="s8", c="s32", d="s32", accumulator="s32", align_c=4, align_d=4),
}
FALLBACK = {
    "plain": replace(SM80, stages=4),
    "odd": replace(SM80, stages=2, align_a=1, align_b=1, align_c=1, align_d=1, layout_b="row"),
    "row": replace(
        SM80, stages=3, a="f16", b="f16", c="f16", d="f16", bias="row", align_a=4, align_b=4
    ),
    "tf32": replace(
        SM80,
        tile=(64, 64, 16),
        stages=4,
        a="tf32",
        b="tf32",
        c="f32",
        d="f32",
        align_a=4,
        align_b=4,
        align_c=4,
        align_d=4,
        bias="full",
    ),
}


def compiled(
    toolkit: Toolkit, sources: Sequence[CppSource], folder: Path, arch: str = "sm_90a"
) -> list[Compiled]:
    job = CppCompileJob(tuple(sources), nvcc.command(toolkit, arch), str(folder), 600)

    def ignore(event: Event) -> None:
        del event

    return child_compile.run(job, ignore)


def as_source(config: GemmConfig, text: str = "") -> CppSource:
    text = text or source(config)
    return CppSource(hashlib.sha256(text.encode()).hexdigest(), text, config.name)


def loaded(
    toolkit: Toolkit, configs: dict[str, GemmConfig], folder: Path, arch: str = "sm_90a"
) -> dict[str, KernelFunction[GemmCall]]:
    """Compile kernels as one batch and load them."""
    outcomes = compiled(toolkit, [as_source(config) for config in configs.values()], folder, arch)
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [("ok", "")] * len(configs)
    assert len({outcome.library for outcome in outcomes}) == 1
    load_runtime(toolkit)
    return {
        name: gemm_abi.load(str(outcome.library), outcome.symbol)
        for name, outcome in zip(configs, outcomes, strict=True)
    }


@pytest.fixture(name="hopper", scope="module")
def hopper_kernels(
    toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, KernelFunction[GemmCall]]:
    return loaded(toolkit, HOPPER, tmp_path_factory.mktemp("hopper"))


@pytest.fixture(name="fallback", scope="module")
def fallback_kernels(
    toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, KernelFunction[GemmCall]]:
    return loaded(toolkit, FALLBACK, tmp_path_factory.mktemp("fallback"))


def call(config: GemmConfig, m: int = M, n: int = N, k: int = K, **values: int) -> GemmCall:
    """Return a call on dense operands."""
    leads = {
        "lead_a": k if config.layout_a == "row" else m,
        "lead_b": n if config.layout_b == "row" else k,
        "lead_c": n,
        "lead_d": n,
    }
    return gemm_abi.new_call(m=m, n=n, k=k, **{"sm_count": 132, **leads, **values})


def refusal(kernel: KernelFunction[GemmCall], gemm_call: GemmCall) -> str:
    return gemm_abi.can_implement(kernel, gemm_call) or ""


def spilled(kernel: KernelFunction[GemmCall]) -> dict[str, int]:
    """Return bytes of stack per thread of each kernel in a library, by its mangled name."""
    usages = usage(Path(kernel.library))
    assert not isinstance(usages, str), usages
    assert all(usage_row.registers > 32 for usage_row in usages)
    return {usage_row.kernel: usage_row.stack_bytes for usage_row in usages}


def test_hopper_kernels_take_what_fits_and_nothing_else(
    hopper: dict[str, KernelFunction[GemmCall]],
) -> None:
    for name, config in HOPPER.items():
        kernel = hopper[name]
        assert refusal(kernel, call(config)) == ""
        shared = {"batch": 3, "batch_a": M * K, "batch_b": 0, "batch_d": M * N}
        assert refusal(kernel, call(config, **shared)) == ""
        assert "an extent" in refusal(kernel, call(config, k=K - 1, lead_a=K, lead_b=N))
        assert "an extent" in refusal(kernel, call(config, m=0))
        assert "a stride" in refusal(kernel, call(config, lead_a=K + 1))
        assert "a stride" in refusal(kernel, call(config, lead_a=K // 2))
        assert "a stride" in refusal(kernel, call(config, batch=2, batch_d=0))
        assert "a pointer" in refusal(kernel, call(config, a=8))
        assert "a pointer" in refusal(kernel, call(config, d=264))


def test_a_single_row_may_have_any_leading_stride(
    hopper: dict[str, KernelFunction[GemmCall]],
) -> None:
    assert refusal(hopper["plain"], call(BF16, m=1, lead_a=3, lead_d=5)) == ""


def test_only_stream_k_cuts_k_and_needs_a_workspace(
    hopper: dict[str, KernelFunction[GemmCall]],
) -> None:
    plain, stream = HOPPER["plain"], HOPPER["stream_k"]
    assert gemm_abi.workspace_bytes(hopper["plain"], call(plain)) == 0
    assert "split_k" in refusal(hopper["plain"], call(plain, split_k=4))
    cut = gemm_abi.workspace_bytes(hopper["stream_k"], call(stream, split_k=4))
    # Partial sums of float32, at least one D.
    assert cut >= M * N * 4
    assert gemm_abi.workspace_bytes(hopper["stream_k"], call(stream)) < cut
    small = call(stream, m=128, n=128, k=1 << 14)
    assert gemm_abi.workspace_bytes(hopper["stream_k"], small) > 0
    batched = call(stream, batch=2, batch_a=M * K, batch_b=K * N, batch_d=M * N, split_k=4)
    assert "split_k" in refusal(hopper["stream_k"], batched)


def test_scales_and_bias_must_be_there_to_run(hopper: dict[str, KernelFunction[GemmCall]]) -> None:
    gemm_call = call(HOPPER["fp8"], a=256, b=256, d=256, c=256, scale_a=256)
    with pytest.raises(KernelError, match="a pointer is missing"):
        gemm_abi.run(hopper["fp8"], gemm_call, 0)
    gemm_call.alpha = 0.5
    assert "alpha" in refusal(hopper["fp8"], gemm_call)


def test_a_missing_workspace_is_refused(hopper: dict[str, KernelFunction[GemmCall]]) -> None:
    gemm_call = call(HOPPER["stream_k"], a=256, b=256, d=256, split_k=4)
    with pytest.raises(KernelError, match="the workspace is missing or too small"):
        gemm_abi.run(hopper["stream_k"], gemm_call, 0)


def test_hopper_kernels_do_not_spill(hopper: dict[str, KernelFunction[GemmCall]]) -> None:
    spills = spilled(hopper["plain"])
    assert set(spills.values()) == {0}
    for config in HOPPER.values():
        assert any(f"{config.name}_kernel" in kernel for kernel in spills)


def test_a_library_needs_the_runtime_and_no_driver(
    hopper: dict[str, KernelFunction[GemmCall]], toolkit: Toolkit
) -> None:
    content = Path(hopper["plain"].library).read_bytes()
    assert Path(toolkit.cudart).name.encode() in content
    assert b"libcuda.so" not in content
    assert len(content) < 2 << 20


def test_fallback_kernels_take_what_tma_cannot(
    fallback: dict[str, KernelFunction[GemmCall]],
) -> None:
    for name, config in FALLBACK.items():
        assert refusal(fallback[name], call(config)) == ""
        assert gemm_abi.workspace_bytes(fallback[name], call(config)) == 0
        assert gemm_abi.workspace_bytes(fallback[name], call(config, split_k=2)) > 0
        shared = {"batch": 3, "batch_a": M * K, "batch_b": 0, "batch_d": M * N, "batch_c": 0}
        assert refusal(fallback[name], call(config, **shared)) == ""
    assert refusal(fallback["odd"], call(FALLBACK["odd"], 33, 77, 55)) == ""
    assert "an extent" in refusal(fallback["plain"], call(FALLBACK["plain"], 33, 77, 55))
    assert refusal(fallback["row"], call(FALLBACK["row"], k=1020)) == ""
    assert "a pointer" in refusal(fallback["row"], call(FALLBACK["row"], c=8))
    assert set(spilled(fallback["odd"]).values()) == {0}


def test_every_epilogue_and_type_compiles(toolkit: Toolkit, tmp_path: Path) -> None:
    kernels = loaded(toolkit, EPILOGUES, tmp_path)
    for name, config in EPILOGUES.items():
        assert refusal(kernels[name], call(config)) == ""
    assert refusal(kernels["odd"], call(EPILOGUES["odd"], n=N - 1)) == ""
    assert "a pointer" in refusal(kernels["column"], call(EPILOGUES["column"], c=1))
    assert "a stride" in refusal(kernels["fp8"], call(EPILOGUES["fp8"], lead_c=N + 1))
    half = call(EPILOGUES["int8"])
    half.alpha = 0.5
    assert "alpha" in refusal(kernels["int8"], half)
    assert set(spilled(kernels["odd"]).values()) == {0}


def test_grouped_kernels_compile(
    toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(BF16, grouped=True)
    kernel = loaded(toolkit, {"grouped": config}, tmp_path)["grouped"]
    gemm_call = call(config, batch=8, batch_b=N * K)
    assert refusal(kernel, gemm_call) == ""
    # The arrays of eight groups, and a pair of tensor maps for each multiprocessor.
    few = gemm_abi.workspace_bytes(kernel, gemm_call)
    assert 132 * 2 * 128 <= few < 1 << 20
    gemm_call.batch = 1000
    assert gemm_abi.workspace_bytes(kernel, gemm_call) > few
    assert "a stride" in refusal(kernel, call(config, batch=8, batch_b=N * K + 1))
    assert "sm_count" in refusal(kernel, call(config, batch=8, batch_b=N * K, sm_count=0))
    gemm_call = call(config, batch=8, batch_b=N * K, a=256, b=256, d=256)
    with pytest.raises(KernelError, match="a pointer is missing"):
        gemm_abi.run(kernel, gemm_call, 0)
    gemm_call.offsets, gemm_call.workspace, gemm_call.workspace_bytes = 256, 256, few - 1
    with pytest.raises(KernelError, match=f"too small .*: {few - 1} bytes of {few}"):
        gemm_abi.run(kernel, gemm_call, 0)
    used = usage(Path(kernel.library))
    assert not isinstance(used, str), used
    assert len(used) == 2  # the product, and what writes the arrays CUTLASS reads of each group
    assert {compiled_kernel.stack_bytes for compiled_kernel in used} == {0}

    def processors(device: torch.device) -> int:
        return 132

    # What generated code allocates is what the kernel asks for, by the operands' sizes and strides.
    monkeypatch.setattr(launch, "multiprocessors_now", processors)
    a = Operand((M, K), (K, 1), "bfloat16", "cuda")
    b = Operand((8, K, N), (K * N, 1, K), "bfloat16", "cuda")
    ends, d = Operand((8,), (1,), "int32", "cuda"), Operand((M, N), (N, 1), "bfloat16", "cuda")
    name = f"{kernel.symbol}@{kernel.library}"
    op = OpKernel("inductor_plugin::cutlass_grouped_mm.out", (name, "tn", 1, 0, 1))
    assert gemm.workspace_needed(op, (a, b, ends), d, torch.device("cuda:0")) == few


def test_blackwell_kernels_compile(toolkit: Toolkit, tmp_path: Path) -> None:
    if toolkit.release < (12, 8):
        pytest.skip(f"sm_100a needs CUDA 12.8, this is {toolkit.version}")
    config = replace(BF16, arch="sm_100a", schedule="two_sm", tile=(256, 128, 64), bias="row")
    kernels = loaded(toolkit, {"blackwell": config}, tmp_path, "sm_100a")
    assert refusal(kernels["blackwell"], call(config)) == ""
    assert "a stride" in refusal(kernels["blackwell"], call(config, lead_a=K + 1))


def test_a_kernel_that_does_not_compile_costs_itself_alone(
    toolkit: Toolkit, tmp_path: Path
) -> None:
    good, bad = FALLBACK["plain"], FALLBACK["odd"]
    # Four stages copy by cp.async, which cannot copy the two bytes this kernel's rows allow.
    text = source(bad).replace(
        "    2,\n    cutlass::arch::OpMultiplyAdd", "    4,\n    cutlass::arch::OpMultiplyAdd"
    )
    assert text != source(bad)
    fine, broken = compiled(toolkit, [as_source(good), as_source(bad, text)], tmp_path)
    assert fine.status == "ok"
    assert broken.status == "compile_failed"
    assert "error" in broken.reason
    assert "Size is not supported" in broken.reason
    assert len(broken.reason.splitlines()) <= 12
    load_runtime(toolkit)
    kernel = gemm_abi.load(str(fine.library), fine.symbol)
    assert refusal(kernel, call(good)) == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="here a kernel would start")
@pytest.mark.parametrize("family", ["hopper", "fallback"])
def test_a_kernel_that_does_not_start_says_why(family: str, request: pytest.FixtureRequest) -> None:
    """CUTLASS reads the runtime's reason away; here there is no device, or no driver."""
    configs = HOPPER if family == "hopper" else FALLBACK
    kernels: dict[str, KernelFunction[GemmCall]] = request.getfixturevalue(family)
    for name, kernel in kernels.items():
        config = configs[name]
        addresses = dict.fromkeys(("a", "b", "c", "d", "scale_a", "scale_b", "workspace"), 1 << 20)
        size = {"workspace_bytes": 1 << 40} if config.schedule == "stream_k" else {}
        asked = call(config, **addresses, **size)
        with pytest.raises(KernelError, match="did not start") as caught:
            gemm_abi.run(kernel, asked, 0)
        assert caught.value.cuda_error, name
