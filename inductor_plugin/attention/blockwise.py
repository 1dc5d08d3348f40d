"""`fmha` from torch's matrix products, a block of queries at a time: for CPUs, and where no kernel applies.

Scores and sums are in float32 (float64 for float64 operands); results have the type of their operand,
bfloat16 for operands of 8 bits. A block reads only the keys its mask allows, so the cost of a window is
proportional to its width. Tested against the textbook formulas (tests/support/attention/reference.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inductor_plugin.problem.attention import Mask

BLOCK_BYTES = 4 << 20
"""Bytes of one block of scores on a CPU: it fits the cache."""
DEVICE_BLOCK_BYTES = 256 << 20
"""The same on a GPU: enough work to occupy it."""
BLOCK_ROWS = 128
"""Queries of a block, if they fit its bytes."""


@dataclass(frozen=True)
class ScoreParams:
    """Parameters of the scores: ``cap(scale * q @ k.T) + bias`` for keys the mask allows.

    Attributes:
        mask: Which keys a query sees.
        scale: Factor of q @ k.T.
        softcap: cap(x) = softcap * tanh(x / softcap); 0 is none.
    """

    mask: Mask
    scale: float
    softcap: float = 0.0


class Lengths(NamedTuple):
    """Where the sequences of a varlen call begin and end: [(start, end)] in q, and in k and v."""

    queries: list[tuple[int, int]]
    keys: list[tuple[int, int]]


class BlockwiseGradients(NamedTuple):
    """Gradients of one attention, with the shapes and types of their operands; contiguous."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dbias: Tensor | None


class _ScoreBlock(NamedTuple):
    """A range of queries and heads of one sequence, and the keys they attend to.

    Attributes:
        heads: Heads of q.
        kv_heads: Heads of k and v.
        rows: Queries.
        keys: Keys; none if it is empty.
        shift: Offset of the diagonal: query i is aligned with key i + shift.
    """

    heads: slice
    kv_heads: slice
    rows: slice
    keys: slice
    shift: int


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    params: ScoreParams,
    *,
    bias: Tensor | None = None,
    lengths: Lengths | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return out and lse, contiguous; shapes as in `inductor_plugin.problem.attention`.

    With ``dtype`` everything is computed in that type and returned in it.
    """
    out = q.new_empty((*q.shape[:-1], v.size(-1)), dtype=dtype or result(q.dtype))
    dtype = dtype or accumulator(q.dtype)
    lse = q.new_empty(_lse_shape(q, lengths), dtype=dtype)
    fold = bias is None and q.size(0) > 0
    views = zip(
        _split(q, lengths and lengths.queries, fold=fold),
        _split(k, lengths and lengths.keys, fold=fold),
        _split(v, lengths and lengths.keys, fold=fold),
        _split(out, lengths and lengths.queries, fold=fold),
        _split_rows(lse, lengths, fold=fold),
        _split_bias(bias, lengths, 1 if fold else q.size(0)),
        strict=True,
    )
    for q_view, k_view, v_view, out_view, lse_view, bias_view in views:
        for kv_heads, blocks in _blocks(q_view, k_view, params.mask, dtype):
            keys, values = (view[kv_heads].to(dtype).contiguous() for view in (k_view, v_view))
            for block in blocks:
                scores, _ = _scores(q_view, keys, bias_view, block, params)
                p, rows_lse, fully_masked = _softmax(scores)
                rows_out = _times_keys(p, values[:, block.keys])
                out_view[block.heads, block.rows] = rows_out.masked_fill_(fully_masked, 0.0).to(
                    out.dtype
                )
                lse_view[block.heads, block.rows] = rows_lse
    return out, lse


def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    params: ScoreParams,
    *,
    grad_lse: Tensor | None = None,
    bias: Tensor | None = None,
    bias_grad: bool = False,
    lengths: Lengths | None = None,
    dtype: torch.dtype | None = None,
) -> BlockwiseGradients:
    """Return the gradients; ``out`` and ``lse`` are results of `forward` or of any other kernel.

    With ``dtype`` everything is computed in that type and returned in it.
    """
    grad_dtype, dtype = dtype, dtype or accumulator(q.dtype)
    grads = [
        torch.zeros(operand.shape, dtype=dtype, device=operand.device) for operand in (q, k, v)
    ]
    dbias = bias.new_zeros(bias.shape, dtype=dtype) if bias is not None and bias_grad else None
    delta = (do.to(dtype) * out.to(dtype)).sum(-1)  # [B, H, Sq] or [Tq, H]
    delta = delta if lengths is None else delta.transpose(0, 1)
    delta = delta if grad_lse is None else delta - grad_lse
    fold = bias is None and q.size(0) > 0
    queries, keys = (None, None) if lengths is None else lengths
    views = zip(
        *(_split(x, queries, fold=fold) for x in (q, do, grads[0])),
        *(_split(x, keys, fold=fold) for x in (k, v, grads[1], grads[2])),
        *(_split_rows(x, lengths, fold=fold) for x in (lse, delta)),
        *(_split_bias(x, lengths, 1 if fold else q.size(0)) for x in (bias, dbias)),
        strict=True,
    )
    for view in views:
        _backward_sequence(params, dtype, *view)
    pairs = zip(grads, (q, k, v), strict=True)
    dq, dk, dv = (grad.to(grad_dtype or operand.dtype) for grad, operand in pairs)
    if bias is None or dbias is None:
        return BlockwiseGradients(dq, dk, dv, None)
    return BlockwiseGradients(dq, dk, dv, dbias.to(grad_dtype or bias.dtype))


def _backward_sequence(
    params: ScoreParams,
    dtype: torch.dtype,
    q: Any,
    do: Any,
    dq: Any,
    k: Any,
    v: Any,
    dk: Any,
    dv: Any,
    lse: Any,
    delta: Any,
    bias: Tensor | None,
    dbias: Tensor | None,
) -> None:
    """Add one sequence's gradients to dq, dk, dv and dbias."""
    for kv_heads, blocks in _blocks(q, k, params.mask, dtype):
        keys, values = (x[kv_heads].to(dtype).contiguous() for x in (k, v))
        for block in blocks:
            at = (block.heads, block.rows)
            q_rows, do_rows = q[at].to(dtype), do[at].to(dtype)
            scores, cap_slope = _scores(q, keys, bias, block, params)
            p = scores.sub_(lse[at][..., None]).exp_()
            dv[kv_heads, block.keys] += _times_rows(p, do_rows, keys.size(0))
            dp = _times_keys(do_rows, values[:, block.keys].transpose(1, 2))
            ds = dp.sub_(delta[at][..., None]).mul_(p)
            if dbias is not None:
                target = _bias_at(dbias, block)
                target += ds.sum_to_size(target.shape)
            if cap_slope is not None:
                ds.mul_(cap_slope)
            ds.mul_(params.scale)
            dq[at] = _times_keys(ds, keys[:, block.keys])
            dk[kv_heads, block.keys] += _times_rows(ds, q_rows, keys.size(0))


def ends_of(cu: Any) -> list[tuple[int, int]]:
    """Return the (start, end) of each sequence of ``cu_seqlens``."""
    bounds: list[int] = cu.tolist()
    return list(itertools.pairwise(bounds))


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type of scores, sums and lse for operands of a type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def result(dtype: torch.dtype) -> torch.dtype:
    """Return the type of out for operands of a type: sums of 8 bits would leave 3 of mantissa."""
    return torch.bfloat16 if dtype.itemsize == 1 else dtype


def _scores(
    q: Tensor, keys: Tensor, bias: Tensor | None, block: _ScoreBlock, params: ScoreParams
) -> tuple[Tensor, Tensor | None]:
    """Return a block's scores [heads, rows, keys], and the derivative of the cap, if any."""
    rows = q[block.heads, block.rows].to(keys.dtype) * params.scale
    scores = _times_keys(rows, keys[:, block.keys].transpose(1, 2))
    cap_slope = None
    if params.softcap:
        capped = scores.div_(params.softcap).tanh_()
        cap_slope = 1 - capped * capped
        scores = capped.mul_(params.softcap)
    if bias is not None:
        scores += _bias_at(bias, block)
    _mask_scores(scores, block, params.mask)
    return scores, cap_slope


def _mask_scores(scores: Tensor, block: _ScoreBlock, mask: Mask) -> None:
    """Set masked scores to -inf; touches only keys that are hidden from some query."""
    rows, keys = block.rows, block.keys
    if keys.start >= keys.stop:
        return
    i = torch.arange(rows.start, rows.stop, device=scores.device)[:, None] + block.shift
    j = torch.arange(keys.start, keys.stop, device=scores.device)
    if mask.right >= 0:
        first = max(rows.start + block.shift + mask.right + 1 - keys.start, 0)
        scores[..., first:].masked_fill_(j[first:] > i + mask.right, -math.inf)
    if mask.left >= 0:
        end = max(rows.stop - 1 + block.shift - mask.left - keys.start, 0)
        scores[..., :end].masked_fill_(j[:end] < i - mask.left, -math.inf)


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return p, lse [heads, rows], and which rows see no key [heads, rows, 1]."""
    if not scores.size(-1):
        shape = scores.shape[:-1]
        fully_masked = torch.ones((*shape, 1), dtype=torch.bool, device=scores.device)
        return scores, scores.new_full(shape, math.inf), fully_masked
    highest = scores.amax(-1, keepdim=True)
    fully_masked = highest == -math.inf
    p = torch.softmax(scores, -1)
    # The largest p is exp(highest - lse): one pass less than the sum of exponentials.
    lse = torch.where(highest == math.inf, highest, highest - p.amax(-1, keepdim=True).log())
    return p, lse.masked_fill(fully_masked, math.inf)[..., 0], fully_masked


def _times_keys(a: Tensor, b: Tensor) -> Tensor:
    """Return a[H, m, k] @ b[Hkv, k, n]: H / Hkv consecutive heads of a share a head of b."""
    heads, m, k = a.shape
    folded = a.reshape(b.size(0), heads // b.size(0) * m, k)
    return torch.bmm(folded, b).view(heads, m, b.size(-1))


def _times_rows(a: Tensor, b: Tensor, kv_heads: int) -> Tensor:
    """Return a[H, m, n].T @ b[H, m, d], summed over the heads of a group: [Hkv, n, d]."""
    rows = a.size(0) // kv_heads * a.size(1)
    folded = a.reshape(kv_heads, rows, a.size(2)).transpose(1, 2)
    return torch.bmm(folded, b.reshape(kv_heads, rows, b.size(2)))


def _blocks(
    q: Tensor, k: Tensor, mask: Mask, dtype: torch.dtype
) -> Iterator[tuple[slice, Iterator[_ScoreBlock]]]:
    """Yield ranges of key heads that fit the bytes of a block, with the blocks of their queries."""
    (heads, queries, _), (kv_heads, keys, _) = q.shape, k.shape
    group = heads // kv_heads
    rows = min(queries, BLOCK_ROWS)
    span = keys
    if mask.left >= 0 and mask.right >= 0:
        span = min(keys, mask.left + mask.right + rows)
    row_bytes = group * max(span, 1) * dtype.itemsize
    block_bytes = BLOCK_BYTES if q.device.type == "cpu" else DEVICE_BLOCK_BYTES
    rows = max(1, min(rows, block_bytes // row_bytes))
    together = max(1, min(kv_heads, block_bytes // (row_bytes * rows)))
    for head in range(0, kv_heads, together):
        part = slice(head, min(head + together, kv_heads))
        yield part, _rows(part, group, queries, keys, rows, mask)


def _rows(
    kv_heads: slice, group: int, queries: int, keys: int, rows: int, mask: Mask
) -> Iterator[_ScoreBlock]:
    shift = keys - queries if mask.bottom_right else 0
    heads = slice(kv_heads.start * group, kv_heads.stop * group)
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        low = max(start + shift - mask.left, 0) if mask.left >= 0 else 0
        high = min(stop + shift + mask.right, keys) if mask.right >= 0 else keys
        low = min(low, keys)
        yield _ScoreBlock(heads, kv_heads, slice(start, stop), slice(low, max(low, high)), shift)


def _bias_at(bias: Tensor, block: _ScoreBlock) -> Tensor:
    """Return a block's part of a sequence's bias [H or 1, Sq or 1, Sk or 1]."""
    ranges = zip(bias.shape, (block.heads, block.rows, block.keys), strict=True)
    return bias[tuple(slice(None) if size == 1 else part for size, part in ranges)]


def _lse_shape(q: Tensor, lengths: Lengths | None) -> Sequence[int]:
    return q.shape[:-1] if lengths is None else (q.size(1), q.size(0))


def _split(tensor: Tensor, ends: list[tuple[int, int]] | None, *, fold: bool) -> list[Tensor]:
    """Return each sequence as [heads, length, head_dim]; ``fold`` merges the batch into the heads."""
    if ends is not None:
        return [tensor[start:end].transpose(0, 1) for start, end in ends]
    return [tensor.flatten(0, 1)] if fold else list(tensor.unbind(0))


def _split_rows(rows: Tensor, lengths: Lengths | None, *, fold: bool) -> list[Tensor]:
    """Return each sequence of lse, or of a tensor of its shape: [H, length]."""
    if lengths is not None:
        return [rows[:, start:end] for start, end in lengths.queries]
    return [rows.flatten(0, 1)] if fold else list(rows.unbind(0))


def _split_bias(
    bias: Tensor | None, lengths: Lengths | None, batch: int
) -> Iterator[Tensor | None]:
    """Return the bias of each sequence; broadcast dimensions stay 1."""
    batch = batch if lengths is None else len(lengths.queries)
    if bias is None:
        return itertools.repeat(None, batch)
    full = bias.view((1,) * (4 - bias.dim()) + tuple(bias.shape))
    if full.size(0) == 1:
        return itertools.repeat(full[0], batch)
    return iter(full.unbind(0))
