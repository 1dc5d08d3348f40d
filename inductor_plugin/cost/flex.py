"""Which configurations of Inductor's FlexAttention kernels are worth compiling. Pure, no torch.

Inductor's list ignores the device's shared memory: with float32 heads of 256 on a GPU with 99 KiB a
block no configuration of it starts ("No valid triton configs"). This module removes configurations
that cannot start before they are compiled, adds better ones, and appends a small one where none is
certain to run.

The bounds of shared memory and the spills are those of torch 2.14's templates compiled by Triton 3.8
and ptxas 13 (causal mask, no score_mod); tests/inductor/test_flex.py compiles them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.cost.flex_table import (
    DECODE,
    EXACT,
    MORE,
    SMALL,
    SPILLS,
    TMA,
    Direction,
    Tile,
)
from inductor_plugin.cost.tile import BYTES
from inductor_plugin.problem.target import WARP_SIZE, Target

SPILLS_TAKEN = 500
"""Bytes of spill stores and loads a thread below which a configuration is still measured.

Inductor's own default for the backward pass on an H100 spills 264 at head dimension 128."""

SUMS_AT_EASE = 72
"""float32 sums of a thread that leave registers for any score_mod: 168 of 255 are used."""

BACKWARD_SUMS_AT_EASE = 64
"""The same for the backward kernel: 184 registers are used at 64 sums, 246 at 68."""

EXACT_SUMS_AT_EASE = 34
"""The same without tensor cores: 208 registers at 34 sums; at 36 684 bytes are spilled."""

_BARRIERS = 1024
"""Bytes of barriers and partial sums: 56 with descriptors and 544 for sm_100a were measured."""


@dataclass(frozen=True)
class FlexCall:
    """One call of FlexAttention.

    Attributes:
        direction: Which of the three kernels.
        head_dim: Head dimension of query and key.
        value_dim: Head dimension of value and output.
        dtype: Dtype of query, key and value.
        q_block: Rows of a block of the mask; a tile has to divide it.
        kv_block: Columns of a block of the mask.
        rows: Rows of the query that a program of the decoding kernel takes.
        exact: True if float32 products use no tensor cores (``ieee``).
    """

    direction: Direction
    head_dim: int
    value_dim: int
    dtype: str
    q_block: int
    kv_block: int
    rows: int = 16
    exact: bool = False


@dataclass(frozen=True)
class FlexPlan:
    """The configurations to offer, in order, and why the others are left out.

    Attributes:
        tiles: Configurations to offer, the device's default first, a last resort last.
        left_out: Other configurations, each with its reason.
        last_resort: Why a small configuration was appended; empty if none was.
    """

    tiles: tuple[Tile, ...]
    left_out: tuple[tuple[Tile, str], ...] = ()
    last_resort: str = ""


def plan(
    call: FlexCall,
    offered: Sequence[Tile],
    default: Tile,
    target: Target | None,
    *,
    more: bool = True,
) -> FlexPlan:
    """Return which configurations to compile and measure.

    Args:
        call: The call.
        offered: Inductor's own, or those of the user's handler.
        default: The configuration without tuning; it is never left out for its spills, so that the
            result is not slower than Inductor's.
        target: The GPU; None leaves the list unchanged but for a last resort.
        more: Whether to add the plugin's own.
    """
    tiles = [*offered, *(_added(call) if more else ())]
    if default in tiles:
        tiles.insert(0, default)
    kept: list[Tile] = []
    left_out: list[tuple[Tile, str]] = []
    for tile in dict.fromkeys(tiles):
        reason = why_not(call, tile, target) or (
            spilling(call, tile, target) if tile != default else None
        )
        if reason is None:
            kept.append(tile)
        else:
            left_out.append((tile, reason))
    why = _unsure(call, kept, target)
    small = small_tile(call, target) if why else None
    if small is None or small in kept:
        return FlexPlan(tuple(kept), tuple(left_out))
    return FlexPlan((*kept, small), tuple(left_out), f"{why}; {small} is appended")


def single(call: FlexCall, default: Tile, target: Target | None) -> FlexPlan:
    """Return the configuration of a call that is not tuned: the default, or the next that fits."""
    shrunk = _shrunk(call, default)
    reason = why_not(call, shrunk, target)
    if reason is None:
        return FlexPlan((shrunk,))
    fitting = [tile for tile in _added(call) if _starts(call, tile, target)]
    small = fitting[0] if fitting else small_tile(call, target)
    if small is None:
        return FlexPlan((default,))
    return FlexPlan((small,), ((default, reason),), f"{default}: {reason}; {small} is used")


def descriptors(call: FlexCall, target: Target | None) -> tuple[Tile, ...]:
    """Return the configurations that read operands through TMA descriptors (compute capability 9.0+)."""
    if target is None or target.capability < (9, 0) or BYTES.get(call.dtype) != 2:
        return ()
    tiles = TMA.get((call.direction, _class(call)), ())
    own = (Tile(tile.blocks, tile.stages, tile.warps, tma=True) for tile in tiles)
    return tuple(tile for tile in own if why_not(call, tile, target) is None)


def why_not(call: FlexCall, tile: Tile, target: Target | None) -> str | None:
    """Return why a configuration cannot run; None if it can, or if the GPU is not known."""
    if not _divides(call, tile):
        return f"its blocks do not divide the mask's, {call.q_block}x{call.kv_block}"
    if target is None:
        return None
    least, _ = shared(call, tile, target)
    if least > target.shared_per_block:
        return (
            f"it needs at least {least} bytes of shared memory; a block on {target.name} has "
            f"{target.shared_per_block}"
        )
    return None


def spilling(call: FlexCall, tile: Tile, target: Target | None) -> str | None:
    """Return why a configuration is not worth compiling, because of the spills in `SPILLS`, or None."""
    if target is None or BYTES.get(call.dtype) != 2:
        return None
    padded = _padded(max(call.head_dim, call.value_dim))
    key = (target.capability[0], call.direction, padded, tile.blocks, tile.warps)
    spills = SPILLS.get(key, 0)
    if spills < SPILLS_TAKEN:
        return None
    return f"it spills {spills} bytes a thread at head dimension {padded}"


def shared(call: FlexCall, tile: Tile, target: Target) -> tuple[int, int]:
    """Return the least and the most bytes of shared memory a block may need."""
    if call.direction == "backward":
        m1, n1, m2, n2 = tile.blocks
        loops = (_gradients(call, tile, target, n1, m1), _gradients(call, tile, target, m2, n2))
        return max(low for low, _ in loops), max(high for _, high in loops)
    return _scores(call, tile, target)


def small_tile(call: FlexCall, target: Target | None) -> Tile | None:
    """Return the largest small configuration that is certain to run; None if the mask allows none."""
    possible = [tile for tile in SMALL[call.direction] if _divides(call, tile)]
    sure = [tile for tile in possible if _sure(call, tile, target)]
    return (sure or possible[-1:] or [None])[0]


def _added(call: FlexCall) -> tuple[Tile, ...]:
    """Return the plugin's own configurations for a call."""
    if call.direction == "decode":
        return DECODE
    if call.exact:
        return EXACT.get((call.direction, _class(call)), ())
    return MORE.get((call.direction, _class(call), BYTES.get(call.dtype, 0)), ())


def _scores(call: FlexCall, tile: Tile, target: Target) -> tuple[int, int]:
    """Return the bounds of the forward kernels: Q, the stages of K and V in flight, and P.

    With wgmma (Hopper) all stages are in shared memory and P is not.
    """
    size = BYTES.get(call.dtype, 4)
    m = call.rows if call.direction == "decode" else tile.blocks[0]
    n = tile.blocks[-1]
    row, value = size * _padded(call.head_dim), size * _padded(call.value_dim)
    query, pair, scores = m * row, n * (row + value), m * n * size
    once = query + n * max(row, value)
    hopper = once if tile.stages == 1 else query + tile.stages * pair
    ampere = once if tile.stages == 1 else query + (tile.stages - 1) * pair
    # A row of float32 scores has up to 16 bytes of padding.
    high = ampere + scores + (16 * m if size == 4 else 0)
    return _bounds(call, target, (hopper, hopper), (ampere, high), m, tile)


def _gradients(
    call: FlexCall, tile: Tile, target: Target, outer: int, inner: int
) -> tuple[int, int]:
    """Return the bounds of one loop of the backward kernel: two tiles are resident, two in flight."""
    size = BYTES.get(call.dtype, 4)
    row, value = size * _padded(call.head_dim), size * _padded(call.value_dim)
    stay, pair, again = outer * (row + value), inner * (row + value), tile.stages - 1
    sums = 8 * inner  # LSE and delta of a row, float32
    hopper = stay + tile.stages * pair
    low = (stay + pair) * 3 // 4 + again * inner * min(row, value)
    high = stay + pair + again * (inner * max(row, value) + sums)
    high += (inner * outer + 16 * outer) * size if size == 4 else 0
    return _bounds(call, target, (hopper, hopper + again * sums), (low, high), outer, tile)


def _bounds(
    call: FlexCall,
    target: Target,
    hopper: tuple[int, int],
    ampere: tuple[int, int],
    rows: int,
    tile: Tile,
) -> tuple[int, int]:
    """Return the bounds for a target's tensor-core instructions; the union where that is uncertain."""
    low, high = min(hopper[0], ampere[0]), max(hopper[1], ampere[1])
    if target.capability[0] in (8, 12):
        low, high = ampere
    elif target.capability[0] == 9 and BYTES.get(call.dtype) == 2:
        low, high = hopper if rows >= 64 and tile.warps >= 4 else ampere
    elif target.capability[0] == 10 and call.direction == "backward":
        high += high // 3  # P and dS pass through it too: 131648 where Hopper takes 98816
    return low, high + _BARRIERS


def _unsure(call: FlexCall, kept: Sequence[Tile], target: Target | None) -> str:
    """Return why none of the configurations is certain to run; empty if one is."""
    if not kept:
        return "no configuration fits"
    if any(_sure(call, tile, target) for tile in kept):
        return ""
    return "no configuration is small enough to be sure of its shared memory and registers"


def _starts(call: FlexCall, tile: Tile, target: Target | None) -> bool:
    """Return True if a block certainly has the shared memory that a configuration needs."""
    if not _divides(call, tile) or target is None:
        return False
    return shared(call, tile, target)[1] <= target.shared_per_block


def _sure(call: FlexCall, tile: Tile, target: Target | None) -> bool:
    """Return True if a configuration runs without spills with any score_mod."""
    sums = BACKWARD_SUMS_AT_EASE if call.direction == "backward" else SUMS_AT_EASE
    sums = EXACT_SUMS_AT_EASE if call.exact else sums
    return _starts(call, tile, target) and _sums(call, tile, target) <= sums


def _sums(call: FlexCall, tile: Tile, target: Target | None) -> float:
    """Return the float32 accumulators of a thread."""
    threads = (target.warp_size if target else WARP_SIZE) * tile.warps
    qk, v = _padded(call.head_dim), _padded(call.value_dim)
    if call.direction == "backward":
        m1, n1, m2, n2 = tile.blocks
        return max(n1 * (qk + v) + 2 * m1 * n1, m2 * qk + 2 * m2 * n2) / threads
    m = call.rows if call.direction == "decode" else tile.blocks[0]
    return m * (v + tile.blocks[-1]) / threads


def _divides(call: FlexCall, tile: Tile) -> bool:
    """Return True if a tile divides the mask's blocks, and the backward tiles one another."""
    if call.direction == "decode":
        return call.kv_block % min(tile.blocks[0], call.kv_block) == 0
    m1, n1, m2, n2 = (*tile.blocks, *tile.blocks)[:4]
    if call.direction == "forward":
        return call.q_block % m1 == 0 and call.kv_block % n1 == 0
    rows = call.q_block % m1 == 0 and call.q_block % m2 == 0
    columns = call.kv_block % n1 == 0 and call.kv_block % n2 == 0
    return rows and columns and n1 % m1 == 0 and m2 % n2 == 0


def _shrunk(call: FlexCall, tile: Tile) -> Tile:
    """Return a tile no larger than the mask's blocks."""
    if call.direction == "decode":
        return tile
    if call.direction == "forward":
        blocks = (min(tile.blocks[0], call.q_block), min(tile.blocks[1], call.kv_block))
        return Tile(blocks, tile.stages, tile.warps)
    m1, n1, m2, n2 = tile.blocks
    n1, m2 = min(n1, call.kv_block), min(m2, call.q_block)
    m1, n2 = min(m1, call.q_block, n1), min(n2, call.kv_block, m2)
    return Tile((m1, n1, m2, n2), tile.stages, tile.warps)


def _padded(extent: int) -> int:
    """Return the power of two the kernels round an extent up to."""
    return 1 << (max(extent, 16) - 1).bit_length()


def _class(call: FlexCall) -> int:
    return max(64, _padded(max(call.head_dim, call.value_dim)))
