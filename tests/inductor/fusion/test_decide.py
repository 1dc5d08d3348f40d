"""Fused or not: decided by measurement, once, on a GPU that is not there."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.scheduler import FusionResult, Scheduler
from torch.nn import functional

import inductor_plugin
from inductor_plugin.cache import Resources
from inductor_plugin.cache.quarantine import MISHAPS
from inductor_plugin.cost import shortlist
from inductor_plugin.cost.shortlist import FusionEstimate
from inductor_plugin.inductor.facts.compat import torch_version
from inductor_plugin.inductor.fusion import decide, pair
from inductor_plugin.inductor.fusion.nodes import epilogue_of
from inductor_plugin.inductor.fusion.offers import fused_offer
from inductor_plugin.kernels.call import (
    BufferRef,
    ExternKernel,
    ModuleKernel,
    SequenceKernel,
    SequenceStep,
)
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.tolerance import STEPPED, Tolerance
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.task import Task
from inductor_plugin.worker.jobs import BenchCandidate, Compiled
from inductor_plugin.worker.turn import Turn
from tests.support.lowering import Arg, Lab

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

A, B, C = Arg((1024, 512)), Arg((512, 2048)), Arg((2048,))
Times = Callable[[BenchCandidate], float]


def activated(a: Any, b: Any, c: Any) -> Any:
    return (functional.relu(a @ b + c),)


def gated(a: Any, b: Any, c: Any) -> Any:
    return (functional.silu(a @ b) * (a @ c),)


def parts(candidate: BenchCandidate) -> int:
    kernel = candidate.kernel
    return len(kernel.parts) if isinstance(kernel, SequenceKernel) else 0


def times(fused: float, apart: float, library: float = 0.010, triton: float = 0.0105) -> Times:
    """Return milliseconds of the product's kernels, of a fused one, and of the two apart."""

    def taken(candidate: BenchCandidate) -> float:
        count = parts(candidate)
        if count:
            return fused if count == 1 else apart
        return library if isinstance(candidate.kernel, ExternKernel) else triton

    return taken


FUSED = times(fused=0.011, apart=0.020)
APART = times(fused=0.020, apart=0.011)


@pytest.fixture(name="lab")
def a_lab(cache_dir: Path) -> Callable[..., Any]:
    return lambda taken=FUSED, **more: Lab(taken, cache_dir, **more).open()


def fusions(lab: Lab) -> list[Task]:
    return [task for task in lab.tasks if task.problem.epilogue]


def screened(lab: Lab) -> dict[str, BenchCandidate]:
    """Return what was measured of fusions."""
    candidates = [job.candidate for job in lab.screens if parts(job.candidate)]
    return {candidate.candidate_id: candidate for candidate in candidates}


def launches(code: str) -> list[str]:
    """Return the kernels that the generated code calls, in order."""
    call = code[code.index("def call(") :]
    return re.findall(r"(extern_kernels\.\w+|triton_\w+)(?:\.run)?\(", call.split("\nrunner")[0])


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


@pytest.mark.skipif(
    torch_version() < (2, 13), reason="torch 2.11 does not ask about what reads a fused node turned"
)
def test_a_second_epilogue_on_top_of_the_first(lab: Callable[..., Any]) -> None:
    """The kernel is settled by the first: the second is measured with that one alone."""

    def stacked(a: Any, b: Any, c: Any, d: Any) -> Any:
        scaled = functional.relu(a @ b + c)
        return scaled, torch.sin(scaled) * d, scaled.t().contiguous()

    operands = A, B, C, Arg((1024, 2048))
    with lab() as opened:
        code = opened.lower(stacked, *operands)
    first, second = fusions(opened)
    assert second.problem.epilogue.endswith("+2")
    settled = {entry.description for entry in first.entries}
    (fused,) = [entry for entry in second.entries if not entry.library]
    assert fused.description in settled
    # Apart, the first of two generated kernels is the product with what is fused already.
    (apart,) = [entry for entry in second.entries if entry.library]
    assert apart.candidate is not None
    kernel: Any = apart.candidate.kernel
    assert [type(part.kernel) for part in kernel.parts] == [ModuleKernel, ModuleKernel]
    assert len(kernel.parts[0].arguments) > len(kernel.parts[1].arguments)
    assert [launch[:16] for launch in launches(code)] == ["triton_tem_fused"]
    with lab() as warm:
        assert warm.lower(stacked, *operands) == code
    assert warm.screens == []


def test_a_second_epilogue_is_left_apart(lab: Callable[..., Any]) -> None:
    """The first stays fused, whatever becomes of the second."""

    def stacked(a: Any, b: Any, c: Any, d: Any) -> Any:
        scaled = functional.relu(a @ b + c)
        return scaled, torch.sin(scaled) * d, scaled.t().contiguous()

    def taken(candidate: BenchCandidate) -> float:
        kernel = candidate.kernel
        assert isinstance(kernel, (SequenceKernel, ExternKernel)) or not parts(candidate)
        if parts(candidate) == 2 and isinstance(kernel, SequenceKernel):
            return 0.005 if isinstance(kernel.parts[0].kernel, ModuleKernel) else 0.020
        return FUSED(candidate)

    with lab(taken) as opened:
        code = opened.lower(stacked, A, B, C, Arg((1024, 2048)))
    assert [launch[:10] for launch in launches(code)] == ["triton_tem", "triton_poi"]


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


def is_apart(code: str) -> bool:
    """Return whether two products of the library are followed by a kernel for what reads both."""
    kinds = [launch[:14] for launch in launches(code)]
    return kinds == ["extern_kernels", "extern_kernels", "triton_poi_fus"]


def test_two_products_share_an_epilogue(lab: Callable[..., Any]) -> None:
    """One of them takes it, and the other is not asked and stays what was measured alone."""
    with lab() as opened:
        code = opened.lower(gated, A, B, Arg((512, 2048)))
    names = launches(code)
    assert len(names) == 2
    assert names[0] == "extern_kernels.mm"
    assert names[1].startswith("triton_tem_fused")
    assert len(fusions(opened)) == 1


def test_the_second_product_is_asked_where_the_first_lost(lab: Callable[..., Any]) -> None:
    with lab(APART) as opened:
        code = opened.lower(gated, A, B, Arg((512, 2048)))
    assert is_apart(code)
    assert len({task.problem.epilogue for task in fusions(opened)}) == 2


def test_where_the_second_product_fails_two_kernels_run(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handed, offer = list[str](), fused_offer

    def failing(fusion: Any, *rest: Any) -> Any:
        if handed and fusion.product.get_name() not in handed:
            raise ValueError("as the test says")
        handed.append(fusion.product.get_name())
        return offer(fusion, *rest)

    monkeypatch.setattr(decide, "fused_offer", failing)
    with lab(APART) as opened:
        code = opened.lower(gated, A, B, Arg((512, 2048)))
    assert is_apart(code)
    assert "two kernels run" in caplog.text
    assert "as the test says" in caplog.text


def test_an_epilogue_is_read_once_however_often_inductor_asks(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[tuple[str, ...]]()

    def noting(scheduler: Any, product: Any, first: Any, nodes: Sequence[Any]) -> Epilogue:
        read.append((first.get_name(), *(node.get_name() for node in nodes)))
        return epilogue_of(scheduler, product, first, nodes)

    def again(fusion: pair.Fusion) -> Any:
        """Be asked in two rounds."""
        decided(replace(fusion))
        return decided(fusion)

    decided = decide._decided
    monkeypatch.setattr(pair, "epilogue_of", noting)
    monkeypatch.setattr(decide, "_decided", again)
    before = COUNTERS.snapshot()
    with lab() as opened:
        opened.lower(activated, A, B, C)
    assert COUNTERS.snapshot().since(before).fusions == 2
    assert len(read) == 1


def test_a_pair_that_was_submitted_before_another_was_fused_is_not_fused(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []

    def both(fusion: pair.Fusion) -> Any:
        """Submit a pair twice, and ask for both answers."""
        pending = [decided(replace(fusion)).callable_fn, decided(fusion).callable_fn]

        def first() -> bool:
            answers.extend(answer() for answer in pending)
            return answers[0]

        return FusionResult.from_callable(first)

    decided = decide._decided
    monkeypatch.setattr(decide, "_decided", both)
    with lab() as opened:
        opened.lower(activated, A, B, C)
    assert answers == [True, False]


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


def test_what_stands_before_a_product_is_inductors_to_measure(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def benchmark(*_: Any, **__: Any) -> tuple[float, str]:
        asked.append("benchmarked")
        return 0.001, ""

    def cast(a: Any, b: Any) -> Any:
        return (a.to(torch.bfloat16) @ b,)

    monkeypatch.setattr(Scheduler, "benchmark_fused_nodes", benchmark)
    monkeypatch.setattr(FusionEstimate, "why_not", lambda _: None)
    x = Arg((1024, 512), torch.float8_e4m3fn)
    with lab() as opened, inductor_config.patch(prologue_fusion=True):
        opened.lower(cast, x, B)
    assert asked
    assert fusions(opened) == []
    asked.clear()
    monkeypatch.setattr(FusionEstimate, "why_not", lambda _: "prologue: as the test says")
    with lab() as opened, inductor_config.patch(prologue_fusion=True):
        opened.lower(cast, x, B)
    assert asked == []


def test_what_inductor_measures_itself_waits_for_the_worker(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that measure on one GPU at once measure each other."""
    meanwhile: list[int] = []

    def benchmark(*_: Any, **__: Any) -> tuple[float, str]:
        meanwhile.append(sum(not task.done.is_set() for task in opened.tasks))
        return 0.001, ""

    def slowly(candidate: BenchCandidate) -> float:
        time.sleep(0.2 if parts(candidate) else 0.0)
        return FUSED(candidate)

    def both(a: Any, b: Any, x: Any, y: Any) -> Any:
        return torch.relu(a @ b), x.to(torch.bfloat16) @ y

    for name in ("benchmark_fused_nodes", "benchmark_codegened_module"):
        monkeypatch.setattr(Scheduler, name, benchmark)
    monkeypatch.setattr(FusionEstimate, "why_not", lambda _: None)
    x = Arg((512, 1024), torch.float8_e4m3fn), Arg((1024, 2048))
    with lab(slowly) as opened, inductor_config.patch(prologue_fusion=True):
        opened.lower(both, A, B, *x)
    assert fusions(opened)
    assert meanwhile
    assert set(meanwhile) == {0}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_what_inductor_measures_itself_decides_only_in_a_turn_of_its_own(
    monkeypatch: pytest.MonkeyPatch, when: str, *, alone: bool
) -> None:
    held: list[str] = []
    measured_in: list[int] = []

    @contextmanager
    def turn(uuid: str) -> Generator[Turn]:
        held.append(uuid)
        yield Turn(alone)
        held.pop()

    def measure() -> bool:
        measured_in.append(len(held))
        return True

    def stock() -> Any:
        if when == "later":
            return FusionResult.from_callable(measure)
        return FusionResult.fuse(should_fuse=measure())

    monkeypatch.setattr(decide, "turn", turn)
    monkeypatch.setattr(decide, "uuid_of", lambda name: f"uuid of {name}")
    monkeypatch.setattr(decide, "_not_fused", lambda *_: FusionResult.fuse(should_fuse=False))
    waits: list[None] = []
    session = SimpleNamespace(wait_all=lambda: waits.append(None))
    fusion: Any = SimpleNamespace(
        device=torch.device("cuda:0"), state=SimpleNamespace(session=session)
    )
    result = decide._measured_here(fusion, stock)
    later = result.callable_fn
    assert (later() if later is not None else result.should_fuse) is alone
    assert measured_in == [1]
    assert not held
    assert waits


def test_where_the_plugin_fails_inductor_decides(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("as the test says")

    asked: list[object] = []

    def noting(scheduler: Any, first: Any, second: Any) -> Any:
        asked.append(second)
        return FusionResult.fuse(should_fuse=False)

    monkeypatch.setattr(decide, "guard", broken)
    decide.uninstall()
    monkeypatch.setattr(Scheduler, "speedup_by_fusion", noting)
    try:
        with lab() as opened:
            code = opened.lower(activated, A, B, C)
    finally:
        decide.uninstall()
    assert asked
    assert "inductor-plugin: could not price a fusion; Inductor decides it" in caplog.text
    assert "as the test says" in caplog.text
    assert launches(code)[0] == "extern_kernels.mm"


def test_disabling_puts_inductors_own_back(lab: Callable[..., Any]) -> None:
    inductor_plugin.disable()
    own = Scheduler.speedup_by_fusion
    with lab() as opened:
        opened.lower(activated, A, B, C)
    assert Scheduler.speedup_by_fusion is not own
    inductor_plugin.enable()
    inductor_plugin.disable()
    assert Scheduler.speedup_by_fusion is own


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
