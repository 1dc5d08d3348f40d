"""A matrix product, its division into tiles, and whether a tile fits a GPU. Pure, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inductor_plugin.problem.definition import item_bytes
from inductor_plugin.problem.target import WARP_SIZE, Target

BYTES = {
    dtype: item_bytes(dtype)
    for dtype in (
        "float32", "tf32", "int32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8",
    )
}  # fmt: skip
"""Bytes of an element, of the types that the models know."""

REGISTERS_BESIDE_SUMS = 40
"""Registers of a thread besides its sums: addresses, fragments, counters."""


@dataclass(frozen=True)
class GemmShape:
    """D[batch, m, n] = A[batch, m, k] @ B[batch, k, n].

    Attributes:
        m: Rows of A and D.
        n: Columns of B and D.
        k: Length of the reduction.
        batch: Number of products.
        a: Dtype of A; ``float32`` is computed as TF32.
        b: Dtype of B.
        out: Dtype of D.
        a_row_major: True if k is the fastest dimension of A.
        b_row_major: True if n is the fastest dimension of B.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a: str = "bfloat16"
    b: str = "bfloat16"
    out: str = "bfloat16"
    a_row_major: bool = True
    b_row_major: bool = True

    @property
    def compute(self) -> str:
        """Dtype the tensor cores compute in."""
        wider = max(self.a, self.b, key=lambda dtype: BYTES.get(dtype, 0))
        return "tf32" if wider == "float32" else wider

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def bytes(self) -> int:
        """Bytes of the operands and of D."""
        read = self.m * self.k * BYTES[self.a] + self.k * self.n * BYTES[self.b]
        return self.batch * (read + self.m * self.n * BYTES[self.out])


@dataclass(frozen=True)
class TileConfig:
    """Tiling of a product by one kernel.

    Attributes:
        m: Rows of D one block computes; half of the tile's if two blocks share it (``two_sm``).
        n: Columns of D one block computes.
        k: Elements of K it loads at once.
        warps: Warps that compute, without a producer's.
        stages: Steps along K in flight; 0 for as many as fit.
        cluster: Blocks along (m, n) that share their loads.
        schedule: Name of the kernel's schedule. ``pingpong``, ``cooperative``, ``specialized`` and
            ``*_sm`` have a producer warp group; ``pingpong`` alternates between two tiles.
        split_k: Blocks that share one tile's K and are summed afterwards.
        stream_k: True if K is divided so that all multiprocessors get equal work.
        group: Width of a panel of tiles that are traversed together (Triton's GROUP_M, CUTLASS's swizzle).
        along: Dimension along which a panel is traversed: ``n`` for Triton's groups of rows; empty if ``scheduler`` chooses it.
        scheduler: ``sm90`` for CUTLASS's persistent scheduler of sm_90, which adds tiles until ``group`` divides them
            and counts ``group`` in clusters (`grid_of`); empty for one that does neither.
        epilogue_bytes: Shared memory in addition to the stages.
        zeroed: True if the partial results of ``split_k`` are zeroed before each call.
    """

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 0
    cluster: tuple[int, int] = (1, 1)
    schedule: str = ""
    split_k: int = 1
    stream_k: bool = False
    group: int = 8
    along: Literal["", "m", "n"] = "n"
    scheduler: Literal["", "sm90"] = ""
    epilogue_bytes: int = 0
    zeroed: bool = False

    @property
    def specialized(self) -> bool:
        """True if the kernel has a producer warp group."""
        words = ("pingpong", "cooperative", "specialized", "one_sm", "two_sm")
        return any(word in self.schedule.lower() for word in words)

    @property
    def pingpong(self) -> bool:
        """True if two warp groups compute a tile each, one storing while the other multiplies."""
        return "pingpong" in self.schedule.lower()

    def threads(self, warp_size: int = WARP_SIZE) -> int:
        """Return the threads of a block, with the producer's."""
        return warp_size * (self.warps + (4 if self.specialized else 0))

    def stage_bytes(self, shape: GemmShape) -> int:
        """Return the shared memory of one step along K."""
        return self.k * (self.m * BYTES[shape.a] + self.n * BYTES[shape.b])


@dataclass(frozen=True)
class Grid:
    """The tiles of one product, and the order in which blocks take them.

    Attributes:
        rows: Tiles along M, those beyond the last row included.
        columns: Tiles along N, likewise.
        along: Dimension along which a panel is traversed.
        width: Tiles of a panel across that dimension.
    """

    rows: int
    columns: int
    along: Literal["m", "n"]
    width: int


def grid_of(shape: GemmShape, config: TileConfig) -> Grid:
    """Return the tiles that a kernel computes: whole clusters, and what its scheduler adds.

    The scheduler of sm_90 computes all tiles that it adds, and reads the operand that they still have. Where it
    chooses the direction, it is the one with fewer tiles (``initialize`` and ``get_rasterization_order`` of
    ``PersistentTileSchedulerSm90Params`` in CUTLASS's ``tile_scheduler_params.h``).
    """
    cluster_m, cluster_n = config.cluster
    rows = round_up(ceil_div(shape.m, config.m), cluster_m)
    columns = round_up(ceil_div(shape.n, config.n), cluster_n)
    width_m = width_n = config.group
    if config.scheduler == "sm90":
        swizzle = swizzle_of(rows, columns, config.group)
        width_m, width_n = swizzle * cluster_m, swizzle * cluster_n
        rows, columns = round_up(rows, width_m), round_up(columns, width_n)
    along = config.along or ("m" if columns > rows else "n")
    return Grid(rows, columns, along, width_n if along == "m" else width_m)


def swizzle_of(rows: int, columns: int, most: int) -> int:
    """Return the swizzle that CUTLASS's scheduler of sm_90 uses (``get_log_swizzle_size``).

    Args:
        rows: Tiles along M, of whole clusters.
        columns: Tiles along N, likewise.
        most: ``max_swizzle_size``.
    """
    fewest = min(rows, columns)
    for swizzle, needed in ((8, 6), (4, 3), (2, 2)):
        if most >= swizzle and fewest >= needed:
            return swizzle
    return 1


def why_not(target: Target, shape: GemmShape, config: TileConfig) -> str | None:
    """Return why a kernel cannot run, or would certainly spill or idle, or None."""
    unknown = [dtype for dtype in (shape.a, shape.b, shape.out) if dtype not in BYTES]
    if unknown:
        return f"the model knows no {unknown[0]}"
    if target.rate(shape.compute) is None:
        return f"{target.name} has no tensor cores for {shape.compute}"
    if min(shape.m, shape.n, shape.k, shape.batch) < 1:
        return "there is nothing to compute"
    return _why_not_shared(target, shape, config) or _why_not_resident(target, shape, config)


def _why_not_shared(target: Target, shape: GemmShape, config: TileConfig) -> str | None:
    steps = ceil_div(shape.k, config.k)
    if config.split_k > steps:
        return f"K has {steps} steps of {config.k}, too few to split into {config.split_k}"
    if config.split_k > 1 and config.stream_k:
        return "it either splits K or streams it"
    blocks = config.cluster[0] * config.cluster[1]
    if blocks > 1 and target.capability < (9, 0):
        return f"{target.name} has no clusters"
    if blocks > 8:
        return f"a cluster has 8 blocks at most, not {blocks}"
    return None


def _why_not_resident(target: Target, shape: GemmShape, config: TileConfig) -> str | None:
    stage = config.stage_bytes(shape)
    stages = stages_of(target, shape, config)
    if stages < 2 and config.stages != 1:
        return (
            f"two stages of {stage} bytes and {config.epilogue_bytes} beside them do not fit into "
            f"{target.shared_per_block} bytes of shared memory"
        )
    held = stages * stage + config.epilogue_bytes
    if held > target.shared_per_block:
        return (
            f"{stages} stages of {stage} bytes and {config.epilogue_bytes} beside them are {held} "
            f"bytes of shared memory; a block has {target.shared_per_block}"
        )
    sums = _sums(target, config)
    if sums + REGISTERS_BESIDE_SUMS > 255:
        return f"each thread would hold {sums} sums of its tile, which spill"
    if occupancy_of(target, shape, config) == 0:
        return f"{config.threads(target.warp_size)} threads with {sums} sums each do not fit into a multiprocessor"
    return None


def stages_of(target: Target, shape: GemmShape, config: TileConfig) -> int:
    """Return the steps along K in flight: the configured number, or as many as fit."""
    if config.stages:
        return config.stages
    room = target.shared_per_block - config.epilogue_bytes
    return min(max(room, 0) // config.stage_bytes(shape), ceil_div(shape.k, config.k) + 1, 12)


def _sums(target: Target, config: TileConfig) -> int:
    """Return the registers of a thread that hold sums; compute capability 10 has tensor memory for them."""
    if target.capability[0] == 10:
        return 0
    threads = target.warp_size * config.warps // (2 if config.pingpong else 1)
    return ceil_div(config.m * config.n, max(threads, 1))


def occupancy_of(target: Target, shape: GemmShape, config: TileConfig) -> int:
    """Return how many blocks run on one multiprocessor at once; 0 if none can."""
    held = stages_of(target, shape, config) * config.stage_bytes(shape) + config.epilogue_bytes
    registers = _sums(target, config) + REGISTERS_BESIDE_SUMS
    if config.specialized:
        # The producer warps release registers to the consumer warps.
        registers = max(24, registers * config.warps // (config.warps + 4))
    return target.blocks(config.threads(target.warp_size), registers, held)


def ceil_div(whole: int, part: int) -> int:
    """Return ``whole / part``, rounded up."""
    return -(-whole // part)


def round_up(whole: int, part: int) -> int:
    """Return the smallest multiple of ``part`` that is not below ``whole``."""
    return ceil_div(whole, part) * part
