"""Attention of a few queries to many keys, as in decoding: bound by reading the keys once.

All heads of q that share a head of k and v are rows of one block, so that each key is read once for them.
Programs divide the keys among themselves: each writes its partial sums to scratch memory, and the last
program reduces them in a fixed order, so that the result is deterministic (see triton_split_k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.cost.tile import ceil_div
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import FORWARD, Attention, attention_of
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.templates.triton.order import SHARED
from inductor_plugin.templates.triton.product import text_of
from inductor_plugin.templates.triton_attention.block import ForwardBlock, fits, is_blackwell
from inductor_plugin.templates.triton_attention.facts import (
    capability_of,
    constants_of,
    padded,
    why_not,
)

MOST_ROWS = 64
"""Queries times heads that share a head of k and v; with more, tensor cores are the bottleneck."""
FEWEST_KEYS = 128
"""Keys of a program, at least: with fewer, splitting does not pay for the synchronization."""
LEAST_ROWS = 16
"""Rows of a tensor core's operand, at least."""
MOST_SCRATCH_BYTES = 64 << 20
"""A larger scratch memory would not be in the L2 cache when the parts are reduced."""
MULTIPROCESSORS = 132
"""Of an H100; assumed for an unknown GPU."""
_ROWS_TIMES_WIDTH = 64 * 128
"""With more elements of the result, 4 warps run out of registers."""
_STEPS: dict[int, tuple[tuple[int, int], ...]] = {
    64: ((128, 3), (64, 4), (64, 2), (32, 4)),
    128: ((64, 3), (128, 2), (64, 2), (32, 4)),
    256: ((64, 2), (32, 3), (32, 2), (16, 3)),
}
"""(Keys of a step, pipeline stages) by the wider of the padded head dims, longest reads first."""
_FLOAT32_STEPS = ((16, 2),)
_WIDEST, _WIDEST_KEYS = 256, 32
"""On 10.0, heads of this width spill with more keys a step (8 bytes for 64, Triton 3.8)."""


@dataclass(frozen=True)
class KeySplit:
    """How the keys are divided among programs.

    Attributes:
        n: Keys of a step.
        stages: Pipeline stages.
        warps: Warps.
        splits: Programs among which the keys of one block are divided.
    """

    n: int
    stages: int
    warps: int
    splits: int

    @property
    def name(self) -> str:
        """The kernel's name, unique within a problem."""
        return f"decode_{self.n}_p{self.splits}_s{self.stages}_w{self.warps}"


class TritonAttentionDecode:
    """Triton kernels for attention of few queries, dense."""

    name = "triton_attention_decode"
    backend = "TRITON"
    ops = (FORWARD,)

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        return why_not(problem) or why_not_decode(problem)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the candidates, most promising first."""
        return [candidate(problem, share) for share in shares_of(problem)[:SHARED]]


def why_not_decode(problem: Problem) -> str | None:
    """Return why an attention is not one of few queries to many keys, None if it is."""
    attention = attention_of(problem)
    if attention.varlen:
        return "it is for sequences of one length"
    if rows_of(attention) > MOST_ROWS:
        each = attention.heads // attention.kv_heads
        return (
            f"it is for at most {MOST_ROWS} rows of one key head, this has {attention.queries} "
            f"queries of {each} heads"
        )
    if attention.keys < FEWEST_KEYS:
        return f"it is for at least {FEWEST_KEYS} keys, this has {attention.keys}"
    return None


def rows_of(attention: Attention) -> int:
    """Return the rows of one block: queries times heads that share a head of k and v, padded."""
    heads = 1 << (attention.heads // attention.kv_heads - 1).bit_length()
    return max(LEAST_ROWS, queries_of(attention) * heads)


def queries_of(attention: Attention) -> int:
    """Return the queries of one block: all of them, padded."""
    return 1 << (attention.queries - 1).bit_length()


def shares_of(problem: Problem) -> list[KeySplit]:
    """Return all divisions of a problem that fit its GPU, most promising first."""
    attention = attention_of(problem)
    width = max(padded(attention.head_dim), padded(attention.value_dim))
    steps = _FLOAT32_STEPS if attention.dtype == "float32" else _STEPS[max(64, width)]
    if width == _WIDEST and is_blackwell(problem):
        steps = [(n, stages) for n, stages in steps if n <= _WIDEST_KEYS]
    rows = rows_of(attention)
    warps = 8 if rows * width > _ROWS_TIMES_WIDTH else 4
    fitting = [
        (n, stages) for n, stages in steps if fits(ForwardBlock(rows, n, stages, warps), problem)
    ]
    shares = [
        KeySplit(n, stages, warps, splits)
        for splits in _splits(problem, attention)
        for n, stages in fitting
        if splits == 1 or splits * n <= attention.keys
    ]
    shares = [x for x in shares if scratch_bytes(attention, x) <= MOST_SCRATCH_BYTES]
    return sorted(shares, key=lambda share: fitting.index((share.n, share.stages)) // 2)


def _splits(problem: Problem, attention: Attention) -> list[int]:
    """Return into how many parts the keys may be divided, best first.

    These are as many as keep all multiprocessors busy, twice as many to balance the load, and 1. A result
    whose size is known only at run time is not split, because the scratch memory has a fixed size.
    """
    fixed = {(0, 0), (0, 2), (1, 1)}
    if any((extent.operand, extent.dim) in fixed for extent in problem.dynamic):
        return [1]
    programs = problem.target.multiprocessors if problem.target else MULTIPROCESSORS
    tiles = attention.batch * attention.kv_heads
    once = max(1, programs // tiles)
    most = max(1, attention.keys // FEWEST_KEYS)
    return list(dict.fromkeys(min(most, parts) for parts in (once, 2 * once, 1)))


def scratch_bytes(attention: Attention, share: KeySplit) -> int:
    """Return the bytes of the partial sums and their counters."""
    if share.splits == 1:
        return 0
    tiles = attention.batch * attention.kv_heads
    parts = tiles * share.splits * rows_of(attention) * (padded(attention.value_dim) + 2)
    return 16 * ceil_div(4 * (parts + tiles), 16)


def candidate(problem: Problem, share: KeySplit) -> Candidate:
    """Return the candidate that divides an attention in this way."""
    attention = attention_of(problem)
    constants = constants_of(problem) | {
        "HEADS_PER_KV": attention.heads // attention.kv_heads,
        "BLOCK_M": queries_of(attention),
        "ROWS": rows_of(attention),
        "BLOCK_N": share.n,
        "SPLITS": share.splits,
    }
    lse = attention.index("lse")
    return Candidate(
        template=TritonAttentionDecode.name,
        name=share.name,
        config={**constants, "num_stages": share.stages, "num_warps": share.warps},
        kernel=TritonSource(
            name="attention_decode",
            text=text_of(__file__),
            grid="rows",
            constants=tuple(constants.items()),
            num_stages=share.stages,
            num_warps=share.warps,
            scratch_bytes=scratch_bytes(attention, share),
            capability=capability_of(attention),
            mutated=() if lse is None else (lse,),
            extents=((0, 0), (1, 1), (0, 2)),
        ),
        description=f"steps of {share.n} keys, in {share.splits} parts",
    )
