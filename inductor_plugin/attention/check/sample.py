"""Sampled rows of one attention in float64: every kind of tile, at a bounded cost.

The whole output in float64 costs many times as much as the kernel. So up to 256 queries, and for
gradients up to 256 keys, are spread over sequences, heads, first and last rows and the borders of
tiles; each costs one row of scores. Gradients of keys need lse of every query: `exact_rows` computes
it once, in float64 up to `EXACT_FLOPS` (half a second on two CPU cores), above that in float32.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from inductor_plugin.attention import unfused
from inductor_plugin.attention.blockwise import ends_of
from inductor_plugin.problem.attention import Attention

SAMPLED_ROWS = 256
SAMPLED_HEADS = 8
EXACT_FLOPS = 2e10
_BLOCK_BYTES = 32 << 20
_BORDERS = (0, 1, 2, 15, 16, 31, 32, 63, 64, 65, 95, 96, 127, 128, 129, 191, 192, 255, 256)
_QUERY_NAMES = frozenset({"q", "out", "do", "dq"})
_ROW_NAMES = frozenset({"lse", "delta"})


@dataclass(frozen=True)
class SampledRows:
    """Sampled rows of one output, of one sequence and head.

    Attributes:
        output: Name of the output.
        sequence: Which sequence.
        head: Which head of it; a key head for dk and dv.
        rows: Positions in the sequence, [n].
        values: The exact values, [n, width] in float64.
        scale: The unit of errors, [n, 1]: the root of the sum of squares of the terms that are added
            up, over the root of the width; for lse its absolute value, at least 1.
    """

    output: str
    sequence: int
    head: int
    rows: Tensor
    values: Tensor
    scale: Tensor


@dataclass(frozen=True)
class ExactRows:
    """Statistics of every query that gradients are computed from: [H, Sq] in float64 for each sequence.

    Attributes:
        lse: Logarithm of the sum of exponentials.
        delta: sum(out * do) of the exact out.
        terms: sum((out * do) ** 2): the scale of the error of delta for a rounded out.
    """

    lse: list[Tensor]
    delta: list[Tensor]
    terms: list[Tensor]


def positions(length: int, limit: int) -> list[int]:
    """Return up to ``limit`` positions below ``length``: borders of tiles, the end, the rest evenly."""
    if length <= limit:
        return list(range(length))
    borders = [border for border in _BORDERS if border < length][: limit // 2]
    chosen = dict.fromkeys([*borders, length - 1, length - 2])
    steps = limit - len(chosen)
    chosen |= dict.fromkeys(round((i + 1) * (length - 1) / (steps + 1)) for i in range(steps))
    return sorted(chosen)


def spread(count: int, limit: int) -> list[int]:
    """Return up to ``limit`` numbers below ``count``, including the first and the last."""
    if count <= limit:
        return list(range(count))
    return sorted({round(i * (count - 1) / (limit - 1)) for i in range(limit)})


def sequences(
    facts: Attention, name: str, tensor: Tensor, cu: Mapping[str, Tensor]
) -> list[Tensor]:
    """Return each sequence of an operand as a view [heads, length, width]; lse has width 1."""
    whole = lines(facts, name, tensor)
    if not facts.varlen:
        return whole
    of_queries = name in _QUERY_NAMES | _ROW_NAMES
    return [whole[0][:, start:end] for start, end in ends_of(cu["cu_q" if of_queries else "cu_k"])]


def lines(facts: Attention, name: str, tensor: Tensor) -> list[Tensor]:
    """Return an operand as views [heads, rows, width]: one for each batch element, varlen one in all."""
    if name in _ROW_NAMES:
        rows = tensor.view(1, *tensor.shape) if facts.varlen else tensor
        return [row.unsqueeze(-1) for row in rows.unbind(0)]
    return [tensor.transpose(0, 1)] if facts.varlen else list(tensor.unbind(0))


def span(facts: Attention, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the first and the last key each query of a sequence sees, [Sq]; last < first: none."""
    shift = keys - queries if facts.mask.bottom_right else 0
    diagonal = torch.arange(queries, device=device) + shift
    first, last = torch.zeros_like(diagonal), torch.full_like(diagonal, keys - 1)
    if facts.mask.left >= 0:
        first = (diagonal - facts.mask.left).clamp_min(0)
    if facts.mask.right >= 0:
        last = (diagonal + facts.mask.right).clamp_max(keys - 1)
    return first, last


def fully_masked_rows(facts: Attention, queries: int, keys: int, device: torch.device) -> Tensor:
    """Return which queries of a sequence see no key, [Sq]."""
    first, last = span(facts, queries, keys, device)
    return last < first


def unattended_keys(facts: Attention, queries: int, keys: int, device: torch.device) -> Tensor:
    """Return which keys of a sequence no query sees, [Sk]."""
    first, last = span(facts, queries, keys, device)
    some = last >= first
    steps = torch.zeros(keys + 1, dtype=torch.long, device=device)
    ones = torch.ones_like(first[some])
    steps.index_add_(0, first[some], ones)
    steps.index_add_(0, last[some] + 1, -ones)
    return steps.cumsum(0)[:keys] == 0


def exact_rows(facts: Attention, operands: Mapping[str, Tensor]) -> tuple[Tensor, ExactRows]:
    """Return out of the whole call, and lse and delta of every query.

    Args:
        facts: The attention, backward.
        operands: do, q, k, v, and bias, cu_q, cu_k if present.
    """
    exact = 2 * facts.flops <= 5 * EXACT_FLOPS
    dtype = torch.float64 if exact else torch.float32
    with full_precision():
        out, lse = unfused.forward(
            operands["q"],
            operands["k"],
            operands["v"],
            mask=facts.mask,
            scale=facts.scale,
            softcap=facts.softcap,
            bias=operands.get("bias"),
            cu_q=operands.get("cu_q"),
            cu_k=operands.get("cu_k"),
            dtype=dtype,
        )
    pairs = zip(
        sequences(facts, "out", out, operands),
        sequences(facts, "do", operands["do"], operands),
        strict=True,
    )
    products = [a.double() * b.double() for a, b in pairs]
    rows = [row.squeeze(-1).double() for row in sequences(facts, "lse", lse, operands)]
    delta = [product.sum(-1) for product in products]
    terms = [product.square().sum(-1) for product in products]
    return out, ExactRows(rows, delta, terms)


@contextmanager
def full_precision() -> Generator[None, None, None]:
    """Keep float32 products from being rounded to TF32 or bfloat16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Sampler:
    """Computes the sampled rows of one attention."""

    def __init__(self, facts: Attention, operands: Mapping[str, Tensor]) -> None:
        """Split the operands by sequence: q, k, v; do for gradients; bias, cu_q, cu_k if present."""
        names = ("q", "k", "v", *(("do",) if facts.backward else ()))
        self._facts = facts
        self._split = {name: sequences(facts, name, operands[name], operands) for name in names}
        self._bias = operands.get("bias")
        self._group = facts.heads // facts.kv_heads

    def queries(self) -> Iterator[SampledRows]:
        """Yield sampled rows of out and lse, or of dq."""
        for sequence, head, rows in self._picked("q", self._facts.heads):
            q, k, v = (self._of(name, sequence, head) for name in ("q", "k", "v"))
            scores, cap_slope = self._scores(q[rows], k, sequence, head, rows, None)
            lse = torch.logsumexp(scores, -1, keepdim=True)
            lse = lse.masked_fill(lse == -math.inf, math.inf)
            p = torch.exp(scores - lse)
            if not self._facts.backward:
                fully_masked = lse == math.inf
                out = (p @ v).masked_fill(fully_masked, 0.0)
                scale = (p.square() @ _mean_square(v)).sqrt().masked_fill(fully_masked, 0.0)
                yield SampledRows("out", sequence, head, rows, out, scale)
                size = lse.abs().clamp_min(1.0).masked_fill(~lse.isfinite(), 1.0)
                yield SampledRows("lse", sequence, head, rows, lse, size)
                continue
            do = self._of("do", sequence, head)[rows]
            products = do * (p @ v)
            delta = products.sum(-1, keepdim=True)
            noise = products.square().sum(-1, keepdim=True)
            ds, terms = self._score_gradients(p, do, v, delta, noise, cap_slope)
            scale = (terms @ _mean_square(k)).sqrt()
            yield SampledRows("dq", sequence, head, rows, ds @ k, scale)

    def keys(self, exact: ExactRows) -> Iterator[SampledRows]:
        """Yield sampled rows of dk and dv."""
        for sequence, kv_head, columns in self._picked("k", self._facts.kv_heads):
            k = self._split["k"][sequence][kv_head, columns].double()
            v = self._split["v"][sequence][kv_head, columns].double()
            dk, dv = torch.zeros_like(k), torch.zeros_like(v)
            dk_terms, dv_terms = dk.new_zeros(len(columns), 1), dk.new_zeros(len(columns), 1)
            for head in range(kv_head * self._group, (kv_head + 1) * self._group):
                for rows in self._blocks(sequence, len(columns)):
                    q = self._split["q"][sequence][head, rows].double()
                    do = self._split["do"][sequence][head, rows].double()
                    scores, cap_slope = self._scores(q, k, sequence, head, rows, columns)
                    p = torch.exp(scores - exact.lse[sequence][head, rows, None])
                    delta = exact.delta[sequence][head, rows, None]
                    noise = exact.terms[sequence][head, rows, None]
                    ds, terms = self._score_gradients(p, do, v, delta, noise, cap_slope)
                    dv += p.T @ do
                    dk += ds.T @ q
                    dv_terms += p.square().T @ _mean_square(do)
                    dk_terms += terms.T @ _mean_square(q)
            yield SampledRows("dk", sequence, kv_head, columns, dk, dk_terms.sqrt())
            yield SampledRows("dv", sequence, kv_head, columns, dv, dv_terms.sqrt())

    def _picked(self, name: str, heads: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield (sequence, head, positions) of the sample."""
        parts = self._split[name]
        filled = [i for i, part in enumerate(parts) if part.size(1)]
        picks = spread(len(filled) * heads, SAMPLED_HEADS)
        for pick in picks:
            sequence, head = filled[pick // heads], pick % heads
            chosen = positions(parts[sequence].size(1), SAMPLED_ROWS // len(picks))
            yield sequence, head, torch.tensor(chosen, device=parts[sequence].device)

    def _of(self, name: str, sequence: int, head: int) -> Tensor:
        shared = head // self._group if name in ("k", "v") else head
        return self._split[name][sequence][shared].double()

    def _blocks(self, sequence: int, width: int) -> Iterator[Tensor]:
        q = self._split["q"][sequence]
        step = max(_BLOCK_BYTES // (8 * max(width, q.size(2))), 1)
        for start in range(0, q.size(1), step):
            yield torch.arange(start, min(start + step, q.size(1)), device=q.device)

    def _scores(
        self,
        q: Tensor,
        k: Tensor,
        sequence: int,
        head: int,
        rows: Tensor,
        columns: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return scores [rows, columns] and the derivative of the cap; ``columns=None`` is all."""
        facts = self._facts
        queries = self._split["q"][sequence].size(1)
        keys = self._split["k"][sequence].size(1)
        scores, cap_slope = facts.scale * (q @ k.T), None
        if facts.softcap:
            capped = torch.tanh(scores / facts.softcap)
            scores, cap_slope = facts.softcap * capped, 1 - capped.square()
        j = torch.arange(keys, device=q.device) if columns is None else columns
        if self._bias is not None:
            full = self._bias.reshape((1,) * (4 - self._bias.dim()) + tuple(self._bias.shape))
            index = (sequence, head, rows[:, None], j[None])
            ends = zip(index, full.shape, strict=True)
            scores = scores + full[tuple(i if n > 1 else i * 0 for i, n in ends)].double()
        first, last = (bound[rows, None] for bound in span(facts, queries, keys, q.device))
        return scores.masked_fill((j < first) | (j > last), -math.inf), cap_slope

    def _score_gradients(
        self,
        p: Tensor,
        do: Tensor,
        v: Tensor,
        delta: Tensor,
        noise: Tensor,
        cap_slope: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return scale * ds, and the sum of squares of its terms, down to single products."""
        weight = self._facts.scale * (p if cap_slope is None else p * cap_slope)
        dp = do @ v.T
        added = dp.square() + do.square() @ v.square().T + delta.square() + noise
        return weight * (dp - delta), weight.square() * added


def _mean_square(rows: Tensor) -> Tensor:
    return rows.square().mean(-1, keepdim=True)
