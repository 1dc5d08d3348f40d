"""Attention on a CPU: ATen's fused kernel and the decomposed form in turn, run and compared with eager."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.nn.functional import scaled_dot_product_attention as sdpa

import inductor_plugin
from tests.support.attention.graphs import only
from tests.support.lowering import Lab

pytestmark = [pytest.mark.usefixtures("inductor_cache"), pytest.mark.compat]

MATH = r"attention_math\.attention_math(_backward)?"
ATEN = "attention_cpu(_backward)?"


def compiled(function: Callable[..., Any], cache_dir: Path, **how: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    options = inductor_plugin.options(cache_dir=str(cache_dir), table="off", progress="off")
    return torch.compile(function, options=options, **how)


def inputs(
    *sizes: tuple[int, ...], dtype: torch.dtype = torch.float32, grad: bool = True
) -> list[torch.Tensor]:
    return [torch.randn(size, dtype=dtype, requires_grad=grad) for size in sizes]


def same(function: Any, ours: Any, operands: list[torch.Tensor], tolerance: float) -> None:
    """Compare outputs and gradients, with their strides."""
    wanted, got = function(*operands), ours(*operands)
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)
    assert got.stride() == wanted.stride()
    if not wanted.requires_grad:
        return
    step = torch.randn_like(wanted)
    leaves = [operand for operand in operands if operand.requires_grad]
    theirs = torch.autograd.grad(wanted, leaves, step)
    mine = torch.autograd.grad(got, leaves, step)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=4 * tolerance, rtol=4 * tolerance)
        assert a.stride() == b.stride()


def operators(lab: Lab) -> list[str]:
    return [task.problem.op for task in lab.tasks]


@pytest.mark.parametrize(
    ("kernels", "causal"), [(33, False), (33, True), (50, False)], ids=["full", "causal", "cross"]
)
@pytest.mark.parametrize("winner", [MATH, ATEN], ids=["math", "aten"])
def test_whoever_wins_is_right(winner: str, kernels: int, causal: bool, cache_dir: Path) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v, is_causal=causal).sin()

    operands = inputs((2, 3, 33, 16), (2, 3, kernels, 16), (2, 3, kernels, 16))
    with Lab(only(winner), cache_dir).open() as lab:
        same(attend, compiled(attend, cache_dir), operands, 1e-5)
    assert operators(lab) == ["attention", "attention_backward"]
    for task in lab.tasks:
        suffix = task.problem.op.removeprefix("attention")
        assert {entry.name for entry in task.entries} == {
            f"attention_cpu{suffix}",
            f"attention_math::attention_math{suffix}",
        }


@pytest.mark.parametrize("winner", [MATH, ATEN], ids=["math", "aten"])
def test_a_mask_is_added(winner: str, cache_dir: Path) -> None:
    mask = torch.randn(2, 1, 20, 30).masked_fill_(torch.rand(2, 1, 20, 30) < 0.3, -torch.inf)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v, attn_mask=mask, scale=0.3)

    operands = inputs((2, 4, 20, 16), (2, 4, 30, 16), (2, 4, 30, 16))
    with Lab(only(winner), cache_dir).open() as lab:
        same(attend, compiled(attend, cache_dir), operands, 1e-5)
    assert [dict(task.problem.arguments)["operands"] for task in lab.tasks] == [
        "'q,k,v,bias,lse'",
        "'do,q,k,v,out,lse,bias,dq,dv'",
    ]


@pytest.mark.parametrize(
    ("marked", "named"),
    [((2,), "Sq, Sk"), ((0,), "B"), ((0, 2), "B, Sq, Sk"), ((), "")],
    ids=["length", "batch", "both", "none"],
)
def test_sizes_known_at_run_time_are_left_to_atens_kernel(
    marked: tuple[int, ...], named: str, cache_dir: Path
) -> None:
    # Measured at one length it may win, and at others take 3.3 times as long.
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v)

    operands = inputs(*[(2, 4, 33, 16)] * 3)
    for operand in operands:
        for dim in marked:
            torch._dynamo.mark_dynamic(operand, dim)
    with Lab(only(MATH), cache_dir).open() as lab:
        ours = compiled(attend, cache_dir)
        same(attend, ours, operands, 1e-5)
        if 2 in marked:
            same(attend, ours, inputs(*[(2, 4, 70, 16)] * 3), 1e-5)
    records = [json.loads(path.read_text()) for path in cache_dir.glob("records/*/*/*.json")]
    assert sorted(kept["op"] for kept in records) == ["attention", "attention_backward"]
    for record in records:
        reason = record["rejected"].get("attention_math", "")
        assert reason.startswith(f"{named} known at run time only") if named else not reason
        ours_won = record["decision"]["winner"].startswith("attention_math.")
        assert ours_won == (not named)
    assert len(lab.tasks) == (0 if named else 2)


@pytest.mark.parametrize("dim", [1, 3], ids=["heads", "head dim"])
def test_heads_that_are_marked_dynamic_are_left_to_atens_kernel(dim: int, cache_dir: Path) -> None:
    """A guard that fixes them would fail the compile (`torch._dynamo.mark_dynamic`)."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v)

    operands, wider = inputs(*[(2, 4, 33, 16)] * 3), [2, 4, 33, 16]
    wider[dim] *= 2
    for operand in operands:
        torch._dynamo.mark_dynamic(operand, dim)
    with Lab(only(MATH), cache_dir).open() as lab:
        ours = compiled(attend, cache_dir)
        same(attend, ours, operands, 1e-5)
        same(attend, ours, inputs(*[tuple(wider)] * 3), 1e-5)
    assert lab.tasks == []


def test_lengths_known_at_run_time(cache_dir: Path) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)

    with Lab(only(ATEN), cache_dir).open() as lab:
        ours = compiled(attend, cache_dir, dynamic=True)
        for batch, length in ((2, 33), (3, 17), (5, 64)):
            same(attend, ours, inputs(*[(batch, length, 4, 16)] * 3), 1e-5)
    assert lab.tasks == []


@pytest.mark.parametrize("winner", [MATH, ATEN], ids=["math", "aten"])
def test_sixteen_bits_without_a_gradient(winner: str, cache_dir: Path) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v, is_causal=True)

    operands = inputs(*[(2, 3, 40, 32)] * 3, dtype=torch.bfloat16, grad=False)
    with Lab(only(winner), cache_dir).open() as lab:
        same(attend, compiled(attend, cache_dir), operands, 2e-2)
    (task,) = lab.tasks
    assert dict(task.problem.arguments)["operands"] == "'q,k,v'"


def test_dropout_is_left_to_inductor_and_said(cache_dir: Path) -> None:
    aten: Any = torch.ops.aten

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.25)[0]

    operands = inputs(*[(1, 2, 8, 16)] * 3, grad=False)
    with Lab(only(ATEN), cache_dir).open() as lab:
        ours = compiled(attend, cache_dir)
        with pytest.raises(RuntimeError, match=r"(?i)dropout"):
            ours(*operands)
    assert lab.tasks == []
    assert "dropout of 0.25" in lab.record()["rejected"]["attention"]


@pytest.mark.slow
def test_two_candidates_are_measured(cache_dir: Path) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k, v, is_causal=True)

    operands = inputs(*[(2, 4, 64, 32)] * 3)
    same(attend, compiled(attend, cache_dir), operands, 1e-5)
    records = [json.loads(path.read_text()) for path in cache_dir.glob("records/*/*/*.json")]
    assert sorted(kept["op"] for kept in records) == ["attention", "attention_backward"]
    for record in records:
        measured = [
            candidate for candidate in record["candidates"].values() if candidate["status"] == "ok"
        ]
        assert len(measured) == 2
        assert all(candidate["samples_ms"] for candidate in measured)
        assert record["decision"]["library"].startswith("attention_cpu")


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qk", "qv", "kv"])
@pytest.mark.parametrize("winner", [MATH, ATEN], ids=["math", "aten"])
def test_gradients_of_some_alone(winner: str, wanted: str, cache_dir: Path) -> None:
    tensors = [torch.randn(2, 3, 20, 16, requires_grad=name in wanted) for name in "qkv"]
    with Lab(only(winner), cache_dir).open():
        same(sdpa, compiled(lambda q, k, v: sdpa(q, k, v), cache_dir), tensors, 1e-5)


def test_statistics_alone(cache_dir: Path) -> None:
    def statistics(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return inductor_plugin.fmha(q, k, v, causal=True, return_lse=True)[1]

    operands = inputs(*[(2, 3, 20, 16)] * 3, grad=False)
    with Lab(only(MATH), cache_dir).open():
        same(statistics, compiled(statistics, cache_dir), operands, 1e-5)
