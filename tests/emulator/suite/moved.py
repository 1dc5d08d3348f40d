"""What products and their epilogues have to move by their sizes: what the counts of the table are held against.

Blocks load A and B tile by tile, once for all blocks of a cluster that share them, and nothing outside of the matrices. An operand as
large as D is read once; kernels for Hopper read a row once for each tile, a column by each of the four lanes that have its sums, and a
number by each thread. Of kernels for Blackwell that is the most: no row of theirs is in the table yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from inductor_plugin.cost.fusion_time import EFFICIENCY, fused_extra_us
from inductor_plugin.cost.gemm import work_of
from inductor_plugin.cost.tile import BYTES, GemmShape, TileConfig, ceil_div, grid_of
from inductor_plugin.problem.epilogue import Access, Epilogue
from inductor_plugin.problem.target import Target
from inductor_plugin.templates.cutlass.choices import Choice
from inductor_plugin.templates.cutlass.config import GemmConfig, LaunchOptions
from inductor_plugin.templates.cutlass.order import tile_of
from tests.emulator.kernels import fused, gemm
from tests.emulator.kernels.gemm import DTYPES, dtype_name

_LANES = 4
"""Lanes of a warp that have sums of the same row of D: pairs of eight columns."""
_THREADS = 384
"""Most threads of a block of Hopper's."""
_METADATA = 4096
"""Most bytes of sizes, strides and tensor maps that a block of a grouped kernel reads, and reads once more for each of its tiles."""


@dataclass(frozen=True)
class Bounds:
    """Fewest and most bytes."""

    fewest: int
    most: int

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.fewest + other.fewest, self.most + other.most)

    def __contains__(self, count: int) -> bool:
        return self.fewest <= count <= self.most


NOTHING = Bounds(0, 0)


def shape_of(case: gemm.Case | fused.Case) -> GemmShape:
    """Return a product as the model has it: groups of equal lengths."""
    config = _plain(case)
    a, b, out = (dtype_name(DTYPES[each]) for each in (config.a, config.b, config.d))
    rows = ceil_div(case.m, max(case.batch, 1)) if config.grouped else case.m
    return GemmShape(rows, case.n, case.k, max(case.batch, 1), a, b, out)


def tile_in(case: gemm.Case | fused.Case) -> TileConfig:
    """Return a kernel as the model has it."""
    swizzle, split = 1, 1
    if isinstance(case, gemm.Case):
        swizzle, split = case.fields.get("swizzle", 1), case.split
    return tile_of(Choice(_plain(case), LaunchOptions(swizzle, split_k=split)))


def _plain(case: gemm.Case | fused.Case) -> GemmConfig:
    return case.plain if isinstance(case, fused.Case) else case.config


def is_modelled(case: gemm.Case) -> bool:
    """Return whether the model knows the lengths of a product's groups."""
    ends = case.ends
    lengths = {end - begin for begin, end in zip((0, *ends), ends, strict=False)}
    return not ends or (len(lengths) == 1 and ends[-1] == case.m)


def factors(case: gemm.Case | fused.Case) -> int:
    """Return the bytes of A and B that blocks load."""
    shape, config = shape_of(case), tile_in(case)
    if isinstance(case, gemm.Case) and case.ends:
        firsts = (0, *case.ends)
        lengths = [end - first for first, end in zip(firsts, case.ends, strict=False)]
        return sum(_loaded(replace(shape, m=rows, batch=1), config) for rows in lengths if rows)
    return shape.batch * _loaded(shape, config)


def _loaded(shape: GemmShape, config: TileConfig) -> int:
    grid = grid_of(shape, config)
    along_m, along_n = grid.rows // config.cluster[0], grid.columns // config.cluster[1]
    a, b = shape.m * shape.k * BYTES[shape.a], shape.k * shape.n * BYTES[shape.b]
    return a * along_n + b * along_m


def padded(case: gemm.Case) -> float:
    """Return the bytes of A and B with what the model adds: whole steps of K, whole tiles where D is larger than one."""
    shape, config = shape_of(case), tile_in(case)
    work, grid = work_of(shape, config), grid_of(shape, config)
    along_m, along_n = grid.rows // config.cluster[0], grid.columns // config.cluster[1]
    k = work.steps * config.split_k * config.k
    a = grid.rows * min(config.m, shape.m) * k * BYTES[shape.a]
    b = grid.columns * min(config.n, shape.n) * k * BYTES[shape.b]
    return shape.batch * (a * along_n + b * along_m)


def beside(case: gemm.Case, multiprocessors: int) -> Bounds:
    """Return the bytes that a product reads besides its factors.

    Args:
        case: The product.
        multiprocessors: Of its GPU: blocks of a kernel that starts one on each.
    """
    config, total = case.config, NOTHING
    for kind, item in _operands(case):
        total += _read(case, config, kind, item)
    parts = case.multiprocessors or multiprocessors
    m, n, _ = config.tile
    if config.grouped:
        lengths = (end - begin for begin, end in zip((0, *case.ends), case.ends, strict=False))
        tiles = sum(ceil_div(length, m) * ceil_div(case.n, n) for length in lengths)
        total += Bounds(0, (parts + tiles) * _METADATA)
    if case.split > 1:
        parts = case.split * ceil_div(case.m, m) * ceil_div(case.n, n)
    if case.split > 1 or config.schedule == "stream_k":
        # At most one tile of each block is finished by another block, as `cost.gemm` has it; and a flag for each.
        total += Bounds(0, parts * (m * n * 4 + 16))
    return total


def _operands(case: gemm.Case) -> list[tuple[str, int]]:
    """Return how each operand besides the factors is broadcast, and the bytes of an element."""
    config = case.config
    operands: list[tuple[str, int]] = []
    if config.bias != "none" and (case.beta != 0 or config.scale != "none"):
        operands.append((config.bias, DTYPES[config.c].itemsize))
    if config.scale != "none":
        kinds = ("column", "row") if config.scale == "rowwise" else ("scalar", "scalar")
        operands += [(kind, 4) for kind in kinds]
    return operands


def _read(case: gemm.Case | fused.Case, config: GemmConfig, kind: str, item: int) -> Bounds:
    m, n, batch = case.m, case.n, max(case.batch, 1)
    tile = tile_in(case)
    rows, columns = ceil_div(m, tile.m), ceil_div(n, tile.n)
    once = _once(kind, m, n) * item
    if kind == "full":
        return Bounds(once * batch, once * batch)
    if config.arch == "sm_80":  # as an operand as large as D, with a stride of 0
        return Bounds(m * n * item * batch, m * n * item * batch)
    lanes = min(_LANES, ceil_div(n - (columns - 1) * tile.n, 2))  # of the last tile
    times = {
        "row": rows,
        "column": (columns - 1) * _LANES + lanes,
        "scalar": rows * columns * _THREADS,
    }[kind]
    most = once * times * batch
    exact = config.arch == "sm_90a" and kind != "scalar"
    return Bounds(most if exact else once * (1 if kind == "scalar" else batch), most)


def _once(kind: str, m: int, n: int) -> int:
    return {"row": n, "column": m, "full": m * n, "scalar": 1}[kind]


def beside_tree(case: fused.Case) -> Bounds:
    """Return the bytes that a product with a tree reads besides its factors."""
    total = NOTHING
    for kind in case.function.operands:
        item = 4 if kind == "scalar" else DTYPES[case.plain.a].itemsize
        total += _read(case, case.plain, kind, item)
    return total


def of_model(case: fused.Case, gpu: Target) -> tuple[int, int]:
    """Return the bytes that the model of fused epilogues says a product reads for its epilogue, and writes, at a case's sizes."""
    epilogue = at_size(case.lowered, case)
    per_us = gpu.memory_bandwidth * EFFICIENCY / 1e6
    whole, written = (
        fused_extra_us(each, gpu).expected * per_us
        for each in (epilogue, replace(epilogue, reads=()))
    )
    return round(whole - written), round(written) + epilogue.product_bytes


def at_size(epilogue: Epilogue, case: fused.Case) -> Epilogue:
    """Return an epilogue of a product of a case's sizes."""
    batch = (case.batch,) if case.batch else ()
    reads, writes = (
        tuple(_at_size(access, case) for access in accesses)
        for accesses in (epilogue.reads, epilogue.writes)
    )
    return replace(epilogue, size=(*batch, case.m, case.n), reads=reads, writes=writes)


def _at_size(access: Access, case: fused.Case) -> Access:
    batch = 1 if access.pattern == "scalar" else max(case.batch, 1)
    return replace(access, elements=batch * _once(access.pattern, case.m, case.n))


def written_by_tree(case: fused.Case) -> int:
    """Return the bytes of all outputs of a product with a tree."""
    tree = case.config.epilogue
    assert tree is not None
    each = case.m * case.n * max(case.batch, 1)
    return each * sum(DTYPES[output.element].itemsize for output in tree.outputs)
