"""How NaN in an operand of an attention must propagate to its outputs. Pure.

A kernel that mistakes a row of NaN scores for a row that sees no key writes 0 where other kernels write
NaN, and hides that a training has diverged. So one NaN is planted in a row of q (of do, for gradients)
and one in a key, and the kernel runs once more:

    planted in         must become NaN or infinite                    must not change
    q[b, h, i]         out and lse of that row, if it sees a key      everything else
    do[b, h, i]        dq of that row; dk, dv of the keys it sees     other sequences and key heads
    k[b, hk, j]        out, lse, dq of the rows that see it; dk[j]    other sequences and key heads;
                                                                      out, lse of the other rows

The lse of a library kernel may be a number: that of torch's FlashAttention 2 is (H200, torch 2.11).
A mask that is added to the scores does not hide NaN (NaN - inf is NaN), a mask that replaces scores does.
Not checked are dq of rows that do not see the key, and gradients of the same head's other keys: kernels
differ there (0 * NaN is NaN). They would differ in out for NaN in v, which is not planted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inductor_plugin.attention.check.sample import fully_masked_rows, span
from inductor_plugin.problem.attention import Attention

_OF_KEYS = frozenset({"dk", "dv"})


@dataclass(frozen=True)
class NanSite:
    """Where NaN is planted.

    Attributes:
        operand: ``q``, ``do`` or ``k``.
        sequence: Which sequence.
        head: Which head; for ``k`` a key head.
        row: Position in the sequence; its first number is NaN.
    """

    operand: str
    sequence: int
    head: int
    row: int


def nan_sites(facts: Attention, lengths: Sequence[tuple[int, int]]) -> tuple[NanSite, ...]:
    """Return where to plant NaN, by (Sq, Sk) of each sequence; nothing if no query sees a key."""
    cpu = torch.device("cpu")
    filled = [
        i
        for i, (q, k) in enumerate(lengths)
        if q and k and not fully_masked_rows(facts, q, k, cpu).all()
    ]
    if not filled:
        return ()
    head, tail = filled[0], filled[-1]
    row = int((~fully_masked_rows(facts, *lengths[head], cpu)).nonzero()[-1])
    first, last = span(facts, *lengths[tail], cpu)
    middle = (last >= first).nonzero().flatten()
    # A mask hides this key from some rows and not from others; causal rows would all see key 0.
    limit = last if facts.mask.right >= 0 else first
    key = int(limit[middle[len(middle) // 2]])
    return (
        NanSite("do" if facts.backward else "q", head, 0, row),
        NanSite("k", tail, facts.kv_heads - 1, key),
    )


def spoiled_rows(
    facts: Attention, lengths: tuple[int, int], site: NanSite, output: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return which rows of an output one planted NaN reaches, in its own sequence.

    Returns:
        Which rows of which heads must be NaN or infinite, and which may be: both [heads, rows].
    """
    queries, keys = lengths
    group = facts.heads // facts.kv_heads
    first, last = span(facts, queries, keys, device)
    by_key = output in _OF_KEYS
    shape = (facts.kv_heads, keys) if by_key else (facts.heads, queries)
    must = torch.zeros(shape, dtype=torch.bool, device=device)
    may = must.clone()
    if site.operand == "k":
        sees = (first <= site.row) & (site.row <= last)
        heads = slice(site.head * group, (site.head + 1) * group)
        if by_key:
            must[site.head, site.row], may[site.head] = sees.any(), True
        else:
            must[heads], may[heads] = sees, True if output == "dq" else sees
    elif by_key:
        j = torch.arange(keys, device=device)
        must[site.head // group] = (first[site.row] <= j) & (j <= last[site.row])
        may[site.head // group] = True
    else:
        must[site.head, site.row] = first[site.row] <= last[site.row]
        may[site.head, site.row] = True
    return must, may


def nan_leaks(
    facts: Attention,
    lengths: Sequence[tuple[int, int]],
    planted: Sequence[NanSite],
    output: str,
    results: Sequence[Tensor],
    *,
    library: bool,
) -> str:
    """Return how a kernel treats planted NaN wrongly, empty if it does not.

    Args:
        facts: The attention.
        lengths: (Sq, Sk) of each sequence.
        planted: Where NaN was planted.
        output: Name of the output.
        results: The output, by sequence: [heads, rows, width].
        library: Whether it is a library kernel's.
    """
    for sequence, (result, (queries, keys)) in enumerate(zip(results, lengths, strict=True)):
        infinite = ~result.isfinite().all(-1)
        must = torch.zeros_like(infinite)
        may = must.clone()
        if output == "lse":
            may |= fully_masked_rows(facts, queries, keys, result.device)
        for site in (site for site in planted if site.sequence == sequence):
            must_here, may_here = spoiled_rows(facts, (queries, keys), site, output, result.device)
            if output != "lse" or not library:
                must |= must_here
            may |= may_here
        for wrong, words in (
            (must & ~infinite, "is a number where an operand is NaN"),
            (infinite & ~may, "is NaN or infinite where all it depends on are numbers"),
        ):
            if bool(wrong.any()):
                head, row = (int(i) for i in wrong.nonzero()[0])
                return f"{output} {words} (sequence {sequence}, head {head}, row {row})"
    return ""
