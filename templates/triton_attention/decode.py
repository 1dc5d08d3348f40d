"""Attention of a few queries to many keys, as decoding makes it: bound by reading the keys once.

All heads of q that share one of k and v are rows of one block, so that each key is read once for them.
Programs divide the keys between them: each writes its sums to scratch memory, and the last one to
arrive joins them in their order, so that the result is deterministic (see triton_split_k).
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
from inductor_plugin.templates.triton_attention.block import Block, fits, is_blackwell
from inductor_plugin.templates.triton_attention.facts import (
    capability_of,
    constants_of,
    padded,
    unfit,
)

MOST_ROWS = 64
"""Queries times heads that share one of k and v; with more of them the tensor cores are the limit."""
FEWEST_KEYS = 128
"""Below, a program has too little to read to be worth more than the others' waiting."""
LEAST_ROWS = 16
"""Of a tensor core's operand."""
MOST_SCRATCH_BYTES = 64 << 20
"""More than this is not in the second-level cache when the parts are joined."""
MULTIPROCESSORS = 132
"""Of an H100; how many programs are wanted on a GPU that is not known."""
_ROWS_TIMES_WIDTH = 64 * 128
"""With more elements of the result 4 warps have no registers left."""
_STEPS: dict[int, tuple[tuple[int, int], ...]] = {
    64: ((128, 3), (64, 4), (64, 2), (32, 4)),
    128: ((64, 3), (128, 2), (64, 2), (32, 4)),
    256: ((64, 2), (32, 3), (32, 2), (16, 3)),
}
"""Keys of a step and steps in flight by the wider of the padded head dims, long reads first."""
_FLOAT32_STEPS = ((16, 2),)
_WIDEST, _WIDEST_KEYS = 256, 32
"""On 10.0 more keys a step of heads as wide spill (8 bytes for 64, Triton 3.8)."""


@dataclass(frozen=True)
class Share:
    """What one program computes.

    Attributes:
        n: Keys of a step.
        stages: Steps in flight.
        warps: Warps.
        splits: Programs that divide the keys of one block between them.
    """

    n: int
    stages: int
    warps: int
    splits: int

    @property
    def name(self) -> str:
        """Its name, unique among those of one problem."""
        return f"decode_{self.n}_p{self.splits}_s{self.stages}_w{self.warps}"


class TritonAttentionDecode:
    """Triton kernels for attention of few queries, dense."""

    name = "triton_attention_decode"
    backend = "TRITON"
    ops = (FORWARD,)

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        return unfit(problem) or unfit_for_decode(problem)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first."""
        return [candidate(problem, share) for share in shares_of(problem)[:SHARED]]


def unfit_for_decode(problem: Problem) -> str | None:
    """Return why an attention is none of few queries to many keys, None if it is."""
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
    """Return the rows of one block: queries times heads that share one of k and v, padded."""
    heads = 1 << (attention.heads // attention.kv_heads - 1).bit_length()
    return max(LEAST_ROWS, queries_of(attention) * heads)


def queries_of(attention: Attention) -> int:
    """Return the queries of one block: all of them, padded."""
    return 1 << (attention.queries - 1).bit_length()


def shares_of(problem: Problem) -> list[Share]:
    """Return all ways to divide a problem that its GPU can hold, the most promising first."""
    attention = attention_of(problem)
    width = max(padded(attention.head_dim), padded(attention.value_dim))
    steps = _FLOAT32_STEPS if attention.dtype == "float32" else _STEPS[max(64, width)]
    if width == _WIDEST and is_blackwell(problem):
        steps = [(n, stages) for n, stages in steps if n <= _WIDEST_KEYS]
    rows = rows_of(attention)
    warps = 8 if rows * width > _ROWS_TIMES_WIDTH else 4
    fitting = [(n, stages) for n, stages in steps if fits(Block(rows, n, stages, warps), problem)]
    made = [
        Share(n, stages, warps, splits)
        for splits in _splits(problem, attention)
        for n, stages in fitting
        if splits == 1 or splits * n <= attention.keys
    ]
    fit = [one for one in made if scratch_bytes(attention, one) <= MOST_SCRATCH_BYTES]
    return sorted(fit, key=lambda one: fitting.index((one.n, one.stages)) // 2)


def _splits(problem: Problem, attention: Attention) -> list[int]:
    """Return into how many parts the keys may be divided, the best first.

    As many as keep all multiprocessors busy; twice as many, so that a slow one holds up less; none.
    The scratch memory has a fixed size: with a result whose size is known only at run time, none.
    """
    fixed = {(0, 0), (0, 2), (1, 1)}
    if any((one.operand, one.dim) in fixed for one in problem.dynamic):
        return [1]
    wanted = problem.target.multiprocessors if problem.target else MULTIPROCESSORS
    tiles = attention.batch * attention.kv_heads
    once = max(1, wanted // tiles)
    most = max(1, attention.keys // FEWEST_KEYS)
    return list(dict.fromkeys(min(most, one) for one in (once, 2 * once, 1)))


def scratch_bytes(attention: Attention, share: Share) -> int:
    """Return what the parts and their counters take."""
    if share.splits == 1:
        return 0
    tiles = attention.batch * attention.kv_heads
    parts = tiles * share.splits * rows_of(attention) * (padded(attention.value_dim) + 2)
    return 16 * ceil_div(4 * (parts + tiles), 16)


def candidate(problem: Problem, share: Share) -> Candidate:
    """Return the kernel that divides an attention in a way."""
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
