"""Which kernels are offered for a product with an epilogue, and in which order operands follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inductor_plugin.ops import imports_of
from inductor_plugin.ops.epilogue_eval import evaluate
from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import decode
from inductor_plugin.problem.target import target
from inductor_plugin.template import Candidate, CudaSource
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.evt import Evt, Node, Output
from inductor_plugin.templates.cutlass.evt import TreeOperand as Leaf
from inductor_plugin.templates.cutlass.fused import LIMIT, absorbed
from inductor_plugin.templates.cutlass.gemm import CutlassGemm
from inductor_plugin.templates.cutlass.limits import (
    SM90_SHARED_BYTES,
    epilogue_bytes,
    why_not_buildable,
)
from inductor_plugin.templates.cutlass.source import why_not_generated

M, N, K = 2048, 4096, 1024
FULL = Access("full", "bfloat16", M * N, (N, 1))
GATED = Epilogue(
    (M, N),
    "bfloat16",
    (
        Step("product"),
        Step("relu", (0,)),
        Step("load", (), 0),
        Step("mul", (1, 2)),
        Step("store", (3,), 0),
    ),
    (FULL,),
    (FULL,),
)


def operand(*size: int, dtype: str = "bfloat16", stride: tuple[int, ...] = ()) -> Operand:
    dense = tuple(torch.empty(size, device="meta").stride())
    return Operand(size, stride or dense, dtype, "cuda")


A, B, D = operand(M, K), operand(K, N), operand(M, N)
MM = Problem("mm", (A, B), D, target=target("H100"))
ADDMM = Problem("addmm", (operand(N), A, B), D, (("alpha", "1"), ("beta", "1")), target=MM.target)


def offered(problem: Problem = MM, epilogue: Epilogue = GATED) -> list[Candidate]:
    fused = CutlassGemm().with_epilogue(problem, epilogue)
    assert not isinstance(fused, str), fused
    return [*fused]


def reason(problem: Problem = MM, epilogue: Epilogue = GATED) -> str:
    fused = CutlassGemm().with_epilogue(problem, epilogue)
    assert isinstance(fused, str)
    return fused


def test_a_few_kernels_of_different_tiles_are_offered() -> None:
    offers = offered()
    assert 2 <= len(offers) <= LIMIT
    assert len({offer.name for offer in offers}) == len(offers)
    for candidate in offers:
        kernel = candidate.kernel
        assert isinstance(kernel, CudaSource)
        assert kernel.op == "inductor_plugin::cutlass_mm_epilogue.out"
        assert imports_of(kernel.op) == ("inductor_plugin.ops.gemm_epilogue",)
        assert candidate.config["schedule"] in ("pingpong", "cooperative")
        assert str(candidate.config["epilogue_digest"]) in candidate.name
        assert kernel.symbol in candidate.name
        *launch, text = kernel.arguments
        assert launch[0] == "tt"
        assert launch[3] == 1
        assert decode(str(text)).steps == GATED.steps
        assert why_not_generated() or "Sm90EVT" in kernel.text


def test_kernels_without_an_epilogue_are_what_they_were() -> None:
    plain = CutlassGemm().candidates(MM)
    assert len(plain) > 1
    for candidate in plain:
        assert "epilogue" not in candidate.config
        assert "evt" not in candidate.name


def test_what_addmm_adds_is_the_first_operand() -> None:
    whole = absorbed(ADDMM, GATED)
    assert [read.pattern for read in whole.reads] == ["row", "full"]
    assert whole.describe() == "mul(relu(add(product, row)), full)"
    kernel = offered(ADDMM)[0].kernel
    assert isinstance(kernel, CudaSource)
    assert decode(str(kernel.arguments[-1])).steps == whole.steps


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0), (1.0, 0.0), (3.0, 0.0)])
@pytest.mark.parametrize("readers", [0, 1])
def test_an_absorbed_sum_computes_what_addmm_and_the_epilogue_do(
    alpha: float, beta: float, readers: int
) -> None:
    problem = replace(ADDMM, arguments=(("alpha", str(alpha)), ("beta", str(beta))))
    whole = absorbed(problem, replace(GATED, readers=readers))
    assert whole.readers == 0
    product, bias, gate = torch.randn(M, N), torch.randn(N), torch.randn(M, N)
    operands = [bias, gate] if beta else [gate]
    actual = evaluate(whole, product, [tensor.to(torch.bfloat16) for tensor in operands])
    summed = alpha * product + (beta * bias.bfloat16().float() if beta else 0)
    result = (summed.relu() * gate.bfloat16()).bfloat16()
    wanted = (summed.bfloat16(), result) if readers else (result,)
    assert len(actual) == len(wanted)
    for value, expected in zip(actual, wanted, strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(
    ("bias", "pattern", "stride"),
    [
        (operand(N), "row", (0, 1)),
        (operand(1, N), "row", (0, 1)),
        (operand(M, 1), "column", (1, 0)),
        (operand(M, N), "full", (N, 1)),
        (operand(M, N, stride=(0, 1)), "row", (0, 1)),
        (operand(1), "scalar", (0, 0)),
    ],
)
def test_a_bias_lies_under_d_as_its_strides_say(
    bias: Operand, pattern: str, stride: tuple[int, ...]
) -> None:
    access = absorbed(replace(ADDMM, inputs=(bias, A, B)), GATED).reads[0]
    assert (access.pattern, access.stride) == (pattern, stride)


def test_batches_and_int8_are_fused_too() -> None:
    size = (4, M, N)
    full = Access("full", "bfloat16", 4 * M * N, (M * N, N, 1))
    batched = replace(GATED, size=size, reads=(full,), writes=(full,))
    bmm = replace(MM, op="bmm", inputs=(operand(4, M, K), operand(4, K, N)), output=operand(*size))
    assert offered(bmm, batched)
    steps = (
        Step("product"),
        Step("to_dtype", (0,), "float32"),
        Step("load", (), 0),
        Step("mul", (1, 2)),
        Step("store", (3,), 0),
    )
    column = Access("column", "float32", M, (1, 0))
    dequantized = Epilogue((M, N), "int32", steps, (column,), (FULL,))
    b = operand(K, N, dtype="int8", stride=(1, K))
    whole = replace(
        MM,
        op="int_mm",
        inputs=(operand(M, K, dtype="int8"), b),
        output=operand(M, N, dtype="int32"),
    )
    offers = offered(whole, dequantized)
    assert {str(offer.config["d"]) for offer in offers} == {"bf16"}
    assert {str(offer.config["accumulator"]) for offer in offers} == {"s32"}


def test_the_reason_says_what_does_not_fit() -> None:
    assert "sm_90a and sm_100a" in reason(replace(MM, target=target("A100")))
    assert "sm_90a and sm_100a" in reason(replace(MM, target=None))
    assert "not scaled_mm" in reason(replace(MM, op="scaled_mm"))
    assert "it reduces" in reason(MM, replace(GATED, reduction="sum"))
    float64 = replace(MM, inputs=(replace(A, dtype="float64"), B))
    assert "float64" in reason(float64)
    narrow = replace(MM, inputs=(A, operand(K, 40)), output=operand(M, 40))
    full = Access("full", "bfloat16", M * 40, (48, 1))
    wide = replace(GATED, size=(M, 40), reads=(full,), writes=(full,))
    assert offered(narrow, wide)
    odd = replace(MM, inputs=(A, operand(K, 44, stride=(48, 1))), output=operand(M, 44))
    assert "rows of 44 bf16 do not end" in reason(odd, replace(wide, size=(M, 44)))
    dynamic = replace(MM, dynamic=(SizeClass(1, 1, 2049, 4096, N),))
    assert "known only at run time" in reason(dynamic)
    assert offered(replace(MM, dynamic=(SizeClass(0, 0, 1025, 2048, M),)))


TREE = Evt((Node("sums"), Node("relu", (0,))), (), (Output(1, "bf16"),))
KERNEL = GemmConfig(
    "sm_90a",
    (128, 128, 64),
    (2, 1, 1),
    "pingpong",
    "bf16",
    "bf16",
    "bf16",
    "bf16",
    "f32",
    epilogue=TREE,
)
LARGE = Evt(
    (
        Node("sums"),
        Node("operand"),
        Node("operand", (), 1),
        Node("add", (0, 1)),
        Node("add", (3, 2)),
    ),
    (Leaf("source", "f32"), Leaf("full", "f32")),
    (Output(0, "f32"), Output(3, "f32"), Output(4, "f32")),
)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(KERNEL, schedule="stream_k", tile=(128, 128, 64)), "only pingpong"),
        (replace(KERNEL, bias="row"), "are operands of it"),
        (replace(KERNEL, d="f32", align_d=4), "reads f32 and writes bf16, not bf16 and f32"),
        (replace(KERNEL, c="f32", align_c=4), "not f32 and bf16"),
        (replace(KERNEL, align_d=1), "only pingpong"),
        (
            replace(
                KERNEL,
                arch="sm_80",
                schedule="multistage",
                cluster=(1, 1, 1),
                tile=(128, 128, 32),
                stages=3,
            ),
            "sm_80 kernels have no epilogue",
        ),
    ],
)
def test_a_kernel_whose_epilogue_cannot_be_is_unbuildable(config: GemmConfig, message: str) -> None:
    assert message in (why_not_buildable(config) or "")


def test_an_epilogue_leaves_room_for_two_stages() -> None:
    assert why_not_buildable(KERNEL) is None
    large = replace(KERNEL, c="f32", d="f32", align_c=4, align_d=4, epilogue=LARGE)
    assert why_not_buildable(large) is None
    wide = replace(large, schedule="cooperative", tile=(128, 256, 64))
    stage = (128 + 256) * 64 * 2
    assert epilogue_bytes(wide) + 2 * stage > SM90_SHARED_BYTES
    assert "leaves too little" in (why_not_buildable(wide) or "")
    assert "sm_100a kernels read one operand" in (
        why_not_buildable(replace(large, arch="sm_100a", schedule="one_sm")) or ""
    )
