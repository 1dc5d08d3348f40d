"""Analytical model of the time of a matrix product on a GPU, by tile. Pure, no torch.

    tiles ─► waves over the multiprocessors ─┐
    tensor cores, shared memory, latency ────┼─► the slowest of compute, L2 and device memory
    L2 traffic, device memory with reuse ────┘          + filling and draining + reduction ─► seconds

The model orders candidates before any is compiled; it does not predict measurements. Its constants
are hardware figures, named below, and were not fitted to timings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from inductor_plugin.cost.tile import (
    BYTES,
    GemmShape,
    Grid,
    TileConfig,
    ceil_div,
    grid_of,
    occupancy_of,
    stages_of,
    why_not,
)
from inductor_plugin.problem.target import Target

PEAK = 0.85
"""Share of the tensor cores' rate that the best kernels reach: an H100 at 700 W lowers its clock."""
DRAM_PEAK = 0.92
"""Share of the memory bandwidth that a long copy reaches."""
DRAM_LATENCY_S = 0.8e-6
ONE_SHARE = 2.0
"""One multiprocessor uses at most twice its share of the bandwidth; half of them saturate it."""
LAUNCH_S = 2e-6
LOAD_LATENCY_CYCLES = 800
"""Latency of a load from L2 to shared memory."""
SHARED_BYTES_PER_CLOCK = 128
FILL_BYTES_PER_CLOCK = 64
"""Bandwidth from L2 to one multiprocessor."""
L2_BYTES_PER_CLOCK = {8.0: 5120, 8.9: 2048, 9.0: 5120, 10.0: 10240}
"""Bandwidth of L2: 5120 bytes a cycle on A100 and H100 (https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217,
table 3); the values for Ada and Blackwell are estimates."""
MMA_ON_HOPPER = 0.63
"""Share of an H100's rate that mma.sync reaches (https://arxiv.org/abs/2402.13499); wgmma, which
reaches the full rate, needs at least 64 rows."""
STEP_OVERHEAD_CYCLES = 40
"""Cycles for barrier, addresses and loop of one step along K; a producer warp hides most of them."""
Bound = Literal["tensor cores", "L2", "memory", "latency"]


@dataclass(frozen=True)
class TilePrediction:
    """The model's result for one kernel.

    Attributes:
        seconds: Total time.
        compute_s: Tensor cores and shared memory, with padding and incomplete waves.
        l2_s: Loads from L2.
        memory_s: Loads and stores of device memory.
        fill_s: Filling the pipeline and storing, where nothing else hides it.
        reduce_s: Summing the partial results of split-K or stream-K, and zeroing the sums first where
            the kernel needs it.
        tiles: Blocks of work, those that a scheduler adds (`tile.grid_of`) included.
        waves: Number of waves of blocks.
    """

    seconds: float
    compute_s: float
    l2_s: float
    memory_s: float
    fill_s: float
    reduce_s: float
    tiles: int
    waves: int

    @property
    def bound(self) -> Bound:
        """The resource that limits the kernel."""
        parts: tuple[tuple[Bound, float], ...] = (
            ("tensor cores", self.compute_s),
            ("L2", self.l2_s),
            ("memory", self.memory_s),
            ("latency", self.fill_s + self.reduce_s),
        )
        return max(parts, key=lambda part: part[1])[0]

    def describe(self) -> str:
        """Return one line for people."""
        reduction = f", {self.reduce_s * 1e6:.1f} us to reduce" if self.reduce_s else ""
        return (
            f"{self.seconds * 1e6:.1f} us, bound by {self.bound}: {self.tiles} tiles in "
            f"{self.waves} wave{'s' if self.waves > 1 else ''}{reduction}"
        )


@dataclass(frozen=True)
class TileWork:
    """What the blocks of a kernel do, held against what kernels do in the emulator (tests/emulator/suite/test_models.py).

    Attributes:
        grid: The tiles of one part of K and one product of the batch.
        tiles: Blocks of work, as in `TilePrediction`.
        steps: Steps along K of each.
        step_bytes: Bytes that a tile loads from L2 in a step; blocks of a cluster share what they have in common.
    """

    grid: Grid
    tiles: int
    steps: int
    step_bytes: float

    @property
    def loaded(self) -> float:
        """Bytes loaded from L2; incomplete and added tiles along M and N count as whole ones."""
        return self.tiles * self.steps * self.step_bytes


@dataclass(frozen=True)
class Ranked:
    """A configuration in a ranking, with the reason for its rank.

    Attributes:
        config: The configuration.
        predicted_s: Seconds the model expects.
        reason: One line for people.
    """

    config: TileConfig
    predicted_s: float
    reason: str


def ranked(target: Target, shape: GemmShape, configs: Iterable[TileConfig]) -> list[Ranked]:
    """Return the configurations that fit, the likely fastest first; the sort is stable.

    Args:
        target: The GPU.
        shape: The product.
        configs: Configurations that can be built; `why_not` says why one is left out.
    """
    results: list[Ranked] = []
    for config in configs:
        prediction = predict(target, shape, config)
        if isinstance(prediction, TilePrediction):
            results.append(Ranked(config, prediction.seconds, prediction.describe()))
    return sorted(results, key=lambda entry: entry.predicted_s)


def work_of(shape: GemmShape, config: TileConfig) -> TileWork:
    """Return what the blocks of a kernel do."""
    grid, (cluster_m, cluster_n) = grid_of(shape, config), config.cluster
    loaded = config.k * (
        min(config.m, shape.m) * BYTES[shape.a] / cluster_n
        + min(config.n, shape.n) * BYTES[shape.b] / cluster_m
    )
    return TileWork(
        grid,
        grid.rows * grid.columns * shape.batch * config.split_k,
        ceil_div(ceil_div(shape.k, config.k), config.split_k),
        loaded,
    )


def predict(target: Target, shape: GemmShape, config: TileConfig) -> TilePrediction | str:
    """Return the model's result for a kernel, or the reason why the kernel cannot run."""
    reason = why_not(target, shape, config)
    if reason is not None:
        return reason
    shared = config.cluster[0] * config.cluster[1]
    # Only multiprocessors that whole clusters cover are used.
    usable = target.multiprocessors // shared * shared
    work = work_of(shape, config)
    tiles, steps = work.tiles, work.steps
    occupancy = min(occupancy_of(target, shape, config), ceil_div(tiles, usable))
    # With stream-K a multiprocessor gets a share of the steps, else whole tiles.
    each = ceil_div(tiles * steps, usable) / steps if config.stream_k else ceil_div(tiles, usable)
    waves = 1 if config.stream_k else ceil_div(tiles, usable * occupancy)

    clock = target.clock_mhz * 1e6
    compute_s = each * steps * _step_cycles(target, shape, config, occupancy) / (clock * PEAK)
    l2_s = max(
        work.loaded / _l2_bandwidth(target),
        each * steps * work.step_bytes / (FILL_BYTES_PER_CLOCK * clock),
    )
    moved = _moved_bytes(target, shape, config, usable * occupancy, work.grid)
    flying = (stages_of(target, shape, config) - 1) * work.step_bytes
    blocks = min(tiles * steps, usable * occupancy) if config.stream_k else tiles
    memory_s = moved * _seconds_per_byte(target, blocks, usable * occupancy, max(flying, 1.0))
    # A smooth maximum: times of similar size overlap only in part.
    busy_s = (compute_s**4 + l2_s**4 + memory_s**4) ** 0.25
    fill_s = _fill_s(target, shape, config, occupancy, waves)
    reduce_s = _reduce_s(target, shape, config, min(blocks, usable))
    return TilePrediction(
        LAUNCH_S + busy_s + fill_s + reduce_s,
        compute_s, l2_s, memory_s, fill_s, reduce_s,
        tiles, waves,
    )  # fmt: skip


def _step_cycles(target: Target, shape: GemmShape, config: TileConfig, occupancy: int) -> float:
    """Return the cycles a multiprocessor spends on one step of one tile."""
    rate = target.rate(shape.compute) or 1.0
    per_clock = rate / (target.multiprocessors * target.clock_mhz * 1e6)
    multiply = 2 * config.m * config.n * config.k / per_clock
    if target.capability[0] == 9 and config.m < 64:
        multiply /= MMA_ON_HOPPER
    fetch = _operand_bytes(target, shape, config) / SHARED_BYTES_PER_CLOCK
    busy = max(multiply, fetch) + 0.25 * min(multiply, fetch)
    overhead = STEP_OVERHEAD_CYCLES / (4 if config.specialized else 1) / occupancy
    flying = max(stages_of(target, shape, config) - 1, 1) * occupancy
    return max(busy + overhead, LOAD_LATENCY_CYCLES / flying)


def _operand_bytes(target: Target, shape: GemmShape, config: TileConfig) -> float:
    """Return the bytes the tensor cores read from shared memory in one step."""
    a, b = config.m * BYTES[shape.a], config.n * BYTES[shape.b]
    major = target.capability[0]
    if major == 9:
        # wgmma: each warp group computes 64 rows at a time and reads all of B for them.
        return config.k * (a + b * max(config.m // 64, 1))
    if major == 10:
        return config.k * (a + b)
    # mma.sync: warps form a grid as square as possible; each row of it reads B, each column A.
    along_m = max(
        (
            p
            for p in (1, 2, 4, 8)
            if p <= config.warps and p * p * config.n <= config.warps * config.m
        ),
        default=1,
    )
    return config.k * (a * (config.warps // along_m) + b * along_m)


def _l2_bandwidth(target: Target) -> float:
    major, minor = target.capability
    per_clock = L2_BYTES_PER_CLOCK.get(major + minor / 10, 16 * target.multiprocessors)
    return per_clock * target.clock_mhz * 1e6


def _seconds_per_byte(target: Target, tiles: int, slots: int, flying: float) -> float:
    """Return the time of a byte of device memory: the last wave may have too few loads in flight.

    Args:
        target: The GPU.
        tiles: Blocks of work.
        slots: Blocks that run at once.
        flying: Bytes in flight of one block.
    """
    best = target.memory_bandwidth * DRAM_PEAK

    def bandwidth(blocks: int) -> float:
        share = min(blocks, target.multiprocessors) / target.multiprocessors
        return min(best, blocks * flying / DRAM_LATENCY_S, best * ONE_SHARE * share)

    last = tiles % slots
    part = last / tiles
    return (1 - part) / bandwidth(slots) + (part / bandwidth(last) if last else 0.0)


def _moved_bytes(
    target: Target, shape: GemmShape, config: TileConfig, resident: int, grid: Grid
) -> float:
    """Return bytes read from and written to device memory.

    Operands that concurrent blocks share are read once by them; an operand that fits half of L2 is read
    once in total.
    """
    high, wide = _panel(grid, max(resident // config.split_k, 1))
    kept = target.l2_bytes / 2
    a, b = shape.m * shape.k * BYTES[shape.a], shape.k * shape.n * BYTES[shape.b]
    a_read = a if a + b <= kept or a <= kept / 2 else a * ceil_div(grid.columns, wide)
    b_read = b if a + b <= kept or b <= kept / 2 else b * ceil_div(grid.rows, high)
    written = 0 if config.split_k > 1 else shape.m * shape.n * BYTES[shape.out]
    return float(shape.batch * (a_read + b_read + written))


def _panel(grid: Grid, resident: int) -> tuple[int, int]:
    """Return the (rows, columns) of tiles that concurrent blocks cover."""
    if grid.along == "m":
        wide, high = _panel(Grid(grid.columns, grid.rows, "n", grid.width), resident)
        return high, wide
    high = min(grid.rows, max(grid.width, 1))
    wide = min(grid.columns, ceil_div(resident, high))
    return min(grid.rows, max(high, resident // wide)), wide


def _fill_s(
    target: Target, shape: GemmShape, config: TileConfig, occupancy: int, waves: int
) -> float:
    """Return the time of filling the pipeline and storing a tile where no other tile hides it."""
    stored = config.m * config.n * BYTES[shape.out]
    store_s = DRAM_LATENCY_S / 2 + stored / (FILL_BYTES_PER_CLOCK * target.clock_mhz * 1e6)
    first_s = DRAM_LATENCY_S + store_s
    if config.pingpong:
        return first_s
    later_s = store_s if config.specialized else first_s
    return first_s + (waves - 1) * later_s / occupancy


def _reduce_s(target: Target, shape: GemmShape, config: TileConfig, blocks: int) -> float:
    """Return the time of summing partial tiles in float32."""
    if config.stream_k:
        # At most one tile of each block is finished by another block.
        partial = blocks * config.m * config.n * 4
        return DRAM_LATENCY_S + 2 * partial / _l2_bandwidth(target)
    if config.split_k == 1:
        return 0.0
    partial = config.split_k * shape.m * shape.n * shape.batch * 4
    fast = partial <= target.l2_bytes / 2
    bandwidth = _l2_bandwidth(target) / 2 if fast else target.memory_bandwidth * DRAM_PEAK
    written = shape.m * shape.n * shape.batch * BYTES[shape.out] / target.memory_bandwidth
    zeroing_s = 0.0
    if config.zeroed:
        # Zeroing is a separate launch over whole tiles of sums.
        rows, columns = ceil_div(shape.m, config.m), ceil_div(shape.n, config.n)
        tiles = rows * columns * shape.batch * config.split_k
        zeroing_s = LAUNCH_S + tiles * config.m * config.n * 4 / bandwidth
    return LAUNCH_S + 2 * partial / bandwidth + written + zeroing_s
