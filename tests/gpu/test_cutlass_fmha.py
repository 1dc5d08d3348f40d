"""CUTLASS attention kernels on a GPU against the reference in float64. Compiled, not yet run on a GPU."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inductor_plugin.attention import cutlass
from inductor_plugin.attention.blockwise import result
from inductor_plugin.kernels import nvcc
from inductor_plugin.kernels.nvcc import Toolkit
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.problem.attention import Mask, attention_of
from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass_attention import source
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from inductor_plugin.templates.cutlass_attention.fmha import configs
from inductor_plugin.worker.child import compile as compile_child
from inductor_plugin.worker.jobs import CppCompileJob, Event
from tests.support.attention import reference
from tests.support.attention.problems import attention

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
UNITS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float8_e4m3fn: 2.0**-6}
"""What rounding weights and result costs; half a unit of 8 bits in each weight is less in their sum."""
MASKS = [
    Mask(),
    Mask(right=0),
    Mask(right=0, bottom_right=True),
    Mask(left=100, right=0, bottom_right=True),
    Mask(left=17, right=40),
    Mask(left=0, right=0, bottom_right=True),
    Mask(left=64),
]
LENGTHS = [(256, 256), (1000, 1000), (130, 777), (777, 130), (1, 65), (63, 1), (515, 2048)]


def offered(*, backward: bool) -> list[FmhaConfig]:
    """Return every kernel that any head and type has."""
    halves, narrow = ("bfloat16", "float16"), "float8_e4m3fn"
    wanted = list(itertools.product((32, 64, 128) if backward else (32, 64, 128, 256), halves))
    wanted += [] if backward else [(dim, narrow) for dim in (64, 128, 256)]
    return [
        one
        for dim, dtype in wanted
        for one in configs(
            attention_of(attention(dim=dim, dtype=dtype, backward=backward)), target("H100")
        )
    ]


FORWARD, BACKWARD = offered(backward=False), offered(backward=True)


@pytest.fixture(scope="session", name="kernels")
def all_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each kernel is called, by its configuration's name; compiled in batches of four."""
    toolkit = nvcc.find("", dict(os.environ))
    if not isinstance(toolkit, Toolkit):
        pytest.skip(toolkit.reason)
    found: dict[str, str] = {}
    for group in (FORWARD, BACKWARD):
        for at in range(0, len(group), 4):
            found.update(compiled(toolkit, group[at : at + 4], tmp_path_factory.mktemp("fmha")))
    return found


def compiled(toolkit: Toolkit, batch: Sequence[FmhaConfig], folder: Path) -> dict[str, str]:
    texts = [source.source(one) for one in batch]
    sources = tuple(
        CppSource(hashlib.sha256(text.encode()).hexdigest(), text, one.name)
        for text, one in zip(texts, batch, strict=True)
    )

    def ignore(event: Event) -> None:
        del event

    job = CppCompileJob(sources, nvcc.command(toolkit, "sm_90a"), str(folder), 1200)
    outcomes = compile_child.run(job, ignore)
    assert [one.status for one in outcomes] == ["ok"] * len(batch), outcomes
    return {
        config.name: f"{one.symbol}@{one.library}"
        for config, one in zip(batch, outcomes, strict=True)
    }


def rows_of(heads: int, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Return random numbers [2, heads, rows, dim], a view of [2, rows, heads, dim] as models make it."""
    made = torch.randn(2, rows, heads, dim, device="cuda", dtype=torch.float32)
    return made.to(dtype).transpose(1, 2)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Compare with what rounding P and the result may cost for operands of a type, and a factor for sums."""
    error = (found.double() - expected).abs().max()
    scale = expected.abs().max().clamp(min=1e-3)
    assert torch.isfinite(found).all()
    assert error <= 4 * UNITS[dtype] * scale, f"error {error:.2e} of {scale:.2e}"


def given_mask(mask: Mask) -> tuple[int, int, bool]:
    return mask.left, mask.right, mask.bottom_right


@pytest.mark.parametrize("config", FORWARD, ids=lambda one: one.name)
@pytest.mark.parametrize(("sq", "sk"), LENGTHS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_forward(
    kernels: dict[str, str], config: FmhaConfig, sq: int, sk: int, kv_heads: int
) -> None:
    torch.manual_seed(0)
    dtype = DTYPES[config.element]
    step = 16 // dtype.itemsize
    sums_off = 1e-2 if dtype.itemsize == 1 else 1e-3
    for dim in (config.dim, config.dim - step):
        q = rows_of(4, sq, dim, dtype)
        k, v = rows_of(kv_heads, sk, dim, dtype), rows_of(kv_heads, sk, dim, dtype)
        for mask in MASKS:
            expected, sums = reference.forward(q, k, v, mask=mask, scale=0.2)
            out = torch.empty_like(q, dtype=result(dtype))
            lse = torch.empty(2, 4, sq, device="cuda")
            told = (kernels[config.name], 0.2, *given_mask(mask))
            cutlass.cutlass_fmha(q, k, v, lse, *told, out=out)
            close(out, expected, dtype)
            blind = torch.isposinf(sums)
            assert torch.equal(torch.isposinf(lse), blind)
            torch.testing.assert_close(
                lse[~blind].double(), sums[~blind], atol=sums_off, rtol=sums_off
            )
            assert not out[blind].any()
            alone = torch.empty_like(out)
            cutlass.cutlass_fmha_output(q, k, v, *told, out=alone)
            assert torch.equal(alone, out)


@pytest.mark.parametrize("config", BACKWARD, ids=lambda one: one.name)
@pytest.mark.parametrize(("sq", "sk"), LENGTHS)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_backward(
    kernels: dict[str, str], config: FmhaConfig, sq: int, sk: int, kv_heads: int
) -> None:
    torch.manual_seed(0)
    dtype = DTYPES[config.element]
    for dim in (config.dim, config.dim - 8):
        q, d_out = rows_of(4, sq, dim, dtype), rows_of(4, sq, dim, dtype)
        k, v = rows_of(kv_heads, sk, dim, dtype), rows_of(kv_heads, sk, dim, dtype)
        for mask in MASKS:
            out, lse = reference.forward(q, k, v, mask=mask, scale=0.2)
            grads = reference.backward(d_out, q, k, v, mask=mask, scale=0.2)
            delta = (out * d_out).sum(-1).float().contiguous()
            dq, dk, dv = (torch.full_like(one, float("nan")) for one in (q, k, v))
            operands = (d_out, q, k, v, out.to(dtype), lse.float(), delta, dq, dv)
            given: tuple[Any, ...] = (*operands, kernels[config.name], 0.2, *given_mask(mask))
            cutlass.cutlass_fmha_backward(*given, out=dk)
            for found, expected in zip((dq, dk, dv), grads[:3], strict=True):
                close(found, expected, dtype)


def test_a_call_can_be_captured(kernels: dict[str, str]) -> None:
    config = BACKWARD[0]
    dtype = DTYPES[config.element]
    q, k, v, d_out = (rows_of(4, 100, config.dim, dtype) for _ in range(4))
    out, lse = reference.forward(q, k, v, mask=Mask(), scale=0.2)
    grads = reference.backward(d_out, q, k, v, mask=Mask(), scale=0.2)
    delta = (out * d_out).sum(-1).float().contiguous()
    dq, dk, dv = (torch.zeros_like(one) for one in (q, k, v))
    operands = (d_out, q, k, v, out.to(dtype), lse.float(), delta, dq, dv)
    given: tuple[Any, ...] = (*operands, kernels[config.name], 0.2, -1, -1, False)
    cutlass.cutlass_fmha_backward(*given, out=dk)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cutlass.cutlass_fmha_backward(*given, out=dk)
    for one in (dq, dk, dv):
        one.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for found, expected in zip((dq, dk, dv), grads[:3], strict=True):
        close(found, expected, dtype)
