"""Block sizes of the Triton attention backward, and which GPU has the resources for them."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.cost.tile import BYTES
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import Attention, attention_of
from inductor_plugin.problem.target import Target
from inductor_plugin.templates.triton.order import LIMIT, room_of
from inductor_plugin.templates.triton_attention.facts import padded, why_not_tma

OTHER_BYTES = 2560
"""Shared memory besides the blocks and steps: barriers and layout conversions, at most."""

_NARROW = 32
"""A head dim at which a window does not make the largest blocks spill."""
_READ = ("do", "q", "k", "v")
"""Operands that are read by tiles."""


@dataclass(frozen=True)
class BackwardBlocks:
    """Block sizes of one kernel.

    Attributes:
        n1: Keys of a program of dk and dv.
        m1: Queries of one of its steps.
        m2: Queries of a program of dq.
        n2: Keys of one of its steps.
        stages: Pipeline stages.
        warps: Warps that compute.
        tma: True if it loads through tensor descriptors.
    """

    n1: int
    m1: int
    m2: int
    n2: int
    stages: int
    warps: int
    tma: bool = False

    @property
    def name(self) -> str:
        """The kernel's name, unique within a problem."""
        kind = "_tma" if self.tma else ""
        return f"{self.n1}x{self.m1}_{self.m2}x{self.n2}_s{self.stages}_w{self.warps}{kind}"


_KERNELS: dict[tuple[int, int], tuple[BackwardBlocks, ...]] = {
    (8, 64): (
        BackwardBlocks(128, 64, 128, 64, 2, 8), BackwardBlocks(64, 32, 64, 64, 3, 4),
        BackwardBlocks(128, 32, 128, 64, 2, 8), BackwardBlocks(64, 32, 64, 64, 2, 8),
    ),
    (8, 128): (
        BackwardBlocks(64, 64, 64, 64, 2, 8), BackwardBlocks(64, 32, 64, 64, 2, 8), BackwardBlocks(64, 32, 64, 32, 2, 4),
    ),
    (8, 256): (
        BackwardBlocks(32, 32, 64, 32, 2, 8), BackwardBlocks(32, 16, 64, 32, 2, 8), BackwardBlocks(32, 32, 32, 32, 2, 8),
        BackwardBlocks(32, 16, 32, 32, 2, 8),
    ),
    (9, 64): (
        BackwardBlocks(128, 64, 128, 64, 2, 8, tma=True), BackwardBlocks(128, 64, 128, 64, 2, 8),
        BackwardBlocks(64, 64, 64, 64, 3, 4, tma=True), BackwardBlocks(64, 64, 64, 64, 3, 4),
        BackwardBlocks(64, 32, 64, 64, 3, 4),
    ),
    (9, 128): (
        BackwardBlocks(64, 64, 128, 64, 2, 8, tma=True), BackwardBlocks(64, 64, 128, 64, 2, 8),
        BackwardBlocks(128, 32, 128, 64, 2, 8), BackwardBlocks(64, 64, 64, 64, 2, 8), BackwardBlocks(64, 32, 64, 32, 2, 4),
    ),
    (9, 256): (BackwardBlocks(64, 32, 64, 32, 2, 8), BackwardBlocks(32, 32, 64, 32, 2, 8)),
    (10, 64): (
        BackwardBlocks(128, 64, 128, 64, 2, 8, tma=True), BackwardBlocks(128, 64, 128, 64, 2, 8),
        BackwardBlocks(64, 64, 64, 64, 3, 4),
    ),
    (10, 128): (
        BackwardBlocks(128, 64, 128, 64, 2, 8, tma=True), BackwardBlocks(128, 64, 128, 64, 2, 8),
        BackwardBlocks(64, 64, 64, 64, 2, 8),
    ),
    (10, 256): (
        BackwardBlocks(64, 32, 64, 32, 2, 8, tma=True), BackwardBlocks(64, 32, 64, 32, 2, 8),
        BackwardBlocks(32, 32, 64, 32, 2, 8),
    ),
}  # fmt: skip
"""By compute capability and the wider of the padded head dims, best first. Those of 8 are for all GPUs
with tensor cores of that kind. The first of each compiles with Triton 3.8 without spilling for bfloat16,
a causal mask and four heads of q for each of k and v, and so does the first that `_SPILLING` leaves for
the cases of benchmarks/results/attention_triton.json; other combinations are mostly untested. With
128x64 at a width of 128, compute capability 9.0 spills 8 bytes (with descriptors 24), 8.0 some hundred."""
_SPILLING: dict[str, frozenset[tuple[int, BackwardBlocks]]] = {
    # 48 bytes, for the mask of loads of padded head dims.
    "ragged": frozenset(
        {
            (8, BackwardBlocks(64, 64, 64, 64, 2, 8)),
            (8, BackwardBlocks(32, 32, 64, 32, 2, 8)),
            (8, BackwardBlocks(32, 32, 32, 32, 2, 8)),
        }
    ),
    # 68 bytes at head dims of 40, 48 and 56.
    "ragged varlen": frozenset({(8, BackwardBlocks(128, 64, 128, 64, 2, 8))}),
    # 96 bytes at a head dim of 64; at 32 the next blocks spill.
    "window": frozenset({(8, BackwardBlocks(128, 64, 128, 64, 2, 8))}),
    # 124 to 136 bytes; none if the window ends at the diagonal, or is unlimited to the right.
    "window ahead": frozenset({(9, BackwardBlocks(64, 32, 64, 32, 2, 8))}),
    # About 500 bytes, 24 and 48.
    "varlen": frozenset(
        {
            (9, BackwardBlocks(64, 32, 64, 32, 2, 8)),
            (9, BackwardBlocks(128, 32, 128, 64, 2, 8)),
            (10, BackwardBlocks(64, 32, 64, 32, 2, 8)),
        }
    ),
    # 856, 48 to 400, and with a causal mask 32.
    "bias": frozenset(
        {
            (8, BackwardBlocks(128, 64, 128, 64, 2, 8)),
            (8, BackwardBlocks(64, 32, 64, 64, 3, 4)),
            (8, BackwardBlocks(64, 64, 64, 64, 2, 8)),
        }
    ),
    # 24 bytes.
    "softcap": frozenset({(8, BackwardBlocks(32, 32, 64, 32, 2, 8))}),
    # 16 to 32 bytes; none if heads of q share a head of k and v.
    "bias or softcap, own keys": frozenset({(9, BackwardBlocks(64, 32, 64, 32, 2, 8))}),
}
"""Blocks that spill, by the feature of an attention (see `burdens_of`) and compute capability; the comments
have the bytes."""
_FLOAT32: dict[tuple[int, int], tuple[BackwardBlocks, ...]] = {
    (8, 64): (BackwardBlocks(32, 16, 32, 32, 2, 4),),
    (9, 64): (BackwardBlocks(32, 32, 32, 32, 2, 4), BackwardBlocks(32, 16, 32, 32, 2, 4)),
    (10, 64): (BackwardBlocks(32, 32, 32, 32, 2, 4),),
}
"""The same for float32, which needs twice the registers for its parts in TF32; none fits at 128 and more."""


def blocks_of(problem: Problem) -> list[BackwardBlocks]:
    """Return the blocks to try for a problem, best first; all of them fit the device."""
    attention, target = attention_of(problem), problem.target
    width = max(padded(attention.head_dim), padded(attention.value_dim), 64)
    kind = (family(target), width)
    listed = _FLOAT32.get(kind, ()) if attention.dtype == "float32" else _KERNELS[kind]
    spilling = {entry for burden in burdens_of(attention) for entry in _SPILLING.get(burden, ())}
    tma = why_not_descriptors(problem) is None
    fitting = [
        blocks
        for blocks in listed
        if (family(target), blocks) not in spilling
        and shared_bytes(blocks, problem) <= room_of(target)
        and (tma or not blocks.tma)
    ]
    return fitting[:LIMIT]


def burdens_of(attention: Attention) -> list[str]:
    """Return the features of an attention that need registers besides the products: keys of `_SPILLING`.

    A window that ends at the diagonal or is unlimited to the right needs fewer than one that ends after it.
    """
    dims = (attention.head_dim, attention.value_dim)
    ragged = any(dim != padded(dim) for dim in dims)
    windowed = attention.mask.left >= 0
    modified = attention.biased or attention.softcap > 0
    features = {
        "ragged": ragged,
        "ragged varlen": ragged and attention.varlen,
        "window": windowed and max(dims) > _NARROW,
        "window ahead": windowed and attention.mask.right > 0,
        "varlen": attention.varlen,
        "bias": attention.biased,
        "softcap": attention.softcap > 0,
        "bias or softcap, own keys": modified and attention.heads == attention.kv_heads,
    }
    return [name for name, present in features.items() if present]


def why_not_descriptors(problem: Problem) -> str | None:
    """Return why q, k, v and do cannot be read through tensor descriptors, None if they can.

    A sequence of a varlen call may have no keys, and a descriptor of no rows is invalid.
    """
    attention = attention_of(problem)
    if attention.varlen:
        return "sequences of different lengths may be empty"
    for name in _READ:
        operand = problem.inputs[attention.operands.index(name)]
        if any(
            step == 0 < size - 1 for size, step in zip(operand.size, operand.stride, strict=True)
        ):
            return f"{name} is broadcast: its strides are {operand.stride}"
    return why_not_tma(problem, _READ)


def family(target: Target | None) -> int:
    """Return the compute capability whose tensor cores a GPU has: 8, 9 or 10."""
    major = target.capability[0] if target else 8
    return major if major in (9, 10) else 8


def shared_bytes(blocks: BackwardBlocks, problem: Problem) -> int:
    """Return an upper bound of the shared memory of a kernel with these blocks.

    Triton 3.8 keeps a program's block and its pipeline stages there; for compute capability 10 one stage
    more, for operands that are copied to another layout. Before 9.0 it may be less.
    """
    attention = attention_of(problem)
    row_bytes = BYTES[attention.dtype] * (padded(attention.head_dim) + padded(attention.value_dim))
    steps = blocks.stages + (1 if family(problem.target) == 10 else 0)
    rows = max(blocks.n1 + steps * blocks.m1, blocks.m2 + steps * blocks.n2)
    return rows * row_bytes + OTHER_BYTES
