"""Attention and its gradients by the textbook formulas, in float64: the reference of every kernel.

Shapes and names as in `inductor_plugin.problem.attention`. A block of queries is computed at a time, with all
keys, to limit memory; nothing else is optimized, and autograd is not used.

    s = cap(scale * q @ k.T) + bias, -inf where the mask hides        cap(x) = softcap * tanh(x / softcap)
    lse = log(sum(exp(s)))        p = exp(s - lse)        out = p @ v
    dv = p.T @ do                 dp = do @ v.T           ds = p * (dp - sum(p * dp) + grad_lse)
    dbias = ds                    dq = scale * (ds * cap') @ k        dk = scale * (ds * cap').T @ q

A row that sees no key, or whose scores are all -inf: out = 0, lse = +inf and no gradient. Non-finite
inputs propagate as in these formulas: NaN among the scores a row sees makes its out and lse NaN, +inf its out
NaN and its lse +inf. A hidden score has no effect, whatever its value; a hidden v has none if it is finite:
0 * inf is NaN. Fused kernels may skip that v, so do not compare there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inductor_plugin.problem.attention import Mask

BLOCK_BYTES = 64 << 20
"""Bytes of one block of scores; about five blocks are alive at once in the backward."""


class Gradients(NamedTuple):
    """Gradients of one attention, in the type they were computed in.

    Attributes:
        dq: As q.
        dk: As k.
        dv: As v.
        dbias: As the bias, summed over broadcast dimensions; None without a bias.
    """

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dbias: Tensor | None


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    cu_q: Tensor | None = None,
    cu_k: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Return out and lse of one attention, contiguous.

    Args:
        q: [B, H, Sq, D], or with ``cu_q`` and ``cu_k`` [Tq, H, D]; any strides, any type.
        k: [B, Hkv, Sk, D] or [Tk, Hkv, D].
        v: [B, Hkv, Sk, Dv] or [Tk, Hkv, Dv].
        mask: Which keys a query sees.
        scale: Factor of q @ k.T; None is 1 / sqrt(D).
        softcap: See above; 0 is none.
        bias: Broadcast to [B, H, Sq, Sk]; with varlen to [B, H, longest q, longest k], of which a
            sequence uses its beginning.
        cu_q: int32 [B + 1]: where each sequence begins in q, and where the last one ends.
        cu_k: The same for k and v.
        dtype: What everything is computed in and returned as.

    Returns:
        out [B, H, Sq, Dv] or [Tq, H, Dv], and lse [B, H, Sq] or [H, Tq] in natural logarithms.
    """
    factor: float = q.size(-1) ** -0.5 if scale is None else scale
    out = q.new_zeros((*q.shape[:-1], v.size(-1)), dtype=dtype)
    lse = _rows_like(q, cu_q, dtype)
    biases = _biases(bias, q, k, cu_q, cu_k)
    operands = zip(_split(q, cu_q), _split(k, cu_k), _split(v, cu_k), biases, strict=True)
    results = zip(_split(out, cu_q), _split_rows(lse, cu_q), strict=True)
    for (a, b, c, bias_view), (out_view, lse_view) in zip(operands, results, strict=True):
        keys, values = b.to(dtype), c.to(dtype)
        for rows in _blocks(a, b, dtype):
            scores, _ = _scores(a, keys, bias_view, rows, mask, factor, softcap, dtype)
            p, lse_view[:, rows], blind = _softmax(scores)
            # 0 times inf would make NaN of a row that sees no key at all.
            rows_out = _grouped_product(p, values)
            out_view[:, rows] = rows_out.masked_fill(blind[..., None], 0.0)
    return out, lse


def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    cu_q: Tensor | None = None,
    cu_k: Tensor | None = None,
    grad_lse: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Gradients:
    """Return the gradients of one attention, contiguous.

    Args:
        do: Gradient of out, of its shape.
        q: As the rest, see `forward`.
        k: See `forward`.
        v: See `forward`.
        mask: See `forward`.
        scale: See `forward`.
        softcap: See `forward`.
        bias: See `forward`.
        cu_q: See `forward`.
        cu_k: See `forward`.
        grad_lse: Gradient of lse, of its shape; None is zero.
        dtype: See `forward`.
    """
    factor: float = q.size(-1) ** -0.5 if scale is None else scale
    dq, dk, dv = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (q, k, v))
    dbias = None if bias is None else torch.zeros(bias.shape, dtype=dtype, device=bias.device)
    biases, bias_grads = (_biases(x, q, k, cu_q, cu_k) for x in (bias, dbias))
    zero = _rows_like(q, cu_q, dtype)
    from_lse = _split_rows(zero if grad_lse is None else grad_lse.to(dtype), cu_q)
    operands = zip(_split(q, cu_q), _split(k, cu_k), _split(v, cu_k), _split(do, cu_q), strict=True)
    results = zip(_split(dq, cu_q), _split(dk, cu_k), _split(dv, cu_k), strict=True)
    for (a, b, c, d), (da, db, dc), bias_view, bias_grad, lse_grad in zip(
        operands, results, biases, bias_grads, from_lse, strict=True
    ):
        keys, values = b.to(dtype), c.to(dtype)
        for rows in _blocks(a, b, dtype):
            scores, slope = _scores(a, keys, bias_view, rows, mask, factor, softcap, dtype)
            p, _, _ = _softmax(scores)
            grad = d[:, rows].to(dtype)
            dc += _key_product(p, grad, c.size(0))
            dp = _grouped_product(grad, values.transpose(-1, -2))
            ds = p * (dp - (p * dp).sum(-1, keepdim=True) + lse_grad[:, rows, None])
            if bias_grad is not None:
                target = bias_grad[:, rows] if bias_grad.size(1) > 1 else bias_grad
                target += ds.sum_to_size(target.shape)
            ds = ds * factor if slope is None else ds * slope * factor
            da[:, rows] = _grouped_product(ds, keys)
            db += _key_product(ds, a[:, rows].to(dtype), b.size(0))
    return Gradients(dq, dk, dv, dbias)


def visible(
    queries: int,
    keys: int,
    mask: Mask,
    *,
    rows: slice = slice(None),
    device: torch.device | None = None,
) -> Tensor:
    """Return which keys these queries of one sequence see: [rows, keys], boolean."""
    shift = keys - queries if mask.bottom_right else 0
    diagonal = torch.arange(queries, device=device)[rows, None] + shift
    j = torch.arange(keys, device=device)
    keep = torch.ones(diagonal.size(0), keys, dtype=torch.bool, device=device)
    if mask.left >= 0:
        keep &= j >= diagonal - mask.left
    if mask.right >= 0:
        keep &= j <= diagonal + mask.right
    return keep


def _scores(
    q: Tensor,
    keys: Tensor,
    bias: Tensor | None,
    rows: slice,
    mask: Mask,
    scale: float,
    softcap: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    """Return s of these rows [H, rows, Sk], and cap' where there is a cap."""
    scores = scale * _grouped_product(q[:, rows].to(dtype), keys.transpose(-1, -2))
    slope = None
    if softcap:
        bent = torch.tanh(scores / softcap)
        scores, slope = softcap * bent, 1 - bent * bent
    if bias is not None:
        scores = scores + (bias[:, rows] if bias.size(1) > 1 else bias).to(dtype)
    if mask.limited:
        keep = visible(q.size(1), keys.size(1), mask, rows=rows, device=q.device)
        scores = scores.masked_fill(~keep, -math.inf)
    return scores, slope


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return p, lse, and which rows have no score above -inf."""
    lse = torch.logsumexp(scores, -1)
    blind = lse == -math.inf
    lse = lse.masked_fill(blind, math.inf)
    return torch.exp(scores - lse[..., None]), lse, blind


def _grouped_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a[H, m, k] @ b[Hkv, k, n]: H / Hkv consecutive heads of a share a head of b."""
    heads, m, k = a.shape
    folded = a.reshape(b.size(0), heads // b.size(0) * m, k)
    return (folded @ b).reshape(heads, m, b.size(-1))


def _key_product(a: Tensor, b: Tensor, kv_heads: int) -> Tensor:
    """Return a[H, m, n].T @ b[H, m, d], summed over the heads of a group: [Hkv, n, d]."""
    rows = a.size(0) // kv_heads * a.size(1)
    return a.reshape(kv_heads, rows, -1).transpose(-1, -2) @ b.reshape(kv_heads, rows, -1)


def _blocks(q: Tensor, k: Tensor, dtype: torch.dtype) -> Iterator[slice]:
    """Yield blocks of rows whose scores take `BLOCK_BYTES` at most, or one row."""
    row_bytes = q.size(0) * max(k.size(1), 1) * dtype.itemsize
    step = max(BLOCK_BYTES // row_bytes, 1)
    for start in range(0, q.size(1), step):
        yield slice(start, min(start + step, q.size(1)))


def _rows_like(q: Tensor, cu_q: Tensor | None, dtype: torch.dtype) -> Tensor:
    shape = q.shape[:-1] if cu_q is None else (q.size(1), q.size(0))
    return torch.zeros(shape, dtype=dtype, device=q.device)


def _ends(cu: Any) -> list[tuple[int, int]]:
    bounds: list[int] = cu.tolist()
    return list(itertools.pairwise(bounds))


def _split(tensor: Tensor, cu: Tensor | None) -> list[Tensor]:
    """Return each sequence as a view [heads, its length, head_dim]."""
    if cu is None:
        return list(tensor.unbind(0))
    return [tensor[start:end].transpose(0, 1) for start, end in _ends(cu)]


def _split_rows(rows: Tensor, cu: Tensor | None) -> list[Tensor]:
    """Return lse, or its gradient, of each sequence: [H, its length]."""
    if cu is None:
        return list(rows.unbind(0))
    return [rows[:, start:end] for start, end in _ends(cu)]


def _biases(
    bias: Tensor | None, q: Tensor, k: Tensor, cu_q: Tensor | None, cu_k: Tensor | None
) -> list[Tensor | None]:
    """Return the bias of each sequence, [H or 1, Sq or 1, Sk]."""
    batch = q.size(0) if cu_q is None else cu_q.numel() - 1
    if bias is None:
        return [None] * batch
    if cu_q is None or cu_k is None:
        lengths = [(q.size(2), k.size(2))] * batch
    else:
        pairs = zip(_ends(cu_q), _ends(cu_k), strict=True)
        lengths = [
            (q_end - q_start, k_end - k_start) for (q_start, q_end), (k_start, k_end) in pairs
        ]
    full = bias.reshape((1,) * (4 - bias.dim()) + tuple(bias.shape))
    return [full[b if full.size(0) > 1 else 0, :, :sq, :sk] for b, (sq, sk) in enumerate(lengths)]
