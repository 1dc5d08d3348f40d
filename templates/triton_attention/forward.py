"""Attention forward: one program a block of queries and a head, its keys in steps, scores never in memory.

After FlashAttention 2 (https://arxiv.org/abs/2307.08691): a running maximum and sum for each row. Keys
that every row of a block sees take no mask; those that none sees are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

from inductor_plugin.cost.tile import ceil_div
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import FORWARD, NARROW, Attention, attention_of
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.templates.triton.order import LIMIT, SHARED
from inductor_plugin.templates.triton.product import TMA_CAPABILITY, text_of, too_old
from inductor_plugin.templates.triton_attention.block import Block, fits
from inductor_plugin.templates.triton_attention.decode import unfit_for_decode
from inductor_plugin.templates.triton_attention.facts import (
    capability_of,
    constants_of,
    even,
    padded,
    pieces_of,
    unfit,
    unfit_for_tma,
)

MULTIPROCESSORS = 132
"""Of an H100; with as many programs, a GPU that is not known has none idle."""
LONG = 64
"""Queries from which on a block has this many at least."""

# By the wider of the padded head dims. What each takes on sm_80, sm_90a and sm_100a is measured by
# `benchmarks.attention.compile`, in benchmarks/results/attention_triton.json.
_POINTER: dict[int, tuple[Block, ...]] = {
    64: (
        Block(128, 64, 3, 4), Block(128, 128, 2, 8), Block(128, 64, 3, 8), Block(64, 64, 3, 4),
        Block(64, 128, 2, 4), Block(64, 32, 3, 4), Block(32, 64, 3, 4), Block(16, 64, 3, 4),
    ),
    128: (
        Block(128, 64, 3, 8), Block(128, 128, 2, 8), Block(64, 64, 3, 4), Block(64, 32, 3, 4),
        Block(64, 64, 2, 4), Block(128, 32, 3, 8), Block(64, 64, 3, 8), Block(32, 64, 2, 4),
        Block(16, 64, 2, 4),
    ),
    256: (
        Block(64, 64, 2, 8), Block(128, 64, 2, 8), Block(128, 32, 2, 8), Block(64, 32, 3, 8),
        Block(64, 32, 2, 8), Block(32, 64, 2, 4), Block(32, 32, 2, 4), Block(16, 32, 2, 4),
    ),
}  # fmt: skip
_POINTER_FLOAT32: dict[int, tuple[Block, ...]] = {
    64: (Block(64, 32, 2, 8), Block(32, 32, 2, 4), Block(32, 32, 2, 8), Block(16, 32, 2, 4)),
    128: (Block(32, 16, 2, 8), Block(16, 16, 2, 4)),
    256: (Block(32, 32, 2, 8), Block(32, 16, 2, 8), Block(16, 16, 2, 4)),
}
"""Multiplied without tensor cores where TF32 is not allowed, which takes registers."""
_TMA: dict[int, tuple[Block, ...]] = {
    64: (
        Block(128, 128, 3, 8, tma=True), Block(128, 64, 3, 4, tma=True),
        Block(128, 64, 3, 8, tma=True), Block(64, 64, 3, 4, tma=True),
    ),
    128: (
        Block(128, 128, 2, 8, tma=True), Block(128, 64, 3, 8, tma=True),
        Block(64, 64, 3, 4, tma=True),
    ),
    256: (
        Block(128, 64, 2, 8, tma=True), Block(64, 64, 2, 8, tma=True),
        Block(64, 32, 3, 4, tma=True),
    ),
}  # fmt: skip
_SPECIALIZED: dict[int, dict[int, tuple[Block, ...]]] = {
    9: {
        64: (Block(128, 128, 3, 4, tma=True, specialize=True),
             Block(128, 64, 3, 4, tma=True, specialize=True)),
        128: (Block(128, 128, 2, 4, tma=True, specialize=True),
              Block(128, 64, 3, 4, tma=True, specialize=True)),
        256: (Block(128, 64, 2, 4, tma=True, specialize=True),
              Block(128, 32, 2, 4, tma=True, specialize=True)),
    },
    10: {
        64: (Block(128, 128, 3, 8, tma=True, specialize=True),
             Block(128, 128, 3, 4, tma=True, specialize=True)),
        128: (Block(128, 128, 2, 8, tma=True, specialize=True),
              Block(128, 64, 3, 8, tma=True, specialize=True)),
    },
}  # fmt: skip
"""By compute capability. On 9.0 Triton divides 128 rows between two groups of 4 warps, and with 8 does
nothing; on 10.0 the 4 that correct the sums spill at a head dim of 128."""


class TritonAttention:
    """Triton kernels for attention, dense or of sequences of different lengths."""

    name = "triton_attention"
    backend = "TRITON"
    ops = (FORWARD,)

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        return unfit(problem)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first."""
        limit = LIMIT if unfit_for_decode(problem) else SHARED
        return [candidate(problem, block) for block in blocks_of(problem)[:limit]]


def blocks_of(problem: Problem) -> list[Block]:
    """Return all blocks for a problem that its GPU can hold, the most promising first."""
    attention = attention_of(problem)
    length = attention.queries // (attention.batch if attention.varlen else 1)
    wanted = problem.target.multiprocessors if problem.target else MULTIPROCESSORS

    def idle(block: Block) -> int:
        programs = ceil_div(length, block.m) * attention.batch * attention.heads
        return block.m if programs < wanted else 0

    kinds = [[one for one in kind if fits(one, problem)] for kind in _kinds(problem)]
    mixed = [one for one in chain.from_iterable(zip_longest(*kinds)) if one is not None]
    return sorted(_high_enough(mixed, length), key=idle)


def _high_enough(blocks: Sequence[Block], length: int) -> list[Block]:
    """Return the blocks without those much higher or lower than a sequence needs."""
    highest = max(padded(max(length, 1)), min((one.m for one in blocks), default=0))
    fitting = [one for one in blocks if one.m <= highest]
    lowest = min(LONG, highest // 2)
    high = [one for one in fitting if one.m >= lowest]
    return high if len(high) > 1 else fitting


def _kinds(problem: Problem) -> list[tuple[Block, ...]]:
    """Return the blocks of each way to load, the best way first."""
    attention = attention_of(problem)
    width = max(LONG, padded(attention.head_dim), padded(attention.value_dim))
    if attention.dtype == "float32":
        return [_POINTER_FLOAT32[width]]
    # What a descriptor loads is in shared memory and would come to registers and back to be widened.
    if attention.dtype == NARROW or unfit_for_tma(problem) or too_old(problem, TMA_CAPABILITY):
        return [_POINTER[width]]
    return [_TMA[width], _POINTER[width], _specialized(problem, attention, width)]


def _specialized(problem: Problem, attention: Attention, width: int) -> tuple[Block, ...]:
    """Return the blocks with warps of their own that load."""
    major = problem.target.capability[0] if problem.target else 0
    # Where a bias is loaded in the loop, Triton cannot give all loads to warps of their own. For 10.0
    # Triton 3.8 makes one `trap` of a kernel whose scores are the sum of two products.
    if attention.biased or (major == 10 and pieces_of(attention.head_dim).second):
        return ()
    return _SPECIALIZED.get(major, {}).get(width, ())


def candidate(problem: Problem, block: Block) -> Candidate:
    """Return the kernel that computes an attention by blocks."""
    attention = attention_of(problem)
    constants = constants_of(problem) | {
        "BLOCK_M": block.m,
        "BLOCK_N": block.n,
        "SPLITS": 1,
        "EVEN_N": not attention.varlen and even(problem, 1, 2, block.n),
        "USE_TMA": block.tma,
        "WARP_SPECIALIZE": block.specialize,
    }
    lse, cu_q = attention.index("lse"), attention.index("cu_q")
    return Candidate(
        template=TritonAttention.name,
        name=block.name,
        config={**constants, "num_stages": block.stages, "num_warps": block.warps},
        kernel=TritonSource(
            # Inductor has one grid for a name; another would be named by who came first.
            name="attention" if cu_q is None else "attention_varlen",
            text=text_of(__file__),
            grid="rows" if cu_q is None else "tokens",
            constants=tuple(constants.items()),
            num_stages=block.stages,
            num_warps=block.warps,
            capability=TMA_CAPABILITY if block.tma else capability_of(attention),
            descriptors=(0, 1, 2) if block.tma else (),
            mutated=() if lse is None else (lse,),
            extents=((0, 0), (0, 1), (0, 2)) if cu_q is None else ((cu_q, 0), (0, 1), (0, 0)),
        ),
        description=block.description,
    )
