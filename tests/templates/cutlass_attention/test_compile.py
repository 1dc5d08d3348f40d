"""Attention kernels compiled by nvcc, loaded and asked on a machine that may have no GPU."""

from __future__ import annotations

import hashlib
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.attention import cutlass, cutlass_abi
from inductor_plugin.attention.cutlass_abi import FmhaCall
from inductor_plugin.errors import KernelError
from inductor_plugin.kernels import nvcc, sass
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.kernels.cuobjdump import usage
from inductor_plugin.kernels.nvcc import Toolkit
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.ops.abi import KernelFunction
from inductor_plugin.problem.attention import attention_of
from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass_attention import source as attention_source
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from inductor_plugin.templates.cutlass_attention.fmha import configs
from inductor_plugin.worker.child import compile as child_compile
from inductor_plugin.worker.jobs import Compiled, CppCompileJob, Event
from tests.support.attention.problems import attention
from tests.support.cutlass.toolkit import load_runtime

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")

pytestmark = pytest.mark.slow


BATCH, HEADS, SEQ = 2, 16, 1000
"""`call` has as many queries, and one key more: no tile divides either."""


FORWARD = (
    *configs(attention_of(attention()), target("H100")),
    configs(attention_of(attention(dim=64)), target("H100"))[0],
)
NARROW = tuple(
    config
    for dim in (64, 128, 256)
    for config in configs(attention_of(attention(dim=dim, dtype="float8_e4m3fn")), target("H100"))
)
"""Operands of 8 bits."""
BACKWARD = tuple(
    configs(attention_of(attention(backward=True, dim=dim, dtype=dtype)), target("H100"))[0]
    for dim in (128, 64)
    for dtype in ("bfloat16", "float16")
)


@dataclass(frozen=True)
class Built:
    """A batch of kernels.

    Attributes:
        outcomes: Of each kernel, in the order of the configurations.
        functions: The loaded kernels.
        cpu_s: Seconds of processor time nvcc and its children took.
    """

    outcomes: tuple[Compiled, ...]
    functions: tuple[KernelFunction[FmhaCall], ...]
    cpu_s: float


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def built(toolkit: Toolkit, batch: Sequence[FmhaConfig], folder: Path) -> Built:
    """Compile kernels as one unit and load them."""
    texts = [attention_source.source(kernel) for kernel in batch]
    sources = tuple(
        CppSource(hashlib.sha256(text.encode()).hexdigest(), text, kernel.name)
        for text, kernel in zip(texts, batch, strict=True)
    )

    def ignore(event: Event) -> None:
        del event

    job = CppCompileJob(sources, nvcc.command(toolkit, "sm_90a"), str(folder), 1200)
    before = children_s()
    outcomes = child_compile.run(job, ignore)
    spent = children_s() - before
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [("ok", "")] * len(batch)
    assert len({outcome.library for outcome in outcomes}) == 1
    load_runtime(toolkit)
    functions = tuple(
        cutlass_abi.load(str(outcome.library), outcome.symbol) for outcome in outcomes
    )
    return Built(tuple(outcomes), functions, spent)


@pytest.fixture(name="unit_s", scope="module")
def seconds_of_a_small_unit(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Return the seconds of processor time in which nvcc reads CuTe and compiles next to nothing; the shorter of two."""
    folder = tmp_path_factory.mktemp("unit")
    (folder / "unit.cu").write_text(
        '#include <cute/tensor.hpp>\nextern "C" __global__ void unit(float* out) { out[0] = 1; }\n'
    )
    files = {"source": str(folder / "unit.cu"), "output": str(folder / "unit.so")}
    words = [word.format(**files) for word in nvcc.command(toolkit, "sm_90a")]
    seconds: list[float] = []
    for _ in range(2):
        before = children_s()
        subprocess.run(words, check=True, capture_output=True, timeout=600)
        seconds.append(children_s() - before)
    return min(seconds)


@pytest.fixture(name="forward", scope="module")
def forward_kernels(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built(toolkit, FORWARD, tmp_path_factory.mktemp("forward"))


@pytest.fixture(name="backward", scope="module")
def backward_kernels(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built(toolkit, BACKWARD, tmp_path_factory.mktemp("backward"))


def call(dim: int = 64, seq_q: int = SEQ, seq_k: int = SEQ + 1, **values: Any) -> FmhaCall:
    """Return a call on dense operands; ``values`` are fields that differ."""
    shared = values.get("heads_kv", HEADS)
    strides_q = (HEADS * seq_q * dim, seq_q * dim, dim)
    strides_k = (shared * seq_k * dim, seq_k * dim, dim)
    fmha_call = FmhaCall(
        batch=BATCH,
        heads=HEADS,
        heads_kv=HEADS,
        seq_q=seq_q,
        seq_k=seq_k,
        dim=dim,
        scale=0.125,
        window_left=-1,
        window_right=-1,
        sm_count=132,
    )
    for name in ("q", "out", "d_out", "dq"):
        setattr(fmha_call, f"stride_{name}", strides_q)
    for name in ("k", "v", "dk", "dv"):
        setattr(fmha_call, f"stride_{name}", strides_k)
    for name, value in values.items():
        setattr(fmha_call, name, value)
    return fmha_call


def refusal(kernel: KernelFunction[FmhaCall], fmha_call: FmhaCall) -> str:
    return cutlass_abi.can_implement(kernel, fmha_call) or ""


def check_common_refusals(kernel: KernelFunction[FmhaCall], most_dim: int) -> None:
    assert refusal(kernel, call(dim=most_dim)) == ""
    assert refusal(kernel, call(dim=most_dim - 8)) == ""
    assert refusal(kernel, call(seq_q=1, seq_k=7)) == ""
    assert refusal(kernel, call(heads_kv=2)) == ""
    for left, right, corner in ((-1, 0, 0), (-1, 0, 1), (127, 0, 1), (2**62, 2**62, 1)):
        window = {"window_left": left, "window_right": right, "bottom_right": corner}
        assert refusal(kernel, call(**window)) == ""
    assert "heads are larger" in refusal(kernel, call(dim=most_dim + 8))
    assert "no multiple of 16 bytes" in refusal(kernel, call(dim=60))
    assert "no multiple of those" in refusal(kernel, call(heads_kv=3))
    assert "an extent" in refusal(kernel, call(seq_q=0))
    assert "an extent" in refusal(kernel, call(batch=65536))
    assert "an extent" in refusal(kernel, call(seq_k=1 << 30, heads_kv=1))
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        assert "scale" in refusal(kernel, call(scale=scale))
    assert "sm_count" in refusal(kernel, call(sm_count=0))
    assert "a pointer" in refusal(kernel, call(k=8))
    row = 64 * SEQ
    assert "a stride" in refusal(kernel, call(stride_q=(HEADS * row, row, 68)))
    assert "a stride" in refusal(kernel, call(stride_q=(HEADS * row, row, 56)))
    assert "a stride" in refusal(kernel, call(stride_v=(0, row, 64)))
    assert "a stride" in refusal(kernel, call(stride_v=(1 << 31, row, 64)))
    assert refusal(kernel, call(batch=1, stride_v=(3, row, 64))) == ""


def test_forward_kernels_take_what_fits_and_nothing_else(forward: Built) -> None:
    for kernel, config in zip(forward.functions, FORWARD, strict=True):
        check_common_refusals(kernel, config.dim)
        assert "a stride" in refusal(kernel, call(stride_out=(64, 64, 65)))
        assert cutlass_abi.workspace_bytes(kernel, call(heads_kv=2)) == 0


@pytest.fixture(name="narrow", scope="module")
def narrow_kernels(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built(toolkit, NARROW, tmp_path_factory.mktemp("narrow"))


def test_kernels_for_8_bits_turn_v_and_do_not_spill(narrow: Built) -> None:
    library = Path(str(narrow.outcomes[0].library))
    instructions = sass.instructions(library)
    assert not isinstance(instructions, str), instructions
    for config, outcome, kernel in zip(NARROW, narrow.outcomes, narrow.functions, strict=True):
        taken = outcome.resources
        assert taken is not None
        assert taken.spills == 0
        assert taken.threads == 384
        assert (taken.shared_bytes or 0) <= config.shared_bytes
        own = [instructions[name] for name in instructions if outcome.symbol in name]
        assert len(own) == 2  # the kernel, and what turns V
        assert sum("QGMMA" in line for line in own) == 1
        # A line of keys for each column: 1001 of them are 1008 bytes.
        assert cutlass_abi.workspace_bytes(kernel, call()) == BATCH * HEADS * 64 * 1008
        assert cutlass_abi.workspace_bytes(kernel, call(heads_kv=2)) == BATCH * 2 * 64 * 1008
        assert refusal(kernel, call(dim=config.dim)) == ""
        assert "no multiple of 16 bytes" in refusal(kernel, call(dim=config.dim - 8))
        row = 64 * SEQ
        assert "a stride" in refusal(kernel, call(stride_q=(HEADS * row, row, 72)))
        by_tokens: dict[str, Any] = dict.fromkeys(("stride_k", "stride_v"), (0, 64, 1024))
        assert refusal(kernel, call(seq_q=1, batch=1, **by_tokens)) == ""
        # Turned, a batch would have more keys and columns than 32 bits count.
        assert "an extent" in refusal(kernel, call(seq_k=1 << 26, seq_q=1, batch=1, **by_tokens))
        fmha_call = call(q=256, k=256, v=256, out=256)
        with pytest.raises(KernelError, match="workspace is missing"):
            cutlass_abi.run(kernel, fmha_call, 0)


def rounded(*parts: int) -> int:
    return sum((part + 127) // 128 * 128 for part in parts)


def test_backward_kernels_take_what_fits_and_nothing_else(backward: Built) -> None:
    for kernel, config in zip(backward.functions, BACKWARD, strict=True):
        check_common_refusals(kernel, config.dim)
        assert "a stride" in refusal(kernel, call(stride_dq=(64, 64, 65)))
        assert "a pointer" in refusal(kernel, call(dv=2))
        assert "a pointer" in refusal(kernel, call(lse=4))
        assert refusal(kernel, call(seq_q=SEQ + 1, lse=4)) == ""  # copied to aligned rows
        # dQ in float32; of lengths that 4 does not divide lse and delta; of shared heads dK and dV.
        heads = BATCH * HEADS
        assert cutlass_abi.workspace_bytes(kernel, call()) == rounded(heads * SEQ * 64 * 4)
        odd = call(seq_q=SEQ + 1)
        rows = heads * (SEQ + 4) * 4
        dq = heads * (SEQ + 1) * 64 * 4
        assert cutlass_abi.workspace_bytes(kernel, odd) == rounded(rows, rows, dq)
        grad = heads * (SEQ + 1) * 64 * 2
        shared = call(heads_kv=4)
        dq = heads * SEQ * 64 * 4
        assert cutlass_abi.workspace_bytes(kernel, shared) == rounded(dq, grad, grad)


def test_operands_and_workspace_must_be_there_to_run(forward: Built, backward: Built) -> None:
    with pytest.raises(KernelError, match="a pointer is missing"):
        cutlass_abi.run(forward.functions[0], call(q=256, k=256, v=256), 0)
    names = ("q", "k", "v", "d_out", "lse", "delta", "dq", "dk", "dv")
    fmha_call = call(**dict.fromkeys(names, 256))
    needed = cutlass_abi.workspace_bytes(backward.functions[0], fmha_call)
    with pytest.raises(KernelError, match=f"workspace is missing.*: 0 bytes of {needed}"):
        cutlass_abi.run(backward.functions[0], fmha_call, 0)
    fmha_call.workspace, fmha_call.workspace_bytes = 64, needed
    with pytest.raises(KernelError, match="not aligned to 128"):
        cutlass_abi.run(backward.functions[0], fmha_call, 0)
    fmha_call.delta = 0
    with pytest.raises(KernelError, match="a pointer is missing"):
        cutlass_abi.run(backward.functions[0], fmha_call, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU would run it on pointers into nowhere")
def test_without_a_gpu_it_says_what_the_runtime_says(forward: Built) -> None:
    fmha_call = call(q=256, k=256, v=256, out=256)
    with pytest.raises(KernelError, match=r"did not start \(CUDA error [1-9]"):
        cutlass_abi.run(forward.functions[0], fmha_call, 0)


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_kernels_use_wgmma_and_do_not_spill(which: str, request: pytest.FixtureRequest) -> None:
    batch: Built = request.getfixturevalue(which)
    library = Path(str(batch.outcomes[0].library))
    instructions = sass.instructions(library)
    assert not isinstance(instructions, str), instructions
    used = usage(library)
    assert not isinstance(used, str), used
    wanted = FORWARD if which == "forward" else BACKWARD
    for config, outcome in zip(wanted, batch.outcomes, strict=True):
        taken = outcome.resources
        assert taken is not None
        assert taken.spills == 0
        assert taken.threads == 384
        assert taken.shared_bytes is not None
        if which == "forward":
            assert taken.shared_bytes <= config.shared_bytes
        own = [
            name
            for name in instructions
            if f"{outcome.symbol}_kernel" in name or outcome.symbol in name
        ]
        assert any("HGMMA" in instructions[name] for name in own)
    assert {kernel.stack_bytes for kernel in used} == {0}


@pytest.mark.parametrize(("which", "most"), [("forward", 2.6), ("narrow", 2.0), ("backward", 3.0)])
def test_a_batch_of_four_is_cheap(
    which: str, most: float, unit_s: float, request: pytest.FixtureRequest
) -> None:
    """A backward has five products for the compiler, a forward two; of 8 bits, larger tiles and another kernel.

    On two cores a forward takes 11.5 to 20 s: how much a second of processor time does varies, with the machine and with what
    others do on it. So the limits are in what CuTe alone takes there.
    """
    batch: Built = request.getfixturevalue(which)
    each_s = batch.cpu_s / len(batch.outcomes)
    print(f"{which}: {each_s:.1f} s of processor time a kernel, CuTe alone {unit_s:.1f} s")
    assert len(batch.outcomes) == (len(NARROW) if which == "narrow" else 4)
    assert each_s <= most * unit_s


def test_small_and_large_heads_fit(toolkit: Toolkit, tmp_path: Path) -> None:
    chosen = [
        setting
        for dim in (32, 256)
        for setting in configs(attention_of(attention(dim=dim, dtype="float16")), target("H200"))
    ]
    chosen += configs(attention_of(attention(dim=32, backward=True)), target("H200"))
    done = built(toolkit, chosen, tmp_path)
    for config, outcome, kernel in zip(chosen, done.outcomes, done.functions, strict=True):
        taken = outcome.resources
        assert taken is not None
        assert taken.spills == 0
        assert (taken.shared_bytes or 0) <= target("H200").shared_per_block
        assert refusal(kernel, call(dim=config.dim)) == ""


def test_generated_code_plans_the_workspace_that_the_kernel_wants(backward: Built) -> None:
    kernel = backward.functions[0]
    problem = attention(backward=True, heads=8, kv_heads=2, queries=1001, keys=999)
    name = f"{kernel.symbol}@{kernel.library}"
    op = OpKernel("inductor_plugin::cutlass_fmha_backward.out", (name, 0.125, -1, 0, True))
    needed = cutlass.workspace_needed(op, problem.inputs, problem.output, torch.device("cuda:0"))
    rows, dq, grad = 2 * 8 * 1004 * 4, 2 * 8 * 1001 * 128 * 4, 2 * 8 * 999 * 128 * 2
    assert needed == rounded(rows, rows, dq, grad, grad)


def test_generated_code_plans_memory_for_the_v_that_is_turned(narrow: Built) -> None:
    kernel = narrow.functions[0]
    problem = attention(heads=8, kv_heads=2, queries=1001, keys=999, dim=64, dtype="float8_e4m3fn")
    name = f"{kernel.symbol}@{kernel.library}"
    op = OpKernel("inductor_plugin::cutlass_fmha.out", (name, 0.125, -1, 0, True))
    needed = cutlass.workspace_needed(op, problem.inputs, problem.output, torch.device("cuda:0"))
    assert needed == 2 * 2 * 64 * 1008
