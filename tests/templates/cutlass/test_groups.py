from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.target import target
from inductor_plugin.template import CudaSource
from inductor_plugin.templates.cutlass.choices import choices
from inductor_plugin.templates.cutlass.gemm import CutlassGemm
from inductor_plugin.templates.cutlass.groups import grouped_facts_of
from inductor_plugin.templates.cutlass.order import shape_of
from inductor_plugin.templates.cutlass.problem import GemmFacts


def operand(size: tuple[int, ...], stride: tuple[int, ...], dtype: str = "bfloat16") -> Operand:
    return Operand(size, stride, dtype, "cuda")


A = operand((4096, 512), (512, 1))
B = operand((8, 512, 1024), (512 * 1024, 1, 512))
OFFSETS = operand((8,), (1,), "int32")
OUTPUT = operand((4096, 1024), (1024, 1))
PROBLEM = Problem("grouped_mm", (A, B, OFFSETS), OUTPUT)


def facts(problem: Problem) -> GemmFacts:
    group = grouped_facts_of(problem)
    assert isinstance(group, GemmFacts), group
    return group


def test_groups_of_rows() -> None:
    gemm = facts(PROBLEM)
    assert (gemm.m, gemm.n, gemm.k, gemm.batch, gemm.grouped) == (4096, 1024, 512, 8, True)
    assert (gemm.layout_a, gemm.layout_b) == ("row", "column")
    assert (gemm.align_a, gemm.align_b, gemm.align_d) == (8, 8, 8)


def test_the_step_between_groups_counts_for_the_alignment() -> None:
    odd = replace(B, stride=(512 * 1024 + 2, 1, 512))
    assert facts(replace(PROBLEM, inputs=(A, odd, OFFSETS))).align_b == 2


def test_what_divides_the_steps_of_a_group_counts() -> None:
    def aligned(*divisors: int) -> int:
        return facts(replace(PROBLEM, inputs=(A, replace(B, divisors=divisors), OFFSETS))).align_b

    assert aligned(16, 1, 16, 16) == 8
    assert aligned(2, 1, 16, 16) == 2
    assert aligned(16, 1, 4, 16) == 4
    assert aligned(16, 1, 16, 1) == 1


def test_groups_are_counted_in_sixteen_bits() -> None:
    many = 65536
    inputs = (A, replace(B, size=(many, 512, 1024)), replace(OFFSETS, size=(many,)))
    assert "65535 products at once" in str(grouped_facts_of(replace(PROBLEM, inputs=inputs)))


def test_the_number_of_rows_may_be_dynamic() -> None:
    rows = SizeClass(0, 0, 2049, 4096, 4096)
    groups = SizeClass(1, 0, 8, 8, 8)
    gemm = facts(replace(PROBLEM, dynamic=(rows, groups)))
    assert (gemm.align_a, gemm.align_b, gemm.align_d) == (8, 8, 8)
    inner = SizeClass(1, 1, 257, 512, 512)
    assert facts(replace(PROBLEM, dynamic=(inner,))).align_b == 1


def test_choices_of_groups_are_grouped_hopper_kernels() -> None:
    offered = choices(facts(PROBLEM), "sm_90a")
    assert not isinstance(offered, str)
    assert all(choice.config.grouped and choice.launch.name == "" for choice in offered)
    assert {choice.config.schedule for choice in offered} == {"pingpong", "cooperative"}
    assert "grouped kernels are sm_90a" in str(choices(facts(PROBLEM), "sm_80"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"op": "mm"}, "not mm"),
        ({"inputs": (A, B)}, "this one has 2 operands"),
        ({"inputs": (A, A, OFFSETS)}, "the rows of A alone"),
        ({"inputs": (A, replace(B, size=(0, 512, 1024)), OFFSETS)}, "no groups"),
        ({"inputs": (A, B, replace(OFFSETS, dtype="int64"))}, "8 int32 numbers"),
        ({"inputs": (A, B, replace(OFFSETS, size=(7,)))}, "8 int32 numbers"),
        ({"inputs": (A, B, replace(OFFSETS, stride=(2,)))}, "must be contiguous"),
        ({"inputs": (replace(A, stride=(1, 4096)), B, OFFSETS)}, "A must be row-major"),
        ({"inputs": (replace(A, dtype="float64"), B, OFFSETS)}, "float64"),
        ({"op": "scaled_grouped_mm"}, "it serves grouped_mm, not scaled_grouped_mm"),
    ],
)
def test_what_cannot_be_grouped_says_why(change: dict[str, Any], reason: str) -> None:
    assert reason in str(grouped_facts_of(replace(PROBLEM, **change)))


def test_the_template_serves_groups_on_hopper_alone() -> None:
    template = CutlassGemm()
    on = {name: replace(PROBLEM, target=target(name)) for name in ("H100", "A100", "B200")}
    assert template.reject(on["H100"]) is None
    for name in ("A100", "B200"):
        assert "grouped kernels are sm_90a" in str(template.reject(on[name]))
    assert "grouped_mm" in template.ops
    assert "scaled_grouped_mm" not in template.ops


def test_float32_is_refused_for_what_it_is() -> None:
    single = tuple(replace(tensor, dtype="float32") for tensor in (A, B))
    problem = replace(
        PROBLEM,
        inputs=(*single, OFFSETS),
        output=replace(OUTPUT, dtype="float32"),
        target=target("H100"),
    )
    reason = str(CutlassGemm().reject(problem))
    assert "from 16-bit floats or fp8, not from tf32" in reason


def test_a_candidate_calls_the_operator_of_groups() -> None:
    candidates = CutlassGemm().candidates(replace(PROBLEM, target=target("H100")))
    kernels = [candidate.kernel for candidate in candidates]
    assert 4 <= len(kernels) <= 16
    for kernel in kernels:
        assert isinstance(kernel, CudaSource)
        assert kernel.op == "inductor_plugin::cutlass_grouped_mm.out"
        assert kernel.arguments == ("tn", 1, 0, 1)
        assert kernel.arch == "sm_90a"
        assert kernel.symbol.endswith("_grouped")


def test_tiles_are_ranked_by_the_rows_of_one_group() -> None:
    shape = shape_of(facts(PROBLEM))
    assert (shape.m, shape.n, shape.k, shape.batch) == (512, 1024, 512, 8)
