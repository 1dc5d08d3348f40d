"""delta = sum(out * do) over the head dim in one kernel, as generated code computes it before a gradient.

A benchmark of a Triton gradient includes it. ATen needs two kernels and writes the product to memory
between them, rounded to 16 bits or in float32.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportIndexIssue=false, reportCallIssue=false
# ruff: noqa: ANN001, ANN202, N803  a kernel has no types, and its constants are upper-case

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_ROWS = 16


@triton.jit
def _products(
    do, out, delta, rows,
    do_batch, do_head, do_row, out_batch, out_head, out_row, delta_batch, delta_head, delta_row,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
    left = do + batch * do_batch + head * do_head + row[:, None] * do_row + column[None, :]
    right = out + batch * out_batch + head * out_head + row[:, None] * out_row + column[None, :]
    product = tl.load(left, mask=inside, other=0.0).to(tl.float32)
    product *= tl.load(right, mask=inside, other=0.0).to(tl.float32)
    to = delta + batch * delta_batch + head * delta_head + row * delta_row
    tl.store(to, tl.sum(product, 1), mask=row < rows)


def write_delta(do: torch.Tensor, out: torch.Tensor, delta: torch.Tensor) -> None:
    """Write delta.

    Args:
        do: [B, H, Sq, Dv], the last dimension dense.
        out: The same.
        delta: [B, H, Sq] in float32.
    """
    batch, heads, rows, width = do.shape
    kernel: Any = _products
    kernel[(triton.cdiv(rows, _ROWS), heads, batch)](
        do, out, delta, rows, *do.stride()[:3], *out.stride()[:3], *delta.stride(),
        WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=_ROWS,
    )  # fmt: skip
