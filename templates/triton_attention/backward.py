"""Gradients of an attention by two loops without atomics, so that results are bitwise reproducible.

A program has either a block of keys and loops over the queries of all heads that share them (dk, dv), or
a block of queries and loops over the keys (dq). Scores are computed twice, 7 products instead of 5, but
programs add nothing to each other's sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import BACKWARD, Attention, attention_of
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.templates.triton.product import TMA_CAPABILITY, text_of
from inductor_plugin.templates.triton_attention.backward_blocks import BackwardBlocks, blocks_of
from inductor_plugin.templates.triton_attention.facts import (
    CAPABILITY,
    constants_of,
    even,
    padded,
    why_not,
)

LEAST_DIM = 32
"""Least head dim: below it, a tensor core's step is mostly padding."""
_ROWS = ("do", "dq", "dv")
"""Operands that must have the type of q, and a dense last dimension; q, k and v are checked elsewhere, and out
is not read, since delta replaces it."""


class TritonAttentionBackward:
    """Triton kernels for the gradients of an attention, bitwise reproducible."""

    name = "triton_attention_backward"
    backend = "TRITON"
    ops = (BACKWARD,)

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        return why_not(problem) or _why_not_rows(problem) or _why_not_blocks(problem)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the candidates, most promising first."""
        return [candidate(problem, blocks) for blocks in blocks_of(problem)]


def candidate(problem: Problem, blocks: BackwardBlocks) -> Candidate:
    """Return the candidate that computes the gradients with these blocks."""
    attention = attention_of(problem)
    at = {name: index for index, name in enumerate(attention.operands)}
    constants = constants_of(problem) | _extents(problem, attention, blocks)
    sizes = (("q", 0), ("q", 1), ("q", 2), ("k", 1), ("k", 2))
    tokens = (("cu_q", 0), ("q", 1), ("q", 0), ("k", 1), ("k", 0))
    return Candidate(
        template=TritonAttentionBackward.name,
        name=blocks.name,
        config={**constants, "num_stages": blocks.stages, "num_warps": blocks.warps},
        kernel=TritonSource(
            name=f"attention{'_varlen' if attention.varlen else ''}_backward",
            text=text_of(__file__),
            grid="tokens_backward" if attention.varlen else "rows_backward",
            constants=tuple(constants.items()),
            num_stages=blocks.stages,
            num_warps=blocks.warps,
            capability=TMA_CAPABILITY if blocks.tma else CAPABILITY,
            descriptors=tuple(at[name] for name in ("do", "q", "k", "v")) if blocks.tma else (),
            mutated=(at["dq"], at["dv"]),
            extents=tuple((at[name], dim) for name, dim in (tokens if attention.varlen else sizes)),
        ),
        description=f"keys {blocks.n1}x{blocks.m1}, queries {blocks.m2}x{blocks.n2}"
        + (", by descriptors" if blocks.tma else ""),
    )


def _extents(
    problem: Problem, attention: Attention, blocks: BackwardBlocks
) -> dict[str, bool | int | str]:
    """Return the blocks, and which of them divide the queries or keys of every call."""

    def whole(operand: str, block: int) -> bool:
        index = attention.operands.index(operand)
        return not attention.varlen and even(problem, index, 2, block)

    return {
        # The forward pass splits the head dim in two pieces; here dk is stored as one.
        "BLOCK_D": padded(attention.head_dim),
        "BLOCK_D2": 0,
        "PRECISION": repr(_precision(problem, attention)),
        "USE_TMA": blocks.tma,
        "SCALE": repr(attention.scale),
        "GROUP": attention.heads // attention.kv_heads,
        "BLOCK_N1": blocks.n1,
        "BLOCK_M1": blocks.m1,
        "BLOCK_M2": blocks.m2,
        "BLOCK_N2": blocks.n2,
        "EVEN_N1": whole("k", blocks.n1),
        "EVEN_M1": whole("q", blocks.m1),
        "EVEN_M2": whole("q", blocks.m2),
        "EVEN_N2": whole("k", blocks.n2),
    }


def _precision(problem: Problem, attention: Attention) -> str:
    """Return how float32 is multiplied: by three products of TF32, as in torch's kernel.

    Its backward is built with OpMultiplyAddFastF32: pytorch/pytorch,
    aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h.
    """
    exact = attention.dtype == "float32" and not problem.tf32
    return "tf32x3" if exact else "tf32"


def _why_not_rows(problem: Problem) -> str | None:
    attention = attention_of(problem)
    for name, operand in zip(attention.operands, problem.inputs, strict=True):
        if name not in _ROWS:
            continue
        if operand.dtype != attention.dtype:
            return f"{name} must have the type of q, {attention.dtype}, it has {operand.dtype}"
        if operand.stride[-1] != 1:
            return f"rows of {name} need a unit stride, its strides are {operand.stride}"
    return None


def _why_not_blocks(problem: Problem) -> str | None:
    attention = attention_of(problem)
    narrow = min(attention.head_dim, attention.value_dim)
    if narrow < LEAST_DIM:
        return f"head dims must be {LEAST_DIM} at least, one is {narrow}"
    if blocks_of(problem):
        return None
    dims = f"{attention.head_dim} and {attention.value_dim}"
    return f"no blocks of {attention.dtype} with head dims of {dims} fit without spilling"
