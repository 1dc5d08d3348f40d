"""The benchmarks' lists and claims."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks.gemm import compile_speed, coverage
from benchmarks.gemm.products import KINDS, ORDERS, kind, problem
from benchmarks.gemm.shapes import LAYERS, ROWS, SOURCES, Layer, Shape, by_interest, shapes
from inductor_plugin.problem import Problem
from inductor_plugin.problem.target import target
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate, TritonSource
from tests.support.repository import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"


def layer(label: str) -> Layer:
    return next(layer_name for layer_name in LAYERS if layer_name.label == label)


def test_the_list_has_every_product_once_and_in_order_of_interest() -> None:
    assert len(shapes()) == len(LAYERS) * len(ROWS)
    assert set(by_interest()) == set(shapes())
    assert len(by_interest()) == len(shapes())
    assert len({shape.label for shape in shapes()}) == len(shapes())
    assert {layer_name.model for layer_name in LAYERS} == set(SOURCES)


def test_the_parameters_of_a_model_add_up() -> None:
    # Llama 3 8B has 8.03e9 parameters, 2 x 128256 x 4096 of them in its embeddings; 32 blocks.
    block = sum(
        layer_name.n * layer_name.k for layer_name in LAYERS if layer_name.model == "llama3-8b"
    )
    assert 32 * block + 2 * 128256 * 4096 == pytest.approx(8.03e9, rel=0.001)
    # Llama 3 70B: 70.6e9, 80 blocks; one GPU of eight holds an eighth of a block.
    whole, part = (
        sum(
            layer_name.n * layer_name.k
            for layer_name in LAYERS
            if layer_name.model == "llama3-70b" and layer_name.parallel == shared
        )
        for shared in (1, 8)
    )
    assert 80 * whole + 2 * 128256 * 8192 == pytest.approx(70.6e9, rel=0.001)
    assert 8 * part == whole
    # Qwen2.5 7B: 7.62e9, 28 blocks, 152064 words of 3584.
    block = sum(
        layer_name.n * layer_name.k for layer_name in LAYERS if layer_name.model == "qwen2.5-7b"
    )
    assert 28 * block + 2 * 152064 * 3584 == pytest.approx(7.62e9, rel=0.001)


@pytest.mark.parametrize("types", KINDS, ids=lambda kind_: kind_.name)
@pytest.mark.parametrize("order", ORDERS)
def test_operands_lie_as_the_order_says(types: Any, order: str) -> None:
    product = problem(Shape(layer("llama3-8b o"), 64), types, order, target("H200"))
    assert isinstance(product, Problem)
    a, b = product.inputs[:2]
    assert (a.size, b.size, product.output.size) == ((64, 4096), (4096, 4096), (64, 4096))
    assert (a.stride[1] == 1) == (order[0] == "t")
    assert (b.stride[1] == 1) == (order[1] == "t")
    assert product.op == {"none": "int_mm" if types.a == "int8" else "mm"}.get(
        types.scale, "scaled_mm"
    )


def test_a_bias_makes_another_operator() -> None:
    product = problem(Shape(layer("dit-xl fc1"), 64), kind("bf16"), "tn", None)
    assert isinstance(product, Problem)
    assert product.op == "addmm"
    assert product.inputs[0].size == (4608,)
    groups = problem(Shape(layer("mixtral-8x7b grouped_w2"), 64), kind("bf16"), "tn", None)
    assert isinstance(groups, Problem)
    assert groups.inputs[1].size == (8, 14336, 4096)
    assert groups.output.size == (128, 4096)


CHOSEN = [Shape(layer("llama3-8b o"), rows) for rows in (1, 64, 4096)]
TENSOR_CORES = ("bf16", "fp16")


@pytest.mark.parametrize("gpu", ["H200", "A100", "B200"])
def test_the_committed_coverage_is_what_the_templates_say(gpu: str) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    report = json.loads((RESULTS / "coverage.json").read_text())["gpus"][gpu]
    dense = [
        layer_name for layer_name in LAYERS if layer_name.label in ("llama3-8b o", "dit-xl fc2")
    ]
    some = [Shape(layer_, rows) for layer_ in dense for rows in (1, 256, 8192)]
    for key, cell in coverage.coverage(target(gpu), some).items():
        committed = report["/".join(key)]
        for side in ("cutlass", "triton"):
            missing = cell.products - getattr(cell, side)
            assert missing <= committed["products"] - committed[side], (gpu, key, side)
            reasons = {
                reason["reason"] for reason in committed["reasons"] if reason["side"] == side
            }
            assert {why for where, why in cell.reasons if where == side} <= reasons
        assert cell.neither == []


def test_what_is_served_and_what_is_not_on_a_hopper() -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    cells = coverage.coverage(target("H200"), CHOSEN)
    for (types, order), cell in cells.items():
        assert cell.products + sum(cell.no_call.values()) == len(CHOSEN)
        refused = types == "e4m3_block" or (types == "int8" and order != "tn")
        assert cell.cutlass == (0 if refused else cell.products)
        if types in TENSOR_CORES:
            assert cell.triton == cell.products
        assert cell.triton + cell.stock == cell.products
        assert not [why for _, why in cell.reasons if "for this operator" in why]


WHY_NOT_OURS = {
    "tf32": (
        "llama3-8b o",
        "'mm' serves it; ours are for 16-bit and 8-bit floats and int4 weights",
    ),
    "int8": ("llama3-8b o", "'mm' serves it; ours are for floats and int4 weights"),
    "e4m3_tensor": ("dit-xl fc1", "'mm' serves it; ours are for scales of rows and blocks"),
    "bf16": ("mixtral-8x7b grouped_w2", "'grouped_mm' serves it; ours are not for groups"),
}


@pytest.mark.parametrize("types", WHY_NOT_OURS)
def test_a_type_without_a_triton_template_of_ours_says_why(types: str) -> None:
    label, reason = WHY_NOT_OURS[types]
    cells = coverage.coverage(target("H200"), [Shape(layer(label), 64)], [kind(types)])
    (result,) = [why for side, why in cells[types, "tn"].reasons if side == "triton"]
    assert reason in result


@pytest.mark.parametrize("types", KINDS, ids=lambda kind_: kind_.name)
def test_no_purpose_is_denied_where_a_template_of_ours_serves(types: Any) -> None:
    for label in ("llama3-8b o", "dit-xl fc1", "mixtral-8x7b grouped_w2"):
        shape = Shape(layer(label), 64)
        if coverage.uncallable(shape, types, "tn", target("H200")) is not None:
            continue
        product = problem(shape, types, "tn", target("H200"))
        assert isinstance(product, Problem)
        answer = coverage.answer(default_registry(), product)
        for side in ("cutlass", "triton"):
            assert getattr(answer, side) == (side not in coverage.purpose(product)), answer


def test_what_torch_does_not_take_is_no_product() -> None:
    def reason(label: str, rows: int, types: str, order: str, gpu: str) -> str | None:
        return coverage.uncallable(Shape(layer(label), rows), kind(types), order, target(gpu))

    assert "on Hopper alone" in str(reason("llama3-8b o", 64, "e4m3_block", "tn", "B200"))
    assert reason("llama3-8b o", 64, "e4m3_block", "tn", "H200") is None
    assert "B by columns" in str(reason("llama3-8b o", 64, "e4m3_row", "tt", "B200"))
    assert "16 bytes" in str(reason("mixtral-8x7b grouped_w2", 1, "bf16", "nt", "H200"))
    assert reason("mixtral-8x7b grouped_w2", 16, "bf16", "nt", "H200") is None
    assert reason("mixtral-8x7b grouped_w2", 1, "bf16", "tn", "H200") is None


def test_a_kernel_for_a_newer_gpu_does_not_count() -> None:
    shape = Shape(layer("llama3-8b o"), 4096)
    cells = coverage.coverage(target("A100"), [shape], [kind("bf16")])
    reasons = [why for cell in cells.values() for side, why in cell.reasons if side == "triton"]
    assert reasons
    assert all(why.startswith("Inductor's own Triton template 'mm' serves it") for why in reasons)
    source = TritonSource("one", "", "tiles", (), 1, 4, capability=(9, 0))
    for gpu, reason in (("A100", "needs compute capability 9.0, A100 has less"), ("H200", "")):
        product = problem(shape, kind("bf16"), "tn", target(gpu))
        assert isinstance(product, Problem)
        assert reason in coverage.able(Candidate("one", "one", {}, source), product)
        assert bool(reason) == bool(coverage.able(Candidate("one", "one", {}, source), product))


def test_reasons_are_grouped_without_their_figures() -> None:
    said = "triton_fp8: 1 by 28672x4096 of float16 is too small for an sm_80 tile of 16"
    assert coverage.general(said) == (
        "triton_fp8: N by N of float16 is too small for an sm_80 tile of N"
    )


def test_limits_are_judged_by_the_figures() -> None:
    report: dict[str, Any] = {
        "ranking": {"max_ms": 4.0},
        "batch": {"cpu_s_per_kernel": 8.0, "mb_per_kernel": 0.06},
        "ratio": 0.13,
    }
    assert all(compile_speed.verdict(report).values())
    report["ratio"] = 0.3
    report["ranking"]["max_ms"] = 5.5
    kept = compile_speed.verdict(report)
    assert [name for name, good in kept.items() if not good] == ["ranking_ms", "ratio"]


def test_the_committed_compile_figures_keep_the_limits() -> None:
    report = json.loads((RESULTS / "compile_speed_cpu.json").read_text())
    assert report["limits"] == compile_speed.LIMITS
    assert report["batch"]["kernels"] == 8
    assert report["ratio"] == pytest.approx(
        report["batch"]["cpu_s"] / report["batch"]["kernels"] / report["inductor"]["cpu_s"]
    )
    assert all(compile_speed.verdict(report).values())
    assert "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED" in report["inductor"]["flags"]


def test_ranking_takes_few_calls() -> None:
    """Its 5 ms are in the committed file: a slow machine takes 9 ms for what took 2.7 there."""
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    assert 1_000 < compile_speed.ranking_calls() < 30_000


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
def test_inductors_way_is_inductors_own() -> None:
    headers = compile_speed.inductors_headers()
    assert '#include "cutlass/gemm/device/gemm_universal_adapter.h"' in headers
    assert "#include <iostream>" in headers
    assert len(headers) > 20
