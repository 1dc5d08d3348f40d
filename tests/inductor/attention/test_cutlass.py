"""CUTLASS attention in the place of an operator of torch's: what is called, with what, and what it writes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.virtualized import V

from inductor_plugin.config import Config
from inductor_plugin.inductor.candidates import template_choice
from inductor_plugin.template import Candidate, CudaSource, Failed
from tests.support.attention.graphs import (
    Shape,
    backward,
    body,
    calls,
    forward,
    lowered,
    outputs,
)
from tests.support.attention.marks import ODD, ON_FAKE_GPU, UNKNOWN
from tests.support.lowering import Lab
from tests.support.native.aoti import programs

pytest.importorskip("cutlass_library")
pytestmark = ON_FAKE_GPU

GRAPH: Any = SimpleNamespace(aot_mode=False)
SHARED = Shape(queries=256, keys=300, kv_heads=2)
OURS = r"cutlass_fmha\..*"
CALL = re.compile(r"^ *torch\.ops\.inductor_plugin\.(cutlass_fmha\w*)\.out\((.*)\)$", re.M)


def call(code: str) -> tuple[str, list[str], list[str]]:
    """Return the one call of a CUTLASS attention: the operator, its operands, the kernel and the rest."""
    ((op, _),) = CALL.findall(body(code))
    ((line),) = (match.group().strip() for match in CALL.finditer(body(code)))
    (call_node,) = [
        node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call) and node.keywords
    ]
    call_arguments = [ast.unparse(arg) for arg in call_node.args]
    kernel = next(i for i, argument in enumerate(call_arguments) if "@" in argument)
    named = [f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in call_node.keywords]
    return op, call_arguments[:kernel], [*call_arguments[kernel:], *named]


@pytest.mark.parametrize("shape", [ODD, UNKNOWN], ids=["static", "unknown"])
@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_a_forward(kind: str, shape: Shape, cache_dir: Path) -> None:
    code, lab = lowered(forward(kind, shape), OURS, cache_dir)
    assert calls(code) == []
    op, operands, rest = call(code)
    assert op == "cutlass_fmha"
    assert len(operands) == 4  # q, k, v, lse
    kernel, *arguments, out = rest
    assert re.fullmatch(r"'cutlass_fmha_sm90_\w+@[0-9a-f]{64}'", kernel)
    assert arguments == ["0.125", "-1", "0", "False"]
    assert out.removeprefix("out=") in outputs(code)[0]
    # efficient's statistics are padded: another buffer is given back.
    assert (operands[3] in outputs(code)[1]) == (kind != "efficient")
    assert len(outputs(code)) == 2
    assert lab.record()["decision"]["winner"].startswith("cutlass_fmha.")


@pytest.mark.parametrize(("kind", "at_end"), [("flash", 1), ("cudnn", 0)])
def test_a_program_of_aotinductor_calls_the_kernel_without_python(
    kind: str, at_end: int, cache_dir: Path, inductor_cache: Path
) -> None:
    with programs() as taken:
        code, _ = lowered(forward(kind, SHARED), OURS, cache_dir)
    assert f"AttentionSite{{0, {at_end}, -1, 0, 0.125f}}" in code
    call = r"if \(!launch_buf1\(\{.*arg0_1.*, .*arg1_1.*, .*arg2_1.*, buf0\}, buf1\)\) throw"
    assert re.search(call, code)
    ((library,),) = taken
    assert f'("{Path(library).name}", "{Path(library).parent}", ' in code


def test_lse_that_nobody_reads_is_not_written(cache_dir: Path) -> None:
    code, _ = lowered(forward("flash", ODD, keep=(0,)), OURS, cache_dir)
    op, operands, _ = call(code)
    assert op == "cutlass_fmha_output"
    assert len(operands) == 3
    assert body(code).count("empty_strided_cuda") == 1  # out


@pytest.mark.parametrize("shape", [ODD, UNKNOWN], ids=["static", "unknown"])
@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_a_gradient(kind: str, shape: Shape, cache_dir: Path) -> None:
    code, lab = lowered(backward(kind, shape), OURS, cache_dir)
    assert calls(code) == []
    op, operands, rest = call(code)
    assert op == "cutlass_fmha_backward"
    assert len(operands) == 9  # do, q, k, v, out, lse, delta, dq, dv
    given_back = outputs(code)
    dk = rest[-1].removeprefix("out=")
    # What the call writes, given back in the order dq, dk, dv.
    assert [
        operand in tensor
        for operand, tensor in zip([operands[7], dk, operands[8]], given_back, strict=True)
    ] == [True] * 3
    assert lab.record()["decision"]["winner"].startswith("cutlass_fmha.")


SUBSETS = [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]]


@pytest.mark.parametrize("keep", SUBSETS, ids=str)
def test_what_nobody_reads_has_memory_all_the_same(keep: list[int], cache_dir: Path) -> None:
    code, _ = lowered(backward("flash", ODD, keep=tuple(keep)), OURS, cache_dir)
    _, operands, rest = call(code)
    dk = rest[-1].removeprefix("out=")
    text = body(code)
    for written in (operands[7], dk, operands[8]):
        assert re.search(rf"^ *{written} = ", text, re.MULTILINE), f"{written} is not allocated"
        assert text.index(f"{written} = ") < text.index("cutlass_fmha_backward.out(")
    assert len(outputs(code)) == len(keep)


def test_statistics_alone(cache_dir: Path) -> None:
    code, _ = lowered(forward("flash", ODD, keep=(1,)), OURS, cache_dir)
    _, operands, rest = call(code)
    out = rest[-1].removeprefix("out=")
    assert re.search(rf"^ *{out} = ", body(code), re.MULTILINE)
    assert operands[3] in outputs(code)[0]


def test_shared_heads_and_other_lengths(cache_dir: Path) -> None:
    code, _ = lowered(forward("flash", SHARED, causal=False), OURS, cache_dir)
    assert call(code)[0] == "cutlass_fmha"


def test_the_two_directions_may_have_other_winners(cache_dir: Path) -> None:
    first, _ = lowered(forward("flash", ODD), OURS, cache_dir / "a")
    second, _ = lowered(backward("flash", ODD), "triton_attention_backward", cache_dir / "b")
    assert call(first)[0] == "cutlass_fmha"
    assert CALL.findall(body(second)) == []
    assert "triton_tem_fused" in body(second)


@pytest.fixture(name="deterministic")
def deterministic_algorithms() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_sums_in_no_fixed_order_do_not_run_where_they_must_be_the_same(cache_dir: Path) -> None:
    code, _ = lowered(backward("flash", ODD), OURS, cache_dir)
    assert CALL.findall(body(code)) == []
    assert calls(code) == ["_scaled_dot_product_flash_attention_backward"]


@pytest.mark.usefixtures("deterministic")
def test_such_a_kernel_is_not_offered_there() -> None:
    kernel = CudaSource("a::b.out", "b", "", "sm_90a", deterministic=False)
    call: Any = None  # it is not asked
    with V.set_graph_handler(GRAPH):
        choice = template_choice._choice(Candidate("a", "b", {}, kernel), call, Config())
    assert isinstance(choice, Failed)
    assert "no fixed order" in choice.reason


def offered(lab: Lab) -> set[str]:
    """Return the beginnings of the candidates' names of the one problem."""
    names = lab.record()["candidates"]
    return {re.split(r"[.-]", name)[0] for name in names}


@pytest.mark.parametrize(
    ("backends", "wanted"),
    [
        ("CUTLASS", {"cutlass_fmha"}),
        ("TRITON", {"triton_attention"}),
        ("CUDNN,EFFICIENT", {"attention_cudnn", "attention_efficient"}),
        ("", {"cutlass_fmha", "triton_attention", "attention_cudnn", "attention_efficient"}),
    ],
)
def test_backends_that_are_named(backends: str, wanted: set[str], cache_dir: Path) -> None:
    _, lab = lowered(forward("flash", ODD), "none", cache_dir, attention_backends=backends)
    assert offered(lab) == {"attention_flash", *wanted}
    rejected = lab.record()["rejected"]
    reasons = [why for why in rejected.values() if "attention_backends is" in why]
    assert bool(reasons) == bool(backends)


def test_backends_of_matrix_products_say_nothing_of_attention(cache_dir: Path) -> None:
    code, lab = lowered(
        forward("flash", ODD), "attention_flash", cache_dir, gemm_backends="CUTLASS"
    )
    assert {"attention_flash", "triton_attention", "cutlass_fmha"} <= offered(lab)
    assert calls(code) == ["_scaled_dot_product_flash_attention"]
