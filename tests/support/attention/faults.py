"""Attention kernels with and without faults, as torch operators for the worker.

They compute without tiles, in float32, and round what a fused kernel rounds: P and dS, to the type of q.
"""

# torch's types are incomplete for these functions.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor

Facts = tuple[str, float, int, int, bool]
"""Name of the fault, scale, left, right, and whether the diagonal ends at the last key."""
_CALLS: Counter[str] = Counter()
_FIRST: dict[torch.dtype, tuple[Tensor, Tensor, Tensor]] = {}


def keep(queries: int, keys: int, left: int, right: int, bottom_right: bool) -> Tensor:
    i = torch.arange(queries)[:, None] + (keys - queries if bottom_right else 0)
    j = torch.arange(keys)
    return ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))


def scores(q: Tensor, k: Tensor, facts: Facts) -> Tensor:
    fault, scale, left, right, bottom_right = facts
    scale = 1.0 if fault == "unscaled" else scale
    left += fault == "off_by_one"
    bottom_right = bottom_right and fault != "top_left"
    group = q.size(1) // k.size(1)
    s = scale * (q.float() @ k.float().repeat_interleave(group, 1).transpose(-1, -2))
    hidden = ~keep(q.size(2), k.size(2), left, right, bottom_right)
    if fault == "adds_the_mask":
        return s + torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
    return s.masked_fill(hidden, -math.inf)


def forward(q: Tensor, k: Tensor, v: Tensor, lse: Tensor, facts: Facts, out: Tensor) -> None:
    fault = facts[0]
    if fault == "keeps_addresses":
        q, k, v = _FIRST.setdefault(q.dtype, (q, k, v))
    s = scores(q, k, facts)
    if fault == "hides_nan":
        s = s.nan_to_num(-math.inf, math.inf, -math.inf)
    if fault == "clamped_scores":
        s = s.clamp(max=40.0)
    m = s.amax(-1, keepdim=True)
    if fault == "no_maximum":
        m = m.clamp(0.0, 0.0)
    m = m.masked_fill(m == -math.inf, math.nan if fault == "nan_in_empty_row" else 0.0)
    p = torch.exp(s - m)
    total = p.sum(-1, keepdim=True)
    values = v.float().repeat_interleave(q.size(1) // k.size(1), 1)
    if fault == "coarse":
        p = p.to(torch.float8_e5m2)
    result = p.to(q.dtype).float() @ values / total.masked_fill(total == 0, 1.0)
    statistics = (m + total.log()).squeeze(-1).masked_fill(total.squeeze(-1) == 0, math.inf)
    if fault == "log2_lse":
        statistics = statistics / math.log(2)
    if fault == "empty_lse":
        statistics = statistics.masked_fill(statistics == math.inf, -math.inf)
    falsify(result, fault)
    out.copy_(result)
    if fault != "no_lse":
        lse.copy_(statistics)
    if fault == "overruns":
        ctypes.memset(lse.data_ptr() + lse.numel() * 4, 0, 16)


def falsify(result: Tensor, fault: str) -> None:
    _CALLS[fault] += 1
    if fault == "one_wrong_tile":
        result[-1, -1, 64:80] *= 0.8
    if fault == "outside_the_sample":
        result[0, 1, 70:75] *= 0.8
    if fault == "flushed":
        result[result.abs() < 2.0**-12] = 0.0
    if fault == "a_little_more":
        result *= 1.05
    if fault == "every_tenth_call" and _CALLS[fault] % 10 == 0:
        result *= 1.5


def backward(x: dict[str, Tensor], facts: Facts, dq: Tensor, dv: Tensor, dk: Tensor) -> None:
    fault, scale, *_ = facts
    q, k, do = x["q"], x["k"], x["do"]
    group = q.size(1) // k.size(1)
    p = torch.exp(scores(q, k, facts) - x["lse"][..., None])
    values = x["v"].float().repeat_interleave(group, 1)
    dp = do.float() @ values.transpose(-1, -2)
    ds = p * (dp - (0.0 if fault == "no_delta" else x["delta"][..., None]))
    ds = ds.to(q.dtype).float() * (1.0 if fault == "gradients_unscaled" else scale)
    dq_all = ds @ k.float().repeat_interleave(group, 1)
    dk_all = ds.transpose(-1, -2) @ q.float()
    dv_all = p.to(q.dtype).float().transpose(-1, -2) @ do.float()
    if fault == "one_wrong_tile":
        dq_all[-1, -1, 64:80] *= 0.8
    if fault == "one_wrong_key_tile":
        dk_all[0, 0, 64:80] *= 0.8
    shape = k.size(0), k.size(1), group, k.size(2), -1
    if fault == "one_head_of_a_group":
        dv_all.view(shape)[:, :, 1:] = 0.0
    dq.copy_(dq_all)
    dk.copy_(dk_all.view(shape).sum(2))
    if fault != "dv_forgets_unseen":
        dv.copy_(dv_all.view(shape).sum(2))
        return
    seen = keep(q.size(2), k.size(2), *facts[2:]).any(0)
    dv[:, :, seen] = dv_all.view(shape).sum(2)[:, :, seen].to(dv.dtype)


library: Any = torch.library.Library("attention_faults", "FRAGMENT")
_FACTS = "str fault, float scale, int left, int right, bool bottom_right, *, Tensor(z!) out"
library.define(f"forward(Tensor q, Tensor k, Tensor v, Tensor(y!) lse, {_FACTS}) -> Tensor(z!)")
library.define(
    f"packed(Tensor qkv, Tensor(y!) lse, int heads, int kv_heads, {_FACTS}) -> Tensor(z!)"
)
library.define(
    "backward(Tensor do, Tensor q, Tensor k, Tensor v, Tensor out_, Tensor lse, Tensor delta, "
    f"Tensor(x!) dq, Tensor(y!) dv, {_FACTS}) -> Tensor(z!)"
)


def _forward(q: Tensor, k: Tensor, v: Tensor, lse: Tensor, *facts: Any, out: Tensor) -> Tensor:
    forward(q, k, v, lse, facts, out)  # pyright: ignore[reportArgumentType] - as the schema has it
    return out


def _packed(
    qkv: Tensor, lse: Tensor, heads: int, kv_heads: int, *facts: Any, out: Tensor
) -> Tensor:
    """The same with q, k and v in one buffer [B, S, heads, D]."""
    q, k, v = qkv.transpose(1, 2).split([heads, kv_heads, kv_heads], dim=1)
    return _forward(q, k, v, lse, *facts, out=out)


def _backward(*arguments: Any, out: Tensor) -> Tensor:
    names = ("do", "q", "k", "v", "out", "lse", "delta", "dq", "dv")
    x: dict[str, Tensor] = dict(zip(names, arguments[:9], strict=True))
    backward(x, arguments[9:], x["dq"], x["dv"], out)
    return out


library.impl("forward", _forward, "CPU")
library.impl("packed", _packed, "CPU")
library.impl("backward", _backward, "CPU")
