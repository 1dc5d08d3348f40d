"""Fused or not: decided by measurement, once, on a GPU that is not there."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.scheduler import Scheduler

from inductor_plugin.cache import Resources
from inductor_plugin.cache.quarantine import MISHAPS
from inductor_plugin.cost import shortlist
from inductor_plugin.cost.shortlist import FusionEstimate
from inductor_plugin.inductor.fusion import decide
from inductor_plugin.kernels.call import (
    BufferRef,
    ExternKernel,
    ModuleKernel,
    SequenceStep,
)
from inductor_plugin.problem.tolerance import STEPPED, Tolerance
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.worker.jobs import BenchCandidate, Compiled
from tests.support.fusion_lab import (
    APART,
    FUSED,
    A,
    B,
    C,
    a_lab,
    activated,
    fusions,
    launches,
    parts,
    screened,
    times,
)
from tests.support.lowering import Lab

__all__ = ["a_lab"]  # the fixture
pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


def test_the_fused_kernel_wins(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        code = opened.lower(activated, A, B, C)
    (name,) = launches(code)
    assert name.startswith("triton_tem_fused")
    (task,) = fusions(opened)
    assert task.problem.op == "mm"
    assert task.problem.epilogue.startswith("add.relu-")
    # What the epilogue reads is one of the problem's operands.
    assert [operand.size for operand in task.problem.inputs] == [(1024, 512), (512, 2048), (2048,)]
    assert {entry.name for entry in task.entries} == {"unfused", "fused.triton_mm"}
    assert [entry.library for entry in task.entries if entry.name == "unfused"] == [True]
    assert (
        1
        <= sum(entry.name != "unfused" for entry in task.entries)
        <= shortlist.MAX_LOSSLESS + shortlist.MAX_UNCERTAIN
    )


def test_two_kernels_win(lab: Callable[..., Any]) -> None:
    with lab(APART) as opened:
        code = opened.lower(activated, A, B, C)
    assert [launch[:14] for launch in launches(code)] == ["extern_kernels", "triton_poi_fus"]
    assert len(screened(opened)) == len(fusions(opened)[0].entries)


def test_a_gain_below_the_margin_is_none(lab: Callable[..., Any]) -> None:
    with lab(times(fused=0.0199, apart=0.020)) as opened:
        code = opened.lower(activated, A, B, C)
    assert launches(code)[0] == "extern_kernels.mm"


def test_the_fused_kernel_runs_with_the_tile_that_won(lab: Callable[..., Any]) -> None:
    """The second kernel takes the epilogue better than the one that is faster without it."""
    second: list[str] = []

    def taken(candidate: BenchCandidate) -> float:
        if parts(candidate) == 1:
            if candidate.candidate_id not in second:
                second.append(candidate.candidate_id)
            # More may be measured, in the order of their builds: one alone is the best.
            return 0.011 if second.index(candidate.candidate_id) == 1 else 0.015
        return FUSED(candidate)

    with lab(taken) as opened:
        code = opened.lower(activated, A, B, C)
    entries = {entry.candidate_id: entry for entry in fusions(opened)[0].entries}
    if len(second) < 2:
        pytest.fail("one kernel alone was worth measuring")
    for name, expected in ((second[0], False), (second[1], True)):
        matches = re.findall(r"(BLOCK_[MNK])=(\d+)", entries[name].description)
        said = [f"{block} : tl.constexpr = {value}" for block, value in matches]
        warps = re.findall(r"num_warps=\d+", entries[name].description)
        assert all(line in code for line in (*said, *warps)) is expected


def test_a_warm_process_measures_nothing(lab: Callable[..., Any]) -> None:
    with lab() as cold:
        first = cold.lower(activated, A, B, C)
    assert screened(cold)
    before = COUNTERS.snapshot()
    with lab() as warm:
        again = warm.lower(activated, A, B, C)
    assert (warm.screens, warm.finals, warm.builds, warm.tasks) == ([], [], [], [])
    assert again == first
    assert COUNTERS.snapshot().since(before).record_hits == 2


def test_a_warm_process_replays_two_kernels(lab: Callable[..., Any]) -> None:
    with lab(APART) as cold:
        first = cold.lower(activated, A, B, C)
    with lab(FUSED) as warm:  # the record decides, not what would be measured now
        again = warm.lower(activated, A, B, C)
    assert again == first
    assert warm.screens == []


def quantized(a: Any, b: Any, c: Any) -> Any:
    return (torch.clamp(torch.round((a @ b + c) * 8.0), -128, 127).to(torch.int8),)


def masked(a: Any, b: Any, c: Any) -> Any:
    return (a @ b > c,)


@pytest.mark.parametrize("graph", [quantized, masked])
def test_what_ends_in_integers_is_checked_and_remembered(
    graph: Callable[..., Any], lab: Callable[..., Any]
) -> None:
    with lab() as cold:
        first = cold.lower(graph, A, B, C)
    (task,) = fusions(cold)
    assert task.check is not None
    assert task.check.tolerance == Tolerance(STEPPED, STEPPED)
    with lab(APART) as warm:  # the record decides, not what would be measured now
        assert warm.lower(graph, A, B, C) == first
    assert warm.screens == []


def test_what_is_pruned_is_not_compiled(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FusionEstimate, "why_not", lambda _: "spills: as the test says")
    before = COUNTERS.snapshot()
    with lab() as opened, caplog.at_level(logging.DEBUG, decide.__name__):
        code = opened.lower(activated, A, B, C)
    assert launches(code)[0] == "extern_kernels.mm"
    assert fusions(opened) == []
    assert not any("relu" in build.source or "maximum" in build.source for build in opened.builds)
    spent = COUNTERS.snapshot().since(before)
    assert spent.fusions == spent.fusions_pruned >= 1
    assert "spills: as the test says" in caplog.text


@pytest.mark.parametrize("graphs", [False, True], ids=["the host launches", "CUDA graphs"])
def test_a_saved_launch_counts_without_cuda_graphs(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, *, graphs: bool
) -> None:
    estimates: list[FusionEstimate] = []

    def pruned(estimate: FusionEstimate) -> str:
        estimates.append(estimate)
        return "as the test says"

    monkeypatch.setattr(FusionEstimate, "why_not", pruned)
    with lab() as opened, inductor_config.patch({"triton.cudagraphs": graphs}):
        opened.lower(activated, A, B, C)
    assert {estimate.host_counts for estimate in estimates} == {not graphs}


def test_a_guard_refuses_before_anything_is_priced(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[object] = []
    why_not = FusionEstimate.why_not

    def noting(estimate: FusionEstimate) -> str | None:
        asked.append(estimate)
        return why_not(estimate)

    monkeypatch.setattr(FusionEstimate, "why_not", noting)
    with lab() as opened, caplog.at_level(logging.DEBUG, decide.__name__):
        code = opened.lower(activated, A, B, C, max_kernel_arguments="cuda=3")
    assert asked == []
    assert fusions(opened) == []
    assert "max_kernel_arguments is 3" in caplog.text
    assert launches(code)[0] == "extern_kernels.mm"
    with lab() as opened:
        opened.lower(activated, A, B, C, max_kernel_arguments="cuda=4")
    assert asked
    assert len(fusions(opened)) == 1


def test_the_compiler_has_the_last_word(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What spills once it is compiled is not measured; its product alone was."""

    def spilling(opened: Lab, job: Any, done: Any, *_order: Any) -> None:
        fused = "tl.maximum" in getattr(job, "source", "") or "triton_helpers.maximum" in job.source
        taken = Resources(255, 4096 if fused else 0, 32768, 128)
        opened.builds.append(job)
        done([Compiled(job.key, "ok", elapsed_s=0.1, resources=taken)])

    monkeypatch.setattr(Lab, "submit", spilling)
    with lab() as opened:
        code = opened.lower(activated, A, B, C)
    (task,) = fusions(opened)
    fused = [entry for entry in task.entries if not entry.library]
    assert fused
    assert all(kernel.outcome is not None and kernel.outcome.status == "pruned" for kernel in fused)
    assert set(screened(opened)) <= {entry.candidate_id for entry in task.entries if entry.library}
    assert launches(code)[0] == "extern_kernels.mm"


def test_its_own_judge_is_asked_about_a_compiled_kernel(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only what every kernel is asked: occupancy against the epilogue's own time."""
    asked: list[Resources] = []

    def judged(_: FusionEstimate, fused: Resources) -> str:
        asked.append(fused)
        return "occupancy: as the test says"

    def known(opened: Lab, job: Any, done: Any, *_order: Any) -> None:
        opened.builds.append(job)
        done([Compiled(job.key, "ok", elapsed_s=0.1, resources=Resources(96, 0, 32768, 128))])

    monkeypatch.setattr(FusionEstimate, "why_not_compiled", judged)
    monkeypatch.setattr(Lab, "submit", known)
    with lab() as opened:
        code = opened.lower(activated, A, B, C)
    fused = [entry for entry in fusions(opened)[0].entries if not entry.library]
    assert len(asked) == len(fused) >= 1
    assert {kernel.outcome.reason for kernel in fused if kernel.outcome} == {
        "occupancy: as the test says"
    }
    assert launches(code)[0] == "extern_kernels.mm"


def test_the_same_tensors_go_through_both(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        opened.lower(activated, A, B, C)
    candidates = screened(opened)
    apart = next(candidate for candidate in candidates.values() if parts(candidate) == 2)
    fused = next(candidate for candidate in candidates.values() if parts(candidate) == 1)
    assert [(operand.size, operand.seed) for operand in apart.inputs] == [
        (operand.size, operand.seed) for operand in fused.inputs
    ]
    assert len({operand.seed for operand in apart.inputs}) == 3
    assert apart.output == fused.output
    assert apart.output.size == (1024, 2048)


def test_the_product_goes_through_scratch_memory(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        opened.lower(activated, A, B, C)
    apart = next(candidate for candidate in screened(opened).values() if parts(candidate) == 2)
    kernel: Any = apart.kernel
    (scratch,) = kernel.scratch
    assert (scratch.size, scratch.dtype) == ((1024, 2048), "bfloat16")
    product, epilogue = kernel.parts
    assert product == SequenceStep(ExternKernel("mm"), (BufferRef(0), BufferRef(1)), BufferRef(3))
    assert isinstance(epilogue.kernel, ModuleKernel)
    assert epilogue.out is None
    assert [argument for argument in epilogue.arguments if isinstance(argument, BufferRef)] == [
        BufferRef(3),
        BufferRef(2),
        BufferRef(4),
    ]
    # The sizes follow the tensors: xnumel.
    assert epilogue.arguments[3:] == (1024 * 2048,)


def test_arguments_are_in_the_order_of_the_kernel(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        opened.lower(activated, A, B, C)
    fused = next(candidate for candidate in screened(opened).values() if parts(candidate) == 1)
    kernel: Any = fused.kernel
    (part,) = kernel.parts
    named = re.search(r"def triton_\w*\(([^)]*)\)", part.kernel.source)
    assert named is not None
    tensors = [word.strip() for word in named.group(1).split(",")][:4]
    # The operands first, then what the epilogue reads, then what it writes.
    assert tensors == ["arg_A", "arg_B", "in_ptr2", "out_ptr1"]
    assert part.arguments[:4] == (BufferRef(0), BufferRef(1), BufferRef(2), BufferRef(3))
    assert kernel.scratch == ()


@pytest.mark.parametrize("status", ["wrong", "crashed", "hung"])
def test_a_fused_kernel_that_misbehaves_is_not_used(lab: Callable[..., Any], status: str) -> None:
    def behaves(candidate: BenchCandidate) -> str:
        return status if parts(candidate) == 1 else "ok"

    code = ""
    for _ in range(2 if status in MISHAPS else 1):
        before = COUNTERS.snapshot()
        with lab(FUSED, status=behaves) as opened:
            code = opened.lower(activated, A, B, C)
        assert launches(code)[0] == "extern_kernels.mm"
        count = len(fusions(opened)[0].entries) - 1
        assert COUNTERS.snapshot().since(before).quarantined == count
    # It is not tried again, and what is known decides.
    with lab(FUSED) as warm:
        again = warm.lower(activated, A, B, C)
    assert screened(warm) == {}
    assert again == code


def test_records_alone_decide_where_nothing_may_be_measured(lab: Callable[..., Any]) -> None:
    with lab(FUSED) as cold:
        cold.lower(lambda a, b: (a @ b,), A, B)  # the product is known, the fusion is not
    with lab(FUSED) as cached:
        code = cached.lower(activated, A, B, C, policy="cached")
    assert (cached.screens, cached.builds) == ([], [])
    assert launches(code)[0] == "extern_kernels.mm"
    with lab(FUSED) as tuned:
        fused = tuned.lower(activated, A, B, C)
    with lab(APART) as cached:
        again = cached.lower(activated, A, B, C, policy="cached")
    assert again == fused
    assert cached.screens == []


def test_nothing_is_measured_for_a_pack(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        code = opened.lower(activated, A, B, C, policy="build")
    assert (opened.screens, opened.finals) == ([], [])
    assert opened.builds
    assert launches(code)[0] == "extern_kernels.mm"


def test_without_the_library_two_kernels_can_still_win(lab: Callable[..., Any]) -> None:
    """``gemm_backends`` is about the product: that two kernels run is no library's doing."""
    with lab(APART) as opened:
        code = opened.lower(activated, A, B, C, gemm_backends="TRITON")
    assert fusions(opened)
    assert [launch[:10] for launch in launches(code)] == ["triton_tem", "triton_poi"]


def test_what_is_slower_alone_than_the_two_apart_is_not_measured(lab: Callable[..., Any]) -> None:
    """Triton's kernels take 0.015 ms alone, the library's and the epilogue 0.014 ms."""
    with lab(times(fused=0.001, apart=0.014, triton=0.015)) as opened:
        code = opened.lower(activated, A, B, C)
    assert launches(code)[0] == "extern_kernels.mm"
    (task,) = fusions(opened)
    assert all(name.startswith("unfused.") for name in screened(opened))
    fused = [entry.outcome for entry in task.entries if not entry.library]
    assert fused
    assert all(kernel is not None and kernel.status == "pruned" for kernel in fused)


def test_outside_of_the_plugins_scope_inductor_decides(lab: Callable[..., Any]) -> None:
    decide.install()
    try:
        scheduler, node = mock.Mock(), mock.Mock()
        stock = mock.Mock(return_value="Inductor's answer")
        with mock.patch.dict(decide._STOCK):
            decide.uninstall()
            with mock.patch.object(Scheduler, "speedup_by_fusion", stock):
                decide.install()
                answer = Scheduler.speedup_by_fusion(scheduler, node, node)
                decide.uninstall()
    finally:
        decide.uninstall()
    assert answer == "Inductor's answer"
    stock.assert_called_once_with(scheduler, node, node)
