"""What one program of the Triton attention backward computes at a time, and which GPU can hold it."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.cost.tile import BYTES
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import Attention, attention_of
from inductor_plugin.problem.target import Target
from inductor_plugin.templates.triton.order import LIMIT, room_of
from inductor_plugin.templates.triton_attention.facts import padded, unfit_for_tma

BESIDE_BYTES = 2560
"""Shared memory beside the blocks and steps: what barriers and changes of layout take, at most."""

_NARROW = 32
"""A head dim at which a window does not make the largest blocks spill."""
_READ = ("do", "q", "k", "v")
"""Operands that are read by tiles."""


@dataclass(frozen=True)
class Blocks:
    """What one program computes at a time.

    Attributes:
        n1: Keys of a program of dk and dv.
        m1: Queries of one of its steps.
        m2: Queries of a program of dq.
        n2: Keys of one of its steps.
        stages: Steps in flight.
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
        """Its name, unique among those of one problem."""
        kind = "_tma" if self.tma else ""
        return f"{self.n1}x{self.m1}_{self.m2}x{self.n2}_s{self.stages}_w{self.warps}{kind}"


_KERNELS: dict[tuple[int, int], tuple[Blocks, ...]] = {
    (8, 64): (
        Blocks(128, 64, 128, 64, 2, 8), Blocks(64, 32, 64, 64, 3, 4),
        Blocks(128, 32, 128, 64, 2, 8), Blocks(64, 32, 64, 64, 2, 8),
    ),
    (8, 128): (
        Blocks(64, 64, 64, 64, 2, 8), Blocks(64, 32, 64, 64, 2, 8), Blocks(64, 32, 64, 32, 2, 4),
    ),
    (8, 256): (
        Blocks(32, 32, 64, 32, 2, 8), Blocks(32, 16, 64, 32, 2, 8), Blocks(32, 32, 32, 32, 2, 8),
        Blocks(32, 16, 32, 32, 2, 8),
    ),
    (9, 64): (
        Blocks(128, 64, 128, 64, 2, 8, tma=True), Blocks(128, 64, 128, 64, 2, 8),
        Blocks(64, 64, 64, 64, 3, 4, tma=True), Blocks(64, 64, 64, 64, 3, 4),
        Blocks(64, 32, 64, 64, 3, 4),
    ),
    (9, 128): (
        Blocks(64, 64, 128, 64, 2, 8, tma=True), Blocks(64, 64, 128, 64, 2, 8),
        Blocks(128, 32, 128, 64, 2, 8), Blocks(64, 64, 64, 64, 2, 8), Blocks(64, 32, 64, 32, 2, 4),
    ),
    (9, 256): (Blocks(64, 32, 64, 32, 2, 8), Blocks(32, 32, 64, 32, 2, 8)),
    (10, 64): (
        Blocks(128, 64, 128, 64, 2, 8, tma=True), Blocks(128, 64, 128, 64, 2, 8),
        Blocks(64, 64, 64, 64, 3, 4),
    ),
    (10, 128): (
        Blocks(128, 64, 128, 64, 2, 8, tma=True), Blocks(128, 64, 128, 64, 2, 8),
        Blocks(64, 64, 64, 64, 2, 8),
    ),
    (10, 256): (
        Blocks(64, 32, 64, 32, 2, 8, tma=True), Blocks(64, 32, 64, 32, 2, 8),
        Blocks(32, 32, 64, 32, 2, 8),
    ),
}  # fmt: skip
"""By compute capability and the wider of the padded head dims, best first. Those of 8 are for all GPUs
with tensor cores of that kind. The first of each compiles with Triton 3.8 without spilling for bfloat16,
a causal mask and four heads of q that share one of k and v, and so does the first that `_SPILLING`
leaves for what benchmarks/results/attention_triton.json names; of other mixtures little is known. With
128x64 at a width of 128, compute capability 9.0 spills 8 bytes (by descriptors 24), 8.0 some hundred."""
_SPILLING: dict[str, frozenset[tuple[int, Blocks]]] = {
    # 48 bytes, for the mask that loads take for what is padded.
    "ragged": frozenset(
        {
            (8, Blocks(64, 64, 64, 64, 2, 8)),
            (8, Blocks(32, 32, 64, 32, 2, 8)),
            (8, Blocks(32, 32, 32, 32, 2, 8)),
        }
    ),
    # 68 bytes at head dims of 40, 48 and 56.
    "ragged varlen": frozenset({(8, Blocks(128, 64, 128, 64, 2, 8))}),
    # 96 bytes at a head dim of 64; at 32 it is the next blocks that do.
    "window": frozenset({(8, Blocks(128, 64, 128, 64, 2, 8))}),
    # 124 to 136 bytes; none where the window ends at the diagonal, or never.
    "window ahead": frozenset({(9, Blocks(64, 32, 64, 32, 2, 8))}),
    # About 500 bytes, 24 and 48.
    "varlen": frozenset(
        {
            (9, Blocks(64, 32, 64, 32, 2, 8)),
            (9, Blocks(128, 32, 128, 64, 2, 8)),
            (10, Blocks(64, 32, 64, 32, 2, 8)),
        }
    ),
    # 856, 48 to 400, and with a causal mask 32.
    "bias": frozenset(
        {
            (8, Blocks(128, 64, 128, 64, 2, 8)),
            (8, Blocks(64, 32, 64, 64, 3, 4)),
            (8, Blocks(64, 64, 64, 64, 2, 8)),
        }
    ),
    # 24 bytes.
    "softcap": frozenset({(8, Blocks(32, 32, 64, 32, 2, 8))}),
    # 16 to 32 bytes; none where heads of q share one of k and v.
    "bias or softcap, own keys": frozenset({(9, Blocks(64, 32, 64, 32, 2, 8))}),
}
"""Those, by what an attention asks for (see `burdens_of`) and compute capability, that then spill so many
bytes."""
_FLOAT32: dict[tuple[int, int], tuple[Blocks, ...]] = {
    (8, 64): (Blocks(32, 16, 32, 32, 2, 4),),
    (9, 64): (Blocks(32, 32, 32, 32, 2, 4), Blocks(32, 16, 32, 32, 2, 4)),
    (10, 64): (Blocks(32, 32, 32, 32, 2, 4),),
}
"""The same for float32, whose halves of TF32 take twice the registers; none is found at 128 and more."""


def blocks_of(problem: Problem) -> list[Blocks]:
    """Return what a program may compute at a time, best first; all of it fits the device."""
    attention, target = attention_of(problem), problem.target
    width = max(padded(attention.head_dim), padded(attention.value_dim), 64)
    kind = (family(target), width)
    known = _FLOAT32.get(kind, ()) if attention.dtype == "float32" else _KERNELS[kind]
    spilling = {one for burden in burdens_of(attention) for one in _SPILLING.get(burden, ())}
    known = [one for one in known if (family(target), one) not in spilling]
    fitting = [one for one in known if shared_bytes(one, problem) <= room_of(target)]
    tma = unfit_for_descriptors(problem) is None
    return [one for one in fitting if tma or not one.tma][:LIMIT]


def burdens_of(attention: Attention) -> list[str]:
    """Return what an attention asks for that takes registers beside the products, as `_SPILLING` calls it.

    A window that ends at the diagonal, or never, takes fewer of them than one that ends ahead of it.
    """
    dims = (attention.head_dim, attention.value_dim)
    ragged = any(dim != padded(dim) for dim in dims)
    windowed = attention.mask.left >= 0
    bent = attention.biased or attention.softcap > 0
    asked = {
        "ragged": ragged,
        "ragged varlen": ragged and attention.varlen,
        "window": windowed and max(dims) > _NARROW,
        "window ahead": windowed and attention.mask.right > 0,
        "varlen": attention.varlen,
        "bias": attention.biased,
        "softcap": attention.softcap > 0,
        "bias or softcap, own keys": bent and attention.heads == attention.kv_heads,
    }
    return [name for name, there in asked.items() if there]


def unfit_for_descriptors(problem: Problem) -> str | None:
    """Return why q, k, v and do cannot be read through tensor descriptors, None if they can.

    A sequence of a varlen call may have no keys, and a descriptor of no rows is none.
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
    return unfit_for_tma(problem, _READ)


def family(target: Target | None) -> int:
    """Return the compute capability whose tensor cores a GPU has: 8, 9 or 10."""
    major = target.capability[0] if target else 8
    return major if major in (9, 10) else 8


def shared_bytes(blocks: Blocks, problem: Problem) -> int:
    """Return the shared memory that blocks take, at most.

    Triton 3.8 holds a program's own block and the steps in flight; for compute capability 10 one step
    more, since what a tensor core takes in another order is copied. Before 9.0 it may be less.
    """
    attention = attention_of(problem)
    row_bytes = BYTES[attention.dtype] * (padded(attention.head_dim) + padded(attention.value_dim))
    steps = blocks.stages + (1 if family(problem.target) == 10 else 0)
    rows = max(blocks.n1 + steps * blocks.m1, blocks.m2 + steps * blocks.n2)
    return rows * row_bytes + BESIDE_BYTES
