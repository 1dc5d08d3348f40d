"""``inductor_plugin::attention_math``: attention as two batched products and a softmax, on a CPU.

This is the decomposition that `torch.nn.functional.scaled_dot_product_attention` uses without a fused
kernel (aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math), with fewer
passes over the scores, which are in memory: [B, H, Sq, Sk].

benchmarks/results/attention_cpu_kernels.json, CPU time on one thread of an AMD EPYC, float32, forward: the
blocks of `fmha` (`inductor_plugin.attention.blockwise`) take 1.2 to 1.7 times as long up to 200 tokens (3.0 at
16), and 0.66 to 0.86 at 512 and 1536. ATen's fused kernel takes 0.4 to 0.7 times as long at all of these
lengths: it wins there.

The operators write to ``out=``; the variants with ``bias`` and ``lse`` also read and write those.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inductor_plugin.ops.operators import define_kernels
from inductor_plugin.problem.attention import Mask

_SCALARS = "float scale, int left, int right, bool bottom_right"


def attention_math(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    lse: Tensor | None,
    scale: float,
    *window: Any,
    out: Tensor,
) -> Tensor:
    """Write attention to ``out``, and log-sum-exp to ``lse`` if it is not None.

    Args:
        q: [B, H, Sq, D].
        k: [B, Hkv, Sk, D]; Hkv divides H.
        v: [B, Hkv, Sk, Dv].
        bias: Broadcast to [B, H, Sq, Sk], added to the scores.
        lse: [B, H, Sq]; rows that see no key get +inf, and 0 in ``out``.
        scale: Factor of q @ k.T.
        window: ``left``, ``right`` and ``bottom_right`` of a `Mask`.
        out: [B, H, Sq, Dv].
    """
    mask, shape = Mask(*window), (*q.shape[:3], k.shape[2])
    q, k, v = _wide(q, k, v)
    scores = _scores(q, k, scale, bias, shape)
    hidden = _hidden(shape[2], shape[3], mask, q.device)
    if hidden is not None:  # not added: NaN - inf is NaN, also in rows that do not see the key
        scores.masked_fill_(hidden, -math.inf)
    if lse is None and not _may_be_empty(shape, bias, mask):
        weights = torch.softmax(scores, -1, out=scores)
    else:
        highest = scores.amax(-1, keepdim=True)
        highest.masked_fill_(highest == -math.inf, 0.0)
        weights = scores.sub_(highest).exp_()
        total = weights.sum(-1, keepdim=True)
        empty = total == 0
        if lse is not None:
            rows = torch.where(empty | (highest == math.inf), math.inf, highest + total.log())
            lse.copy_(rows.view(shape[:3]))
        weights.div_(torch.where(empty, 1.0, total))
        _product(weights, _flat(v, q.shape[1]), out)
        return out.masked_fill_(empty.view(*shape[:3], 1), 0.0)  # 0 times NaN in v is NaN
    return _product(weights, _flat(v, q.shape[1]), out)


def attention_math_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    forward: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    dq: Tensor,
    dv: Tensor,
    scale: float,
    *window: Any,
    out: Tensor,
) -> Tensor:
    """Write the gradients to ``dq``, ``dv`` and ``out`` (dk).

    Args:
        do: [B, H, Sq, Dv].
        q: As in the forward pass; so are k, v, bias, scale and the window.
        k: [B, Hkv, Sk, D].
        v: [B, Hkv, Sk, Dv].
        forward: The output of the forward pass.
        lse: [B, H, Sq].
        bias: Broadcast to [B, H, Sq, Sk].
        dq: As q.
        dv: As v.
        scale: Factor of q @ k.T.
        window: As in the forward pass.
        out: As k.
    """
    mask, shape = Mask(*window), (*q.shape[:3], k.shape[2])
    heads, kv_heads = q.shape[1], k.shape[1]
    do, q, k, v, forward = _wide(do, q, k, v, forward)
    weights = _scores(q, k, scale, bias, shape)
    weights.sub_(lse.reshape(-1, shape[2], 1)).exp_()
    hidden = _hidden(shape[2], shape[3], mask, q.device)
    if hidden is not None:
        weights.masked_fill_(hidden, 0.0)
    grads, values = _flat(do, heads), _flat(v, heads)
    _summed(torch.bmm(weights.transpose(1, 2), grads), dv, heads // kv_heads)
    delta = (do * forward).sum(-1).reshape(-1, shape[2], 1)
    scores = weights.mul_(torch.bmm(grads, values.transpose(1, 2)).sub_(delta)).mul_(scale)
    if hidden is not None:  # 0 times NaN in v is NaN
        scores.masked_fill_(hidden, 0.0)
    _product(scores, _flat(k, heads), dq)
    return _summed(torch.bmm(scores.transpose(1, 2), _flat(q, heads)), out, heads // kv_heads)


def _wide(*operands: Tensor) -> tuple[Tensor, ...]:
    """Return operands of 16 bits in float32, so that scores are not rounded to 16 bits."""
    return tuple(x.float() if x.dtype.itemsize < 4 else x for x in operands)


def _flat(x: Tensor, heads: int) -> Tensor:
    """Return [B * heads, S, D] of [B, Hkv, S, D], the key heads repeated."""
    if x.shape[1] != heads:
        x = x.repeat_interleave(heads // x.shape[1], 1)
    return x.reshape(-1, *x.shape[2:])


def _scores(
    q: Tensor, k: Tensor, scale: float, bias: Tensor | None, shape: tuple[int, ...]
) -> Tensor:
    """Return scale * q @ k.T and the bias, [B * H, Sq, Sk]."""
    left, right = _flat(q, shape[1]), _flat(k, shape[1]).transpose(1, 2)
    size = (left.shape[0], *shape[2:])
    bias = None if bias is None else bias.to(q.dtype)
    if bias is not None and bias.dim() == 2:
        return torch.baddbmm(bias.expand(size), left, right, alpha=scale)
    nothing = torch.empty((), dtype=q.dtype, device=q.device).expand(size)
    scores = torch.baddbmm(nothing, left, right, beta=0, alpha=scale)
    return scores if bias is None else scores.view(shape).add_(bias).view(size)


def _product(weights: Tensor, values: Tensor, out: Tensor) -> Tensor:
    """Write weights @ values to [B, H, S, D] of any strides."""
    if out.is_contiguous() and out.dtype == weights.dtype:
        torch.bmm(weights, values, out=out.view(-1, *out.shape[2:]))
        return out
    return out.copy_(torch.bmm(weights, values).view(out.shape))


def _summed(by_head: Tensor, out: Tensor, group: int) -> Tensor:
    """Write [B * H, S, D], summed over the query heads of each key head, to [B, Hkv, S, D]."""
    batch, kv_heads, rows, width = out.shape
    if group == 1:
        return out.copy_(by_head.view(out.shape))
    grouped = by_head.view(batch, kv_heads, group, rows, width)
    return out.copy_(grouped.sum(2))


def _may_be_empty(shape: tuple[int, ...], bias: Tensor | None, mask: Mask) -> bool:
    """Return whether a row might see no key."""
    if bias is not None or mask.left >= 0:
        return True
    return mask.right >= 0 and mask.bottom_right and shape[2] > shape[3] + mask.right


@functools.lru_cache(maxsize=2)
def _hidden(queries: int, keys: int, mask: Mask, device: torch.device) -> Tensor | None:
    """Return which keys each query does not see, [Sq, Sk]; None if the mask hides none."""
    if not mask.limited:
        return None
    shift = keys - queries if mask.bottom_right else 0
    rows = torch.arange(queries, device=device).unsqueeze(-1)
    distance = torch.arange(keys, device=device) - rows - shift
    hidden = torch.zeros(queries, keys, dtype=torch.bool, device=device)
    if mask.left >= 0:
        hidden |= distance < -mask.left
    if mask.right >= 0:
        hidden |= distance > mask.right
    return hidden


def _forward(with_bias: bool, with_lse: bool) -> tuple[str, str, Callable[..., None]]:  # noqa: FBT001
    """Return one overload, its arguments and its function: optional tensors in the middle of a schema cannot be omitted."""
    overload = "_".join([*(["bias"] if with_bias else []), *(["lse"] if with_lse else []), "out"])
    bias = "Tensor bias, " if with_bias else ""
    lse = "Tensor(b!) lse, " if with_lse else ""
    schema = f"(Tensor q, Tensor k, Tensor v, {bias}{lse}{_SCALARS}, *, Tensor(a!) out)"

    def call(q: Tensor, k: Tensor, v: Tensor, *more: Any, out: Tensor) -> None:
        rest = list(more)
        bias = rest.pop(0) if with_bias else None
        lse = rest.pop(0) if with_lse else None
        attention_math(q, k, v, bias, lse, *rest, out=out)

    return f"attention_math.{overload}", schema, call


def _backward(with_bias: bool) -> tuple[str, str, Callable[..., None]]:  # noqa: FBT001
    bias = "Tensor bias, " if with_bias else ""
    schema = (
        f"(Tensor do, Tensor q, Tensor k, Tensor v, Tensor forward, Tensor lse, {bias}"
        f"Tensor(b!) dq, Tensor(c!) dv, {_SCALARS}, *, Tensor(a!) out)"
    )

    def call(*operands: Any, out: Tensor) -> None:
        arguments: list[Any] = [*operands]
        if not with_bias:
            arguments.insert(6, None)
        attention_math_backward(*arguments, out=out)

    return f"attention_math_backward.{'bias_out' if with_bias else 'out'}", schema, call


_ALL = (
    *(_forward(bias, lse) for bias in (False, True) for lse in (False, True)),
    *map(_backward, (False, True)),
)
_OPERATORS: Any = define_kernels(
    {name: schema for name, schema, _ in _ALL}, {name: call for name, _, call in _ALL}, key="CPU"
)
