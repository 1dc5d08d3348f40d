"""An attention to measure: its sizes and mask, its operands, its call, and the error of its result."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from inductor_plugin import fmha
from inductor_plugin.attention import unfused
from inductor_plugin.problem.attention import Mask

Function = Callable[..., torch.Tensor]
CAUSAL = Mask(right=0)
LAST_CAUSAL = Mask(right=0, bottom_right=True)
FULL = Mask()


@dataclass(frozen=True)
class Shape:
    """One attention to measure, (B, H, S, D) as views of (B, S, H, D).

    Attributes:
        name: The model or use it represents, and its sizes.
        batch: Sequences.
        heads: Heads of q.
        kv_heads: Heads of k and v.
        queries: Sq; 0 with ``lengths``.
        keys: Sk; 0 with ``lengths``.
        dim: D.
        mask: Which keys a query sees.
        lengths: Lengths of concatenated sequences; empty if all are equal.
        backward: Whether training needs its gradient.
        narrow: Operands of 8 bits (e4m3) instead of bfloat16; the result is bfloat16.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    mask: Mask = CAUSAL
    lengths: tuple[int, ...] = ()
    backward: bool = True
    narrow: bool = False

    @property
    def accepted(self) -> float:
        """Return the largest accepted error of a row (`error_of`).

        bfloat16 gradients of long rows have 0.02; 8-bit weights have 0.036 each.
        """
        return 0.1 if self.narrow else 0.05

    @property
    def plain(self) -> bool:
        """Return whether `torch.nn.functional.scaled_dot_product_attention` can express it."""
        square = self.queries == self.keys
        return not (self.lengths or self.narrow) and (
            self.mask == FULL or (self.mask == CAUSAL and square)
        )

    def scores(self) -> int:
        """Return how many pairs of a query and a key are computed; a causal mask halves them."""
        pairs = self.batch * self.queries * self.keys
        if self.lengths:
            pairs = sum(length * length for length in self.lengths)
        left = self.mask.left
        if left >= 0 and self.keys > left:
            pairs = self.batch * self.queries * (left + 1)  # a band, its first triangle included
        elif self.mask.right == 0:
            pairs //= 2
        return pairs * self.heads

    def flops(self, *, backward: bool) -> int:
        """Return multiplications and additions: 2 products forward, 5 backward, each 2 D a score."""
        return (5 if backward else 2) * 2 * self.dim * self.scores()


def operands(shape: Shape, device: str, seed: int = 0) -> list[torch.Tensor]:
    """Return q, k, v and the gradient of out; identical in each process for the same seed."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    dtype = torch.float8_e4m3fn if shape.narrow else dtype

    def drawn(batch: int, length: int, heads: int) -> torch.Tensor:
        size = (sum(shape.lengths),) if shape.lengths else (batch, length)
        values = torch.randn(*size, heads, shape.dim, generator=generator, device=device)
        values = values.to(dtype)
        return values if shape.lengths else values.transpose(1, 2)

    q = drawn(shape.batch, shape.queries, shape.heads)
    k, v = (drawn(shape.batch, shape.keys, shape.kv_heads) for _ in range(2))
    return [q, k, v, drawn(shape.batch, shape.queries, shape.heads)]


def attention(shape: Shape, device: str) -> Function:
    """Return an attention as a user of the plugin writes it, before it is compiled."""
    if shape.plain:
        return sdpa(shape)
    mask = shape.mask
    facts: dict[str, Any] = {"window": (mask.left, mask.right), "bottom_right": mask.bottom_right}
    if shape.lengths:
        ends, longest = ends_of(shape, device), max(shape.lengths)
        facts |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
        facts |= {"max_seqlen_q": longest, "max_seqlen_k": longest}
    return lambda q, k, v: fmha(q, k, v, **facts)


def sdpa(shape: Shape) -> Function:
    """Return a plain attention as torch's function computes it."""
    causal, gqa = shape.mask == CAUSAL, shape.heads != shape.kv_heads
    return lambda q, k, v: functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=gqa
    )


def ends_of(shape: Shape, device: str) -> torch.Tensor:
    """Return the start of each sequence and the end of the last, int32 [B + 1]."""
    lengths = torch.tensor([0, *shape.lengths], device=device)
    return lengths.cumsum(0).to(torch.int32)


def error_of(
    shape: Shape,
    inputs: Sequence[torch.Tensor],
    out: torch.Tensor,
    gradients: Sequence[torch.Tensor] = (),
) -> float:
    """Return the largest error of a row of out, dq, dk or dv: root mean square, relative to that of all rows.

    It compares the first and the last key head of the first and the last sequence with all their
    query heads, computed in float32. It is infinite if any value is not finite.

    Args:
        shape: The attention.
        inputs: q, k, v and, where gradients are compared, the gradient of out.
        out: The result.
        gradients: dq, dk, dv; empty where only the result is compared.
    """
    results = (out, *gradients)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in results):
        return math.inf
    worst = 0.0
    for batch in sorted({0, shape.batch - 1}):
        for head in sorted({0, shape.kv_heads - 1}):
            q, k, v, *do = (_part(shape, tensor, batch, head) for tensor in inputs)
            keywords: dict[str, Any] = {"mask": shape.mask, "dtype": torch.float32}
            expected = [unfused.forward(q, k, v, **keywords)[0]]
            if gradients:
                reference_gradients = unfused.backward(do[0], q, k, v, **keywords)
                expected += [reference_gradients.dq, reference_gradients.dk, reference_gradients.dv]
            parts = (_part(shape, tensor, batch, head) for tensor in results)
            pairs = zip(parts, expected, strict=True)
            worst = max(
                worst, *(_relative(part.float(), reference_part) for part, reference_part in pairs)
            )
    return worst if math.isfinite(worst) else math.inf


def _part(shape: Shape, tensor: torch.Tensor, batch: int, head: int) -> torch.Tensor:
    """Return one sequence and the heads that belong to one key head, as (1, H, S, D)."""
    share = tensor.shape[1] // shape.kv_heads
    heads = slice(head * share, (head + 1) * share)
    if not shape.lengths:
        return tensor.detach()[batch : batch + 1, heads]
    start = sum(shape.lengths[:batch])
    rows = tensor.detach()[start : start + shape.lengths[batch], heads]
    return rows.transpose(0, 1).unsqueeze(0)


def _relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest error of a row, as a share of the root mean square of the whole."""
    if actual.shape != expected.shape:
        return math.inf
    rows = (actual - expected).square().mean(-1).sqrt()
    least = torch.finfo(torch.float32).tiny
    return float(rows.max() / expected.square().mean().sqrt().clamp_min(least))
