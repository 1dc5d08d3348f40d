"""CUTLASS attention kernels on a GPU against the reference in float64. Run on an H200 (FINDINGS.md).

Kernels are built ahead of their tests, in slices in the order of the tests; one that cannot be built costs its own.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inductor_plugin.attention import cutlass
from inductor_plugin.attention.blockwise import result
from inductor_plugin.problem.attention import Mask
from tests.gpu.cases import fmha
from tests.gpu.cases.builds import Place
from tests.gpu.cases.fmha import BACKWARD, FORWARD, place_of
from tests.gpu.cases.kernels import Kernels
from tests.gpu.harness.selected import selected
from tests.support.attention import reference

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


@pytest.fixture(scope="session", name="kernels")
def all_kernels(request: pytest.FixtureRequest, kernels_dir: Path) -> Iterator[Kernels[Place]]:
    """Begin to build the kernels of the tests that are going to run."""
    yield from fmha.building(selected(request.session, "kernel"), kernels_dir)


def rows_of(heads: int, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Return random numbers [2, heads, rows, dim], a view of [2, rows, heads, dim] as models make it."""
    tensor = torch.randn(2, rows, heads, dim, device="cuda", dtype=torch.float32)
    return tensor.to(dtype).transpose(1, 2)


def close(tensor: Tensor, expected: Tensor, dtype: torch.dtype, sums: float = 0.0) -> None:
    """Compare with what rounding P and the result may cost for operands of a type, and a factor for sums.

    Args:
        tensor: What a kernel computed.
        expected: The same in float64.
        dtype: Type of the operands.
        sums: Largest sum whose difference to another the result has; they are rounded in float32.
    """
    error = (tensor.double() - expected).abs().max()
    scale = expected.abs().max().clamp(min=1e-3)
    assert torch.isfinite(tensor).all()
    limit = 4 * UNITS[dtype] * scale + sums * 2.0**-22
    assert error <= limit, f"error {error:.2e} of {scale:.2e}, at most {limit:.2e}"


def cancelled(d_out: Tensor, v: Tensor, *others: Tensor, scale: float) -> float:
    """Return the largest product of dp or delta with an operand.

    Where a query sees one key, dp and delta are the same sum, and its gradient is 0: an H200 is off by 1.1e-5 then (f16).
    """
    longest = math.prod(float(tensor.float().norm(dim=-1).max()) for tensor in (d_out, v))
    return scale * longest * max(float(tensor.float().abs().max()) for tensor in others)


def given_mask(mask: Mask) -> tuple[int, int, bool]:
    return mask.left, mask.right, mask.bottom_right


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("sq", "sk"), LENGTHS)
@pytest.mark.parametrize("kernel", FORWARD)  # the last one changes least often
def test_forward(kernels: Kernels[Place], kernel: str, sq: int, sk: int, kv_heads: int) -> None:
    torch.manual_seed(0)
    (config, _), called = FORWARD[kernel], place_of(kernels, kernel)
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
            call_arguments = (called, 0.2, *given_mask(mask))
            cutlass.cutlass_fmha(q, k, v, lse, *call_arguments, out=out)
            close(out, expected, dtype)
            blind = torch.isposinf(sums)
            assert torch.equal(torch.isposinf(lse), blind)
            torch.testing.assert_close(
                lse[~blind].double(), sums[~blind], atol=sums_off, rtol=sums_off
            )
            assert not out[blind].any()
            alone = torch.empty_like(out)
            cutlass.cutlass_fmha_output(q, k, v, *call_arguments, out=alone)
            assert torch.equal(alone, out)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(("sq", "sk"), LENGTHS)
@pytest.mark.parametrize("kernel", BACKWARD)
def test_backward(kernels: Kernels[Place], kernel: str, sq: int, sk: int, kv_heads: int) -> None:
    torch.manual_seed(0)
    (config, _), called = BACKWARD[kernel], place_of(kernels, kernel)
    dtype = DTYPES[config.element]
    for dim in (config.dim, config.dim - 8):
        q, d_out = rows_of(4, sq, dim, dtype), rows_of(4, sq, dim, dtype)
        k, v = rows_of(kv_heads, sk, dim, dtype), rows_of(kv_heads, sk, dim, dtype)
        for mask in MASKS:
            out, lse = reference.forward(q, k, v, mask=mask, scale=0.2)
            grads = reference.backward(d_out, q, k, v, mask=mask, scale=0.2)
            delta = (out * d_out).sum(-1).float().contiguous()
            dq, dk, dv = (torch.full_like(operand, float("nan")) for operand in (q, k, v))
            operands = (d_out, q, k, v, out.to(dtype), lse.float(), delta, dq, dv)
            call_arguments: tuple[Any, ...] = (*operands, called, 0.2, *given_mask(mask))
            cutlass.cutlass_fmha_backward(*call_arguments, out=dk)
            sums = cancelled(d_out, v, q, k, scale=0.2)
            # dv is a sum of weights times dO, in which nothing cancels.
            for tensor, expected, off in zip(
                (dq, dk, dv), grads[:3], (sums, sums, 0.0), strict=True
            ):
                close(tensor, expected, dtype, off)


@pytest.mark.parametrize("kernel", list(BACKWARD)[:1])
def test_a_call_can_be_captured(kernels: Kernels[Place], kernel: str) -> None:
    (config, _), called = BACKWARD[kernel], place_of(kernels, kernel)
    dtype = DTYPES[config.element]
    q, k, v, d_out = (rows_of(4, 100, config.dim, dtype) for _ in range(4))
    out, lse = reference.forward(q, k, v, mask=Mask(), scale=0.2)
    grads = reference.backward(d_out, q, k, v, mask=Mask(), scale=0.2)
    delta = (out * d_out).sum(-1).float().contiguous()
    dq, dk, dv = (torch.zeros_like(operand) for operand in (q, k, v))
    operands = (d_out, q, k, v, out.to(dtype), lse.float(), delta, dq, dv)
    call_arguments: tuple[Any, ...] = (*operands, called, 0.2, -1, -1, False)
    cutlass.cutlass_fmha_backward(*call_arguments, out=dk)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cutlass.cutlass_fmha_backward(*call_arguments, out=dk)
    for value in (dq, dk, dv):
        value.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for tensor, expected in zip((dq, dk, dv), grads[:3], strict=True):
        close(tensor, expected, dtype)
