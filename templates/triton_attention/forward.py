"""Attention forward: one program for a block of queries and a head loops over keys; scores stay on chip.

As in FlashAttention 2 (https://arxiv.org/abs/2307.08691), each row has a running maximum and sum. Keys that
every row of a block sees need no mask; keys that no row sees are not read.
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
from inductor_plugin.templates.triton_attention.block import ForwardBlock, fits
from inductor_plugin.templates.triton_attention.decode import why_not_decode
from inductor_plugin.templates.triton_attention.facts import (
    capability_of,
    constants_of,
    even,
    padded,
    pieces_of,
    why_not,
    why_not_tma,
)

MULTIPROCESSORS = 132
"""Of an H100; assumed for an unknown GPU."""
LONG = 64
"""For sequences of at least as many queries, a block has at least this many."""

# By the wider of the padded head dims. What each uses on sm_80, sm_90a and sm_100a is measured by
# `benchmarks.attention.compile`, in benchmarks/results/attention_triton.json.
_POINTER: dict[int, tuple[ForwardBlock, ...]] = {
    64: (
        ForwardBlock(128, 64, 3, 4), ForwardBlock(128, 128, 2, 8), ForwardBlock(128, 64, 3, 8), ForwardBlock(64, 64, 3, 4),
        ForwardBlock(64, 128, 2, 4), ForwardBlock(64, 32, 3, 4), ForwardBlock(32, 64, 3, 4), ForwardBlock(16, 64, 3, 4),
    ),
    128: (
        ForwardBlock(128, 64, 3, 8), ForwardBlock(128, 128, 2, 8), ForwardBlock(64, 64, 3, 4), ForwardBlock(64, 32, 3, 4),
        ForwardBlock(64, 64, 2, 4), ForwardBlock(128, 32, 3, 8), ForwardBlock(64, 64, 3, 8), ForwardBlock(32, 64, 2, 4),
        ForwardBlock(16, 64, 2, 4),
    ),
    256: (
        ForwardBlock(64, 64, 2, 8), ForwardBlock(128, 64, 2, 8), ForwardBlock(128, 32, 2, 8), ForwardBlock(64, 32, 3, 8),
        ForwardBlock(64, 32, 2, 8), ForwardBlock(32, 64, 2, 4), ForwardBlock(32, 32, 2, 4), ForwardBlock(16, 32, 2, 4),
    ),
}  # fmt: skip
_POINTER_FLOAT32: dict[int, tuple[ForwardBlock, ...]] = {
    64: (
        ForwardBlock(64, 32, 2, 8),
        ForwardBlock(32, 32, 2, 4),
        ForwardBlock(32, 32, 2, 8),
        ForwardBlock(16, 32, 2, 4),
    ),
    128: (ForwardBlock(32, 16, 2, 8), ForwardBlock(16, 16, 2, 4)),
    256: (ForwardBlock(32, 32, 2, 8), ForwardBlock(32, 16, 2, 8), ForwardBlock(16, 16, 2, 4)),
}
"""Multiplied without tensor cores where TF32 is not allowed, which needs more registers."""
_TMA: dict[int, tuple[ForwardBlock, ...]] = {
    64: (
        ForwardBlock(128, 128, 3, 8, tma=True), ForwardBlock(128, 64, 3, 4, tma=True),
        ForwardBlock(128, 64, 3, 8, tma=True), ForwardBlock(64, 64, 3, 4, tma=True),
    ),
    128: (
        ForwardBlock(128, 128, 2, 8, tma=True), ForwardBlock(128, 64, 3, 8, tma=True),
        ForwardBlock(64, 64, 3, 4, tma=True),
    ),
    256: (
        ForwardBlock(128, 64, 2, 8, tma=True), ForwardBlock(64, 64, 2, 8, tma=True),
        ForwardBlock(64, 32, 3, 4, tma=True),
    ),
}  # fmt: skip
_SPECIALIZED: dict[int, dict[int, tuple[ForwardBlock, ...]]] = {
    10: {
        64: (ForwardBlock(128, 128, 3, 8, tma=True, specialize=True),
             ForwardBlock(128, 128, 3, 4, tma=True, specialize=True)),
        128: (ForwardBlock(128, 128, 2, 8, tma=True, specialize=True),
              ForwardBlock(128, 64, 3, 8, tma=True, specialize=True)),
    },
}  # fmt: skip
"""By compute capability. On 10.0 the 4 warps that rescale the sums spill at a head dim of 128. None for 9.0: an H200
computed wrong numbers (Triton 3.6, blocks of 128 by 128 in 2 and 3 stages, head dims 32 to 96, out up to inf), and Triton's
own test of such a kernel (python/tutorials/06-fused-attention.py) specializes warps on Blackwell alone."""


class TritonAttention:
    """Triton kernels for attention, dense or varlen."""

    name = "triton_attention"
    backend = "TRITON"
    ops = (FORWARD,)

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        return why_not(problem)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the candidates, most promising first."""
        limit = LIMIT if why_not_decode(problem) else SHARED
        return [candidate(problem, block) for block in blocks_of(problem)[:limit]]


def blocks_of(problem: Problem) -> list[ForwardBlock]:
    """Return all blocks for a problem that fit its GPU, most promising first."""
    attention = attention_of(problem)
    length = attention.queries // (attention.batch if attention.varlen else 1)
    busy = problem.target.multiprocessors if problem.target else MULTIPROCESSORS

    def idle(block: ForwardBlock) -> int:
        programs = ceil_div(length, block.m) * attention.batch * attention.heads
        return block.m if programs < busy else 0

    kinds = [[block for block in kind if fits(block, problem)] for kind in _kinds(problem)]
    mixed = [block for block in chain.from_iterable(zip_longest(*kinds)) if block is not None]
    return sorted(_of_fitting_height(mixed, length), key=idle)


def _of_fitting_height(blocks: Sequence[ForwardBlock], length: int) -> list[ForwardBlock]:
    """Return the blocks without those much higher or lower than a sequence needs."""
    highest = max(padded(max(length, 1)), min((block.m for block in blocks), default=0))
    fitting = [block for block in blocks if block.m <= highest]
    lowest = min(LONG, highest // 2)
    high = [block for block in fitting if block.m >= lowest]
    return high if len(high) > 1 else fitting


def _kinds(problem: Problem) -> list[tuple[ForwardBlock, ...]]:
    """Return the blocks of each way to load operands, best way first."""
    attention = attention_of(problem)
    width = max(LONG, padded(attention.head_dim), padded(attention.value_dim))
    if attention.dtype == "float32":
        return [_POINTER_FLOAT32[width]]
    # Descriptors load to shared memory; to be widened, operands would move to registers and back.
    if attention.dtype == NARROW or why_not_tma(problem) or too_old(problem, TMA_CAPABILITY):
        return [_POINTER[width]]
    return [_TMA[width], _POINTER[width], _specialized(problem, attention, width)]


def _specialized(problem: Problem, attention: Attention, width: int) -> tuple[ForwardBlock, ...]:
    """Return the blocks with warp specialization."""
    major = problem.target.capability[0] if problem.target else 0
    # Where a bias is loaded in the loop, Triton cannot assign all loads to separate warps. For 10.0
    # Triton 3.8 compiles a kernel whose scores are the sum of two products to a single `trap`.
    if attention.biased or (major == 10 and pieces_of(attention.head_dim).second):
        return ()
    return _SPECIALIZED.get(major, {}).get(width, ())


def candidate(problem: Problem, block: ForwardBlock) -> Candidate:
    """Return the candidate that computes an attention with this block."""
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
            # Inductor has one grid for each name, so kernels with another grid need another name.
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
