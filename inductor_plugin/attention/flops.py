"""FLOP formulas of `fmha` and its gradient, for `torch.utils.flop_counter`."""

from __future__ import annotations

from typing import Any


def forward_flops(*operands: Any, **keywords: Any) -> int:
    """Return the FLOPs of the operator, from the shapes of its operands."""
    q, k, v, _, cu = (*operands, None, None)[:5]
    return _count(q, k, v, keywords.get("cu_seqlens_q", cu), _window(keywords), (1, 1))


def backward_flops(*operands: Any, **keywords: Any) -> int:
    """Return the FLOPs of its gradient, from the shapes of its operands."""
    _, q, k, v, _, _, _, _, cu = (*operands, None, None, None)[:9]
    return _count(q, k, v, keywords.get("cu_seqlens_q", cu), _window(keywords), (3, 2))


def _count(
    q: Any, k: Any, v: Any, cu_q: Any, window: tuple[int, int], products: tuple[int, int]
) -> int:
    """Return the FLOPs of the products over D and over Dv, from shapes.

    As in `torch.utils.flop_counter`, a causal mask does not reduce the count. A window limited on both
    sides does, since that is its purpose. Varlen sequences are assumed to have equal lengths.
    """
    varlen = cu_q is not None
    queries, keys = (q[0], k[0]) if varlen else (q[0] * q[2], k[2])
    if varlen:
        keys = -(-keys // (cu_q[0] - 1))
    if min(window) >= 0:
        keys = min(keys, window[0] + window[1] + 1)
    by_d, by_dv = products
    return 2 * queries * q[1] * keys * (by_d * q[-1] + by_dv * v[-1])


def _window(keywords: dict[str, Any]) -> tuple[int, int]:
    return keywords.get("window_left", -1), keywords.get("window_right", -1)
