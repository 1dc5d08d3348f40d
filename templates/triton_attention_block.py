"""What one program of the Triton attention computes at a time, and whether a GPU can hold it."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.attention import attention_of
from inductor_plugin.problem import Problem
from inductor_plugin.templates.triton_attention_facts import padded, pieces_of
from inductor_plugin.templates.triton_order import room_of
from inductor_plugin.tile import BYTES

MOST_SUMS, MOST_SUMS_AMPERE, MOST_SUMS_TWO_PIECES = 160, 144, 112
"""Sums and scores a thread can hold beside what else it needs: with operands in shared memory, without
(before compute capability 9.0), and where a head dim in two pieces needs addresses for both. Of what
was compiled with Triton 3.8, those with more (192; 160; 128 and 144) had spills."""
_BARRIER_BYTES = 1 << 10
"""Barriers of the loads in flight."""
_HANDED_BYTES = 128
"""For each query: what warps that load and warps that compute hand to each other."""


@dataclass(frozen=True)
class Block:
    """What one program computes at a time.

    Attributes:
        m: Queries.
        n: Keys of a step.
        stages: Steps in flight.
        warps: Warps that compute.
        tma: True if it loads through tensor descriptors.
        specialize: True for warps of their own that only load; on compute capability 9.0 Triton then
            divides m among two groups of ``warps``.
    """

    m: int
    n: int
    stages: int
    warps: int
    tma: bool = False
    specialize: bool = False

    @property
    def name(self) -> str:
        """Its name, unique among those of one problem."""
        kind = "_ws" if self.specialize else "_tma" if self.tma else ""
        return f"{self.m}x{self.n}_s{self.stages}_w{self.warps}{kind}"

    @property
    def description(self) -> str:
        """What it is, for people."""
        kind = ", TMA, warps of their own load" if self.specialize else ", TMA" if self.tma else ""
        return f"{self.m} queries by {self.n} keys{kind}"


def fits(block: Block, problem: Problem) -> bool:
    """Return True if a block has the shared memory and the registers it takes, as far as predicted."""
    target = problem.target
    old = target is not None and target.capability < (9, 0)
    most = MOST_SUMS_AMPERE if old else MOST_SUMS
    if not block.tma and pieces_of(attention_of(problem).head_dim).second:
        most = MOST_SUMS_TWO_PIECES
    shared = shared_bytes(block, problem, old=old)
    return shared <= room_of(target) and sums_of_thread(block, problem) <= most


def shared_bytes(block: Block, problem: Problem, *, old: bool) -> int:
    """Return the shared memory a block takes, at most.

    Triton 3.8 holds q and the steps in flight. Before compute capability 9.0 it is one step less, since
    the last one is in registers, and the weights where they change their layout: in blocks of fewer
    rows than columns of v.

    Args:
        block: The block.
        problem: What it computes.
        old: Whether it is for a GPU before compute capability 9.0.
    """
    attention = attention_of(problem)
    item_bytes = BYTES[attention.dtype]
    width = pieces_of(attention.head_dim).whole
    value_width = padded(attention.value_dim)
    step = block.n * (width + value_width)
    steps = block.stages - 1 if old else block.stages
    beside = block.m * (width + (block.n if old and block.m < value_width else 0))
    handed = block.m * _HANDED_BYTES + _BARRIER_BYTES if block.specialize else 0
    return item_bytes * (steps * step + beside) + handed + (0 if old else _BARRIER_BYTES)


def sums_of_thread(block: Block, problem: Problem) -> int:
    """Return how many sums of the result and scores a thread holds."""
    columns = padded(attention_of(problem).value_dim) + block.n
    target = problem.target
    hopper = target is not None and target.capability[0] == 9
    threads = 32 * block.warps * (2 if block.specialize and hopper else 1)
    return -(-block.m * columns // threads)
