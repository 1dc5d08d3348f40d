"""The GPU tests of fusions, as far as a machine without a GPU can prove them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from benchmarks.harness.forced import FUSED as FUSED_PREFIX
from benchmarks.harness.forced import (
    WAYS,
    decision_for,
    forced,
    forced_fusion,
    fusion_decision_for,
)
from inductor_plugin.kernels.call import ExternKernel, SequenceKernel, TensorSpec
from inductor_plugin.worker.jobs import BenchCandidate
from tests.gpu.cases import fused as fused_cases
from tests.gpu.cases.fused import FIRST, cases
from tests.gpu.cases.kernels import ready
from tests.gpu.cases.offers import LIBRARY, Offered, argument, offered
from tests.gpu.cases.product import BF16, FP16, FUSED, Case, Spec
from tests.gpu.forced import fused as fused_forced
from tests.gpu.forced import product as product_forced
from tests.gpu.forced.process import Graph
from tests.gpu.forced.product import FORCED, FUSES
from tests.gpu.harness import check
from tests.gpu.harness.check import WrittenKernel, checked_with
from tests.gpu.harness.written import WrittenCall, written
from tests.gpu.test_fused import CALLS, root
from tests.support import gpu
from tests.support.graphs import epilogues
from tests.support.lowering import Arg, Lab, is_visited
from tests.support.pairs import covering

needs_cuda_build = pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a CUDA build of torch"
)
ALL_BACKENDS = "ATEN,TRITON,CUTLASS"

ONE_OF_EACH_KIND = (
    "gate_two: bf16",
    "fp8_e4m3: fp16",
    "bias_column: bf16 batch",
    "product_kept: bf16 padded",
    "before_and_after: bf16 addmm",
    "gelu: fp16 baddbmm",
)


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    kept = torch.is_grad_enabled()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_grad_enabled(kept)


def test_every_epilogue_of_the_list_stands_behind_every_kind_of_product() -> None:
    results = [name.partition(": ") for name in cases()]
    every = {case.name for case in epilogues.CASES}
    assert len(every) == 21
    assert {epilogue for epilogue, _, _ in results} == every
    assert {kind for _, _, kind in results} == {kind.name for kind in fused_cases.KINDS}
    for dtype in (BF16, FP16):
        kinds = {kind.name for kind in fused_cases.KINDS if kind.dtype == dtype}
        assert {epilogue for epilogue, _, kind in results if kind in kinds} == every


def test_sizes_and_strides_are_those_that_hurt() -> None:
    assert fused_cases.M % 2 == 1
    assert fused_cases.N % 8 == 0
    specs = {name: case.specs for name, case in cases().items()}
    a, b, row, full, _ = specs["gate_two: bf16 padded"]
    assert a.stride == (fused_cases.K + fused_cases.PAD, 1)
    assert b.stride == (1, fused_cases.K)
    assert (row.size, full.stride) == ((fused_cases.N,), (fused_cases.N + fused_cases.PAD, 1))
    bias, a, _, column = specs["bias_column: fp16 baddbmm"]
    assert bias.size == (fused_cases.BATCH, 1, fused_cases.N)
    assert column.size == (fused_cases.BATCH, fused_cases.M, 1)
    assert a.dtype == FP16


def lowered(name: str, folder: Path) -> list[Offered]:
    """Return the kernels of a case, lowered as a worker does."""
    offers = offered([name], str(folder / "inductor"))[name]
    assert not isinstance(offers, str), offers
    assert len(offers) == (FIRST if name.endswith(": bf16") else 1)
    return offers


def proved(name: str, folder: Path) -> None:
    """Check that a case is offered, and that its written call computes the case."""
    for offer in lowered(name, folder):
        call: Any = offer.kernel
        assert isinstance(call, WrittenCall)
        assert call.kernel.endswith(f"@{LIBRARY}")
        built: Any = offer.at("/there/kernel.so", "kernel_1").kernel
        assert built.kernel == "kernel_1@/there/kernel.so"
        report = checked_with(WrittenKernel(call, check.on_a_cpu), cases()[name], "cpu")
        assert report.good, report
        assert report.errors.keys() == {"plain", "gone", "apart"}
        assert report.errors["apart"] == 0


@needs_cuda_build
@pytest.mark.compat
@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_a_case_of_each_kind_is_written_right_without_a_gpu(name: str, tmp_path: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    proved(name, tmp_path)


@needs_cuda_build
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind.name for kind in fused_cases.KINDS])
def test_every_case_is_written_right_without_a_gpu(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    """Each epilogue after products of both types, with and without a batch, padding and a bias: on a GPU all kinds of product run."""
    mine = [name for name in covering(cases(), facts) if name.endswith(f": {kind}")]
    assert len(mine) >= 2
    for name in mine:
        proved(name, tmp_path)


def facts(name: str) -> Iterator[tuple[str, object]]:
    """Yield a case's epilogue, and what varies from one product to the next."""
    epilogue, _, kind = name.partition(": ")
    yield "epilogue", epilogue
    (product,) = [each for each in fused_cases.KINDS if each.name == kind]
    for part in fields(product):
        if part.name != "name":
            yield part.name, getattr(product, part.name)


def small(kept: bool = False) -> tuple[Case, WrittenCall]:
    """Return a case and a call of it, without lowering."""

    def graph(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = torch.mm(a, b)
        return (product.relu() + c, product) if kept else (product.relu() + c,)

    case = Case("small", FUSED, "mm", graph, (Spec((9, 16)), Spec((16, 8)), Spec((8,))))
    spec = TensorSpec((9, 8), (8, 1), "bfloat16", "cuda:0")
    names = ("buf0", "buf1") if kept else ("buf1",)
    call = WrittenCall(
        names=("arg0_1", "arg1_1", "arg2_1"),
        a="arg0_1",
        b="arg1_1",
        operands="[reinterpret_tensor(arg2_1, (1, 8), (0, 1), 0)]",
        aux=names[:-1],
        out="buf1",
        buffers=tuple((name, spec) for name in names),
        returned=("buf1", "buf0") if kept else ("buf1",),
        kernel="kernel@/library",
        launch=("tn", 1, 0, 1, ""),
    )
    return case, call


Write = Callable[[torch.Tensor, list[torch.Tensor], torch.Tensor], None]


def _short(product: torch.Tensor, aux: list[torch.Tensor], out: torch.Tensor) -> None:
    out[-1] = torch.nan


def _other_row(product: torch.Tensor, aux: list[torch.Tensor], out: torch.Tensor) -> None:
    out[3] += 1


def _beyond(product: torch.Tensor, aux: list[torch.Tensor], out: torch.Tensor) -> None:
    out.as_strided((1,), (1,), out.storage_offset() + out.numel() + 64).fill_(1)


def _swapped(product: torch.Tensor, aux: list[torch.Tensor], out: torch.Tensor) -> None:
    aux[0].copy_(out)
    out.copy_(product)


def operator(damage: Write | None) -> check.Operator:
    """Return an operator that computes the small case, and damages it unless its library is gone."""

    def run(a: Any, b: Any, operands: Any, kernel: str, *more: Any, out: torch.Tensor) -> None:
        product, aux = a.float() @ b.float(), more[-1]
        out.copy_(product.relu() + operands[0].float())
        for tensor in aux:
            tensor.copy_(product)
        if damage is not None and kernel != check.GONE:
            damage(product, aux, out)

    return run


@pytest.mark.parametrize("damage", [None, _short, _other_row, _beyond, _swapped])
def test_a_wrong_kernel_does_not_pass(damage: Write | None) -> None:
    operands, call = small(kept=True)
    report = checked_with(WrittenKernel(call, operator(damage)), operands, "cpu")
    assert report.good == (damage is None), report
    assert bool(report.overrun) == (damage is _beyond)
    assert report.errors["gone"] <= 1.0


def test_code_without_a_call_is_an_error() -> None:
    with pytest.raises(LookupError, match="0 calls"):
        written("def call(args):\n    arg0_1, = args\n")


def test_a_kernel_that_is_not_built_has_its_reason() -> None:
    offer: Any = object.__new__(Offered)
    object.__setattr__(offer, "case", "case")
    object.__setattr__(offer, "identity", "kernel")
    assert ready("it does not lower", {}) == "it does not lower"
    assert ready([offer], {("case", "kernel"): "nvcc failed"}) == "not built: nvcc failed"
    assert ready([offer], {("case", "kernel"): offer}) == [offer]


def test_the_fastest_of_a_way_is_forced_and_a_product_alone_is_not() -> None:
    taken: list[str] = []
    decide = fusion_decision_for("fused.triton", taken)
    times = {"unfused.mm-1": 1.0, "fused.triton_mm-1": 3.0, "fused.triton_mm-2": 2.0}
    assert decide(times, ["unfused.mm-1"], 0.02, {}).winner == "fused.triton_mm-2"
    assert decide({"mm-1": 1.0, "triton_mm-3": 0.5}, ["mm-1"], 0.02, {}).winner == "triton_mm-3"
    assert decide({"mm-1": 1.0, "triton_mm-3": 1.5}, ["mm-1"], 0.02, {}).winner == "mm-1"
    assert taken == ["fused.triton_mm-2"]
    assert decide({"unfused.mm-1": 1.0}, ["unfused.mm-1"], 0.02, {}).winner == "unfused.mm-1"
    assert taken[1] == "none of ['unfused.mm-1']"


def test_a_forced_template_fuses_where_it_can_however_the_candidates_are_ordered() -> None:
    taken: list[str] = []
    times = {"unfused.cutlass.a-1": 1.0, "fused.triton_mm-2": 2.0, "fused.cutlass.a-1": 3.0}
    assert decision_for("cutlass", taken)(times, [], 0.02, {}).winner == "fused.cutlass.a-1"
    first = decision_for("cutlass", taken, lambda name, ms: ms)
    assert first(times, [], 0.02, {}).winner == "fused.cutlass.a-1"
    decide = decision_for("triton_decode", taken)
    assert decide({"unfused.triton_decode-1": 1.0}, [], 0.02, {}).winner == taken[-1]


@pytest.mark.parametrize(
    ("name", "taken", "wrong"),
    [
        ("cutlass", ["cutlass.a-1", "fused.cutlass.a-1"], 0),
        ("cutlass", ["cutlass.a-1", "unfused.cutlass.a-1"], 1),
        ("cutlass bmm", ["cutlass.a-1"], 1),
        ("cutlass grouped", ["cutlass.a-1"], 0),
        ("triton_decode", ["triton_decode-1", "unfused.triton_decode-1"], 0),
        ("triton_decode", ["none of ['mm-1']"], 1),
        ("triton_decode", [], 1),
    ],
)
def test_a_forced_graph_has_kernels_of_its_template_and_a_fused_one_where_it_fuses(
    name: str, taken: list[str], wrong: int
) -> None:
    assert len(product_forced.complaints(name, taken)) == wrong


@needs_cuda_build
@pytest.mark.parametrize("name", [name for name in FORCED if FORCED[name].device == "cuda"])
def test_each_forced_graph_fuses_as_its_list_says(name: str, cache_dir: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    graph, (prefix, _, _) = FORCED[name], name.partition(" ")

    def listed(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (graph.function(*tensors),)

    arguments = [argument(spec) for spec in graph.specs]
    with gpu.installed(), Lab(lambda _: 0.1, cache_dir).open() as lab, forced(prefix) as taken:
        lab.lower(listed, *arguments, gemm_backends=graph.backends, max_candidates=graph.most)
    assert product_forced.complaints(name, taken) == []
    assert any(kernel.startswith(FUSED_PREFIX) for kernel in taken) == (name in FUSES)


def code_of(graph: Graph, lab: Lab) -> str:
    arguments = [argument(spec) for spec in graph.specs]
    return lab.lower(graph.function, *arguments, gemm_backends=ALL_BACKENDS, max_candidates=4)


def slow_fusions(candidate: BenchCandidate) -> float:
    """Say that whatever is fused is slow."""
    if isinstance(candidate.kernel, ExternKernel):
        return 0.010
    return 0.030 if isinstance(candidate.kernel, SequenceKernel) else 0.011


def forced_here(pair: str, cache_dir: Path) -> None:
    """Check on a GPU that is not there what a forced process will take and call."""
    name, _, way = pair.rpartition(", ")
    with (
        gpu.installed(),
        Lab(slow_fusions, cache_dir).open() as lab,
        forced_fusion(way) as taken,
    ):
        code_of(fused_forced.GRAPHS[name], lab)
    assert taken
    assert all(kernel.startswith(WAYS[way]) for kernel in taken), taken
    called = fused_forced.calls(lab.written[-1])
    if way == "apart":
        assert called == {"cutlass": 0, "triton": 1, "others": 1}
    else:
        assert called == CALLS[way]


@needs_cuda_build
@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_fuse_can_be_forced_against_the_clock(way: str, cache_dir: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    forced_here(f"product kept, {way}", cache_dir)


@needs_cuda_build
@pytest.mark.parametrize("pair", fused_forced.pairs())
def test_every_way_of_every_graph_can_be_forced(pair: str, cache_dir: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    forced_here(pair, cache_dir)


@needs_cuda_build
@pytest.mark.parametrize("way", ["triton", "cutlass"])
def test_what_a_fused_kernel_writes_is_looked_at_by_its_name(way: str, cache_dir: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    with (
        gpu.installed(),
        Lab(slow_fusions, cache_dir).open() as lab,
        forced_fusion(way),
    ):
        code = lab.lower(
            lambda a, b: (root(a, b),),
            Arg((512, 256)),
            Arg((256, 512)),
            gemm_backends=ALL_BACKENDS,
            max_candidates=4,
            check_outputs="nan",
        )
    (look,) = [line for line in code.splitlines() if "output_check.check(" in line]
    assert "buf1" in look
    assert "kernel='fused.cutlass" in look or 'kernel="fused.triton_mm' in look
    assert f"fused.{way}" in look


@needs_cuda_build
@pytest.mark.parametrize("way", WAYS)
def test_a_forced_way_serves_all_numbers_of_rows(way: str, cache_dir: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    graph = fused_forced.GRAPHS["bias and gelu"]
    assert graph.rows
    arguments = [argument(spec) for spec in graph.specs]
    with (
        gpu.installed(),
        Lab(slow_fusions, cache_dir).open() as lab,
        forced_fusion(way) as taken,
    ):
        code = lab.lower_dynamic(
            graph.function, *arguments, gemm_backends=ALL_BACKENDS, max_candidates=4
        )
    assert all(kernel.startswith(WAYS[way]) for kernel in taken)
    assert fused_forced.calls(code)["cutlass"] == (way == "cutlass")


def clocked(fused_ms: float) -> Callable[[BenchCandidate], float]:
    """Return a clock by which a fused Triton kernel takes so long, and all else as a GPU could."""

    def clock(candidate: BenchCandidate) -> float:
        kernel = candidate.kernel
        if not isinstance(kernel, SequenceKernel):
            return 0.0100 if isinstance(kernel, ExternKernel) else 0.0102
        if is_visited(candidate):
            return 0.0500
        return fused_ms if len(kernel.parts) == 1 else 0.0200

    return clock


@needs_cuda_build
@pytest.mark.parametrize(("fused_ms", "wanted"), [(0.009, 0), (0.040, 1)])
def test_the_clock_decides_where_nothing_is_forced(
    fused_ms: float, wanted: int, cache_dir: Path
) -> None:
    with gpu.installed(), Lab(clocked(fused_ms), cache_dir).open() as lab:
        code = code_of(fused_forced.GRAPHS["bias and gelu"], lab)
    assert fused_forced.calls(code) == {"cutlass": 0, "triton": 1, "others": wanted}
