"""Block sizes of the Triton attention, and whether a GPU has the resources for them."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.cost.tile import BYTES
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import NARROW, Attention, attention_of
from inductor_plugin.problem.target import WARP_SIZE
from inductor_plugin.templates.triton.order import room_of
from inductor_plugin.templates.triton_attention.facts import padded, pieces_of

MOST_SUMS, MOST_SUMS_AMPERE, MOST_SUMS_PADDED = 160, 144, 112
"""Sums and scores a thread can hold without spilling: with operands in shared memory; with operands in registers
(see `multiplies_shared`); and with a head dim in two pieces, which needs two addresses, or a padded one, which
needs a mask. Kernels with more (192; 160; 128 and 144) spilled with Triton 3.8."""
MOST_SUMS_LOADED = 80
"""The same with operands in registers and a two-sided window, lengths or a bias, which need registers."""
MOST_WIDENED, MOST_WIDENED_BLACKWELL = 128, 96
"""8-bit numbers of a step that a thread can widen with a window, lengths or a bias: kernels for 9.0 with 256
of them spill 8 to 444 bytes, kernels for 10.0 that multiply from registers 8 bytes with 128."""
_WIDE_COLUMNS, _WIDEST_COLUMNS = 416, 512
"""Columns of keys and values with which blocks of 64 rows spill in those cases: on 10.0 with more than 32 keys
a step (8 bytes), on 9.0 always, since two groups of warps have half of the columns each (up to 280 bytes)."""
_WINDOW_KEYS, _WINDOW_DIM = 64, 32
"""On 10.0 a two-sided mask spills with more keys a step than this for heads up to this size (52 bytes for 128)."""
_SHARED_ROWS = 64
_BARRIER_BYTES = 1 << 10
"""Barriers of the loads in flight; Triton allocates up to twice as much."""
_ROW_BYTES = 4
"""For each query: its maximum, if several warps share the row."""


@dataclass(frozen=True)
class ForwardBlock:
    """Block sizes of one kernel.

    Attributes:
        m: Queries.
        n: Keys of a step.
        stages: Pipeline stages.
        warps: Warps that compute.
        tma: True if it loads through tensor descriptors.
        specialize: True for warp specialization, with warps that only load.
    """

    m: int
    n: int
    stages: int
    warps: int
    tma: bool = False
    specialize: bool = False

    @property
    def name(self) -> str:
        """The kernel's name, unique within a problem."""
        kind = "_ws" if self.specialize else "_tma" if self.tma else ""
        return f"{self.m}x{self.n}_s{self.stages}_w{self.warps}{kind}"

    @property
    def description(self) -> str:
        """A description for tables."""
        kind = ", TMA, warps of their own load" if self.specialize else ", TMA" if self.tma else ""
        return f"{self.m} queries by {self.n} keys{kind}"


def fits(block: ForwardBlock, problem: Problem) -> bool:
    """Return True if the predicted shared memory and registers of a block fit the GPU."""
    attention = attention_of(problem)
    in_registers = not multiplies_shared(block, problem)
    # Operands that are widened pass through registers too.
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


def multiplies_shared(block: ForwardBlock, problem: Problem) -> bool:
    """Return True if tensor cores read operands from shared memory, False if from registers.

    Those of compute capability 9.0 and 10.0 do, for at least 64 rows. An unknown GPU may.
    Exact float32 does not run on tensor cores.
    """
    exact = problem.inputs[0].dtype == "float32" and not problem.tf32
    known_without = problem.target is not None and problem.target.capability[0] not in (9, 10)
    return block.m >= _SHARED_ROWS and not exact and not known_without


def shared_bytes(block: ForwardBlock, problem: Problem) -> int:
    """Return an upper bound of the shared memory of a block.

    Triton 3.8 keeps q and the pipeline stages there. With operands in registers it needs one stage less,
    and keeps the weights where they change their layout: in blocks of fewer rows than columns of v, and
    always in float32.
    """
    attention = attention_of(problem)
    # 8-bit operands are widened when they are loaded, so each stage has 16 bits.
    item_bytes = max(2, BYTES[attention.dtype])
    width = pieces_of(attention.head_dim).whole
    value_width = padded(attention.value_dim)
    step = block.n * (width + value_width)
    if multiplies_shared(block, problem):
        held = block.stages * step + block.m * width
        return item_bytes * held + 2 * _BARRIER_BYTES
    converted = block.m < value_width or attention.dtype == "float32"
    weights = block.n if converted else 0
    held = (block.stages - 1) * step + block.m * (width + weights)
    return item_bytes * held + _ROW_BYTES * block.m


def sums_of_thread(block: ForwardBlock, problem: Problem) -> int:
    """Return how many accumulators and scores a thread holds."""
    columns = padded(attention_of(problem).value_dim) + block.n
    return -(-block.m * columns // (_warp_size(problem) * block.warps))


def _warp_size(problem: Problem) -> int:
    return problem.target.warp_size if problem.target is not None else WARP_SIZE


def _widens(block: ForwardBlock, problem: Problem, *, ragged: bool) -> bool:
    """Return True if threads can widen 8-bit operands together with a window, lengths or a bias."""
    attention = attention_of(problem)
    columns = pieces_of(attention.head_dim).whole + padded(attention.value_dim)
    widened = -(-block.n * columns // (_warp_size(problem) * block.warps))
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
