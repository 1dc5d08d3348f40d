"""What one program of the Triton attention computes at a time, and whether a GPU can hold it."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.cost.tile import BYTES
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import NARROW, Attention, attention_of
from inductor_plugin.templates.triton.order import room_of
from inductor_plugin.templates.triton_attention.facts import padded, pieces_of

MOST_SUMS, MOST_SUMS_AMPERE, MOST_SUMS_PADDED = 160, 144, 112
"""Sums and scores a thread can hold beside what else it needs: with operands in shared memory, in
registers (see `multiplies_shared`), and where a head dim in two pieces needs addresses for both, or one
that is padded a mask in registers too. Of what was compiled with Triton 3.8, those with more (192; 160;
128 and 144) had spills."""
MOST_SUMS_LOADED = 80
"""The same in registers, where two sides of a window, lengths or a bias take more of them."""
MOST_WIDENED, MOST_WIDENED_BLACKWELL = 128, 96
"""Numbers of 8 bits of a step that a thread can widen beside a window, lengths or a bias: kernels for 9.0
with 256 of them spill 8 to 444 bytes, kernels for 10.0 that multiply from registers 8 with 128."""
_WIDE_COLUMNS, _WIDEST_COLUMNS = 416, 512
"""Columns of keys and values with which blocks of 64 rows spill beside those: on 10.0 with more than 32 keys
a step (8 bytes), on 9.0 always, since two groups of warps have half of the columns each (up to 280)."""
_WINDOW_KEYS, _WINDOW_DIM = 64, 32
"""On 10.0 the mask of two sides spills with more keys a step where heads are as small (52 bytes for 128)."""
_SHARED_ROWS = 64
_BARRIER_BYTES = 1 << 10
"""Barriers of the loads in flight; Triton takes up to twice as many."""
_ROW_BYTES = 4
"""For each query: its maximum, where more than one warp has a part of it."""


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
    attention = attention_of(problem)
    in_registers = not multiplies_shared(block, problem)
    # What is widened passes through registers too.
    most = MOST_SUMS_AMPERE if in_registers or attention.dtype == NARROW else MOST_SUMS
    ragged = any(dim != padded(dim) for dim in (attention.head_dim, attention.value_dim))
    if not block.tma and (pieces_of(attention.head_dim).second or (ragged and in_registers)):
        most = MOST_SUMS_PADDED
    loaded = attention.mask.left >= 0 or attention.varlen or attention.biased
    if loaded and in_registers:
        most = MOST_SUMS_LOADED
    if loaded and attention.dtype == NARROW and not _widens(block, problem, ragged=ragged):
        return False
    if block.n > _WINDOW_KEYS and is_blackwell(problem) and _is_window_of_small_heads(attention):
        return False
    shared = shared_bytes(block, problem)
    return shared <= room_of(problem.target) and sums_of_thread(block, problem) <= most


def multiplies_shared(block: Block, problem: Problem) -> bool:
    """Return True if the tensor cores read operands from shared memory, not from registers.

    Those of compute capability 9.0 and 10.0 do, for at least 64 rows. A GPU that is not known may.
    Exact float32 is no work for tensor cores.
    """
    exact = problem.inputs[0].dtype == "float32" and not problem.tf32
    known_without = problem.target is not None and problem.target.capability[0] not in (9, 10)
    return block.m >= _SHARED_ROWS and not exact and not known_without


def shared_bytes(block: Block, problem: Problem) -> int:
    """Return the shared memory a block takes, at most.

    Triton 3.8 holds q and the steps in flight. Where operands are multiplied from registers it is one
    step less, since the last one is in them, and the weights where they change their layout: in blocks
    of fewer rows than columns of v, and always in float32.
    """
    attention = attention_of(problem)
    # Numbers of 8 bits are widened on their way: each step in flight, and one of 16 bits.
    item_bytes = max(2, BYTES[attention.dtype])
    width = pieces_of(attention.head_dim).whole
    value_width = padded(attention.value_dim)
    step = block.n * (width + value_width)
    if multiplies_shared(block, problem):
        # What warps that load and warps that compute hand to each other, on 9.0, for each query.
        handed = max(2 * min(value_width, 64), value_width) if block.specialize else 0
        held = block.stages * step + block.m * width
        handed_bytes = block.m * handed if _is_hopper(problem) else 0
        return item_bytes * held + handed_bytes + 2 * _BARRIER_BYTES
    moved = block.m < value_width or attention.dtype == "float32"
    weights = block.n if moved else 0
    held = (block.stages - 1) * step + block.m * (width + weights)
    return item_bytes * held + _ROW_BYTES * block.m


def sums_of_thread(block: Block, problem: Problem) -> int:
    """Return how many sums of the result and scores a thread holds."""
    columns = padded(attention_of(problem).value_dim) + block.n
    groups = 2 if block.specialize and _is_hopper(problem) else 1
    return -(-block.m * columns // (32 * block.warps * groups))


def _widens(block: Block, problem: Problem, *, ragged: bool) -> bool:
    """Return True if threads can widen operands of 8 bits beside a window, lengths or a bias."""
    attention = attention_of(problem)
    columns = pieces_of(attention.head_dim).whole + padded(attention.value_dim)
    widened = -(-block.n * columns // (32 * block.warps))
    sums = sums_of_thread(block, problem)
    if is_blackwell(problem):
        if block.m < _SHARED_ROWS:
            return widened <= MOST_WIDENED_BLACKWELL
        few = block.m > _SHARED_ROWS or block.n <= 32 or columns < _WIDE_COLUMNS
        return few and sums <= (MOST_SUMS_PADDED if ragged else MOST_SUMS)
    if block.m > _SHARED_ROWS and not multiplies_shared(block, problem):
        return False  # on 8.9, 28 bytes
    most = MOST_SUMS_PADDED if ragged else MOST_SUMS_AMPERE
    halved = block.m == _SHARED_ROWS and columns >= _WIDEST_COLUMNS
    return not halved and widened <= MOST_WIDENED and sums <= most


def _is_window_of_small_heads(attention: Attention) -> bool:
    widest = max(padded(attention.head_dim), padded(attention.value_dim))
    return attention.mask.left >= 0 and widest <= _WINDOW_DIM


def is_blackwell(problem: Problem) -> bool:
    """Return True for GPUs of compute capability 10."""
    return problem.target is not None and problem.target.capability[0] == 10


def _is_hopper(problem: Problem) -> bool:
    return problem.target is not None and problem.target.capability[0] == 9
