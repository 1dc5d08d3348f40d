"""Which kernels are worth measuring with an epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache import Resources
from inductor_plugin.cost.limits import Limits
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.cost.shortlist import (
    DOMINATES,
    MAX_LOSSLESS,
    MAX_UNCERTAIN,
    FusionEstimate,
    Shortlist,
    kernel_of,
    visitor_kernel,
)
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.kernels.resources import SPILL_LIMIT_BYTES
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.target import target
from inductor_plugin.template import Candidate

H200 = target("H200")
M, N, K = 4096, 4096, 1024
RELU = Epilogue(
    (M, N),
    "bfloat16",
    (Step("product"), Step("relu", (0,)), Step("store", (1,), 0)),
    writes=(Access("full", "bfloat16", M * N, (N, 1)),),
)
FIT = Kernel("mm", (128, 128, 64), 8, 0, 3, 98, 0, 65536, shape=(M, N, K))
SPILLING = replace(FIT, registers=255, spilled_bytes=96)


def estimate(
    kernel: Kernel = FIT, time_us: float = 100.0, limits: Limits | None = None
) -> FusionEstimate:
    return FusionEstimate(kernel, RELU, H200, limits or Limits(), time_us)


def reason(shortlist: Shortlist, name: str, estimated: FusionEstimate) -> str | None:
    """Return why a kernel is not taken in, None if it is."""
    shortlist.offer(name, estimated.unfused_us, lambda: estimated)
    assert (name in shortlist.kept) != (name in shortlist.pruned)
    return shortlist.pruned.get(name)


def test_a_slower_kernel_is_dominated_by_one_that_loses_nothing() -> None:
    shortlist = Shortlist()
    assert reason(shortlist, "fast", estimate()) is None
    assert reason(shortlist, "border", estimate(time_us=100.0 * DOMINATES - 1)) is None
    shortlist.offer("slow", 100.0 * DOMINATES + 1, lambda: pytest.fail("no estimate is needed"))
    assert "dominated: fast takes 100.0 us" in shortlist.pruned["slow"]


def test_kernels_of_one_speed_are_measured_up_to_a_number() -> None:
    shortlist = Shortlist()
    for index in range(MAX_LOSSLESS):
        assert reason(shortlist, f"kernel {index}", estimate(time_us=100.0 + index)) is None
    assert "as fast" in str(reason(shortlist, "one more", estimate(time_us=103.0)))


def test_a_kernel_that_may_lose_dominates_nobody_and_takes_nobodys_place() -> None:
    shortlist = Shortlist()
    assert not estimate(SPILLING).predicted_lossless
    for index in range(MAX_UNCERTAIN):
        assert reason(shortlist, f"doubtful {index}", estimate(SPILLING)) is None
    assert "may lose" in str(reason(shortlist, "another", estimate(SPILLING)))
    assert reason(shortlist, "sure", estimate(time_us=115.0)) is None


def test_limits_of_the_options_count_before_and_after_the_compile() -> None:
    free, tight = estimate(), estimate(limits=Limits(registers=64))
    assert free.why_not() is None
    assert "max_fusion_registers is 64" in str(tight.why_not())
    fused = Resources(registers=120, spills=0, shared_bytes=65536, threads=256)
    assert free.why_not_compiled(fused) is None
    assert "120 registers" in str(tight.why_not_compiled(fused))


def test_a_fused_kernel_that_spills_is_refused_when_compiled() -> None:
    fused = Resources(registers=255, spills=512, shared_bytes=65536, threads=256)
    assert "spill" in str(estimate().why_not_compiled(fused))


def test_nothing_is_pruned_for_a_gpu_whose_figures_are_not_known() -> None:
    unknown = replace(estimate(SPILLING, time_us=1e6), target=None)
    assert unknown.why_not() is None
    assert unknown.predicted_lossless


def test_a_fused_kernel_takes_at_least_as_long_as_the_kernel_alone() -> None:
    assert estimate(time_us=100.0).least_ms() == 0.1
    narrower = replace(RELU, writes=(Access("full", "float8_e4m3fn", M * N, (N, 1)),))
    least_ms = replace(estimate(time_us=100.0), epilogue=narrower).least_ms()
    # A byte less is written for each element; the memory may give 80 % of its peak, over 1.6.
    assert least_ms == pytest.approx(0.1 - 2 * M * N / H200.memory_bandwidth * 1e3)
    assert replace(estimate(), target=None).least_ms() == 0.0


@pytest.mark.parametrize(
    ("op", "first"), [("mm", 0), ("addmm", 1), ("scaled_mm", 0), ("mm_plus_mm", 0)]
)
def test_a_kernel_is_read_off_its_description(op: str, first: int) -> None:
    def operand(*size: int, dtype: str = "float16") -> Operand:
        return Operand(size, (size[-1], 1), dtype, "cuda")

    factors = operand(M, K), operand(K, N, dtype="bfloat16")
    problem = Problem(op, (*(operand(M, N),) * first, *factors), operand(M, N))
    known = Resources(registers=120, spills=8, shared_bytes=4096, threads=256)
    text = "ACC_TYPE='tl.float32', BLOCK_K=32, BLOCK_M=64, BLOCK_N=256, GROUP_M=8"
    kernel = kernel_of(problem, "triton_persistent_tma", text, 8, 4, known)
    assert kernel.tile == (64, 256, 32)
    assert kernel.shape == (M, N, K)
    assert kernel.operands == ("float16", "bfloat16")
    assert (kernel.registers, kernel.spilled_bytes, kernel.shared_bytes) == (120, 8, 4096)
    assert kernel.persistent


def test_a_fused_kernel_with_fewer_blocks_or_that_spills_loses() -> None:
    prediction = estimate().prediction
    assert prediction is not None
    assert prediction.lossless
    fewer = replace(prediction.fused, blocks=prediction.alone.blocks - 1)
    spilling = replace(prediction.fused, spilled_bytes=SPILL_LIMIT_BYTES + 1)
    for fused in (fewer, spilling):
        assert not replace(prediction, fused=fused).lossless


def test_what_need_not_be_compiled_takes_nobodys_place() -> None:
    shortlist = Shortlist()
    refused = reason(shortlist, "too many", estimate(limits=Limits(registers=64)))
    assert "max_fusion_registers is 64" in str(refused)
    assert shortlist.kept == {}


@pytest.mark.parametrize("op", ["mm", "addmm", "baddbmm"])
def test_the_operands_of_a_cutlass_kernel_are_its_factors(op: str) -> None:
    bias = [Operand((256,), (1,), "float32", "cuda")] if op != "mm" else []
    a = Operand((64, 32), (32, 1), "bfloat16", "cuda")
    b = Operand((32, 256), (256, 1), "float16", "cuda")
    product = Problem(op, (*bias, a, b), Operand((64, 256), (256, 1), "bfloat16", "cuda"))
    tile: dict[str, Any] = {"tile": [64, 128, 32], "schedule": "pingpong"}
    kernel = visitor_kernel(product, Candidate("cutlass", "x", tile, OpKernel("cutlass::x")))
    assert (kernel.operands, kernel.shape) == (("bfloat16", "float16"), (64, 256, 32))
    assert (kernel.tile, kernel.warps, kernel.kind) == ((64, 128, 32), 4, "cutlass")
