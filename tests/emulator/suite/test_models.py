"""The model that ranks tiles (`inductor_plugin.cost.gemm`) against what the emulator has counted of products."""

from __future__ import annotations

import pytest

from inductor_plugin.cost.gemm import work_of
from inductor_plugin.cost.tile import BYTES, GemmShape, TileConfig, ceil_div, grid_of
from inductor_plugin.templates.cutlass.choices import Choice
from inductor_plugin.templates.cutlass.config import LaunchOptions
from inductor_plugin.templates.cutlass.order import tile_of
from tests.emulator.kernels.gemm import DTYPES, Case, dtype_name
from tests.emulator.suite import row as row_module
from tests.emulator.suite.cases.products import CASES

ROWS = row_module.read()
COUNTED = {
    name: product
    for name, product in CASES.items()
    if name in ROWS and not product.case.config.grouped
}
"""Products of one size."""
PLAIN = [
    name
    for name, product in COUNTED.items()
    if product.case.config.bias == product.case.config.scale == "none"
    and product.case.config.schedule != "stream_k"
    and product.case.split == 1
]
"""Products that read their two factors and nothing else."""

IS_COUNTED_ONCE = {name: name.startswith("sm80") or ROWS[name].ptx != "" for name in COUNTED}
"""Rows whose TMA stores count once a warp, not once a lane: those without TMA, and those that have a digest of their PTX."""


def shape_of(case: Case) -> GemmShape:
    a, b, out = (dtype_name(DTYPES[each]) for each in (case.config.a, case.config.b, case.config.d))
    return GemmShape(case.m, case.n, case.k, max(case.batch, 1), a, b, out)


def tile(case: Case) -> TileConfig:
    swizzle = case.fields.get("swizzle", 1)
    return tile_of(Choice(case.config, LaunchOptions(swizzle, split_k=case.split)))


@pytest.mark.parametrize("name", [name for name in COUNTED if CASES[name].case.split == 1])
def test_operations_are_those_that_tensor_cores_did(name: str) -> None:
    shape, config = shape_of(CASES[name].case), tile(CASES[name].case)
    work = work_of(shape, config)
    operations = work.tiles * work.steps * 2 * config.m * config.n * config.k
    assert ROWS[name].counts["tensor operations"] == operations


@pytest.mark.parametrize("name", PLAIN)
def test_loads_are_those_of_whole_tiles(name: str) -> None:
    case, counted = CASES[name].case, ROWS[name].counts["global read"]
    shape, config = shape_of(case), tile(case)
    rows, columns = ceil_div(case.m, config.m), ceil_div(case.n, config.n)
    grid = grid_of(shape, config)
    along_m, along_n = grid.rows // config.cluster[0], grid.columns // config.cluster[1]
    a, b = case.m * case.k * BYTES[shape.a], case.k * case.n * BYTES[shape.b]
    assert counted == shape.batch * (a * along_n + b * along_m)
    padding = max(rows * config.m / case.m, 1) * max(columns * config.n / case.n, 1)
    padding *= ceil_div(case.k, config.k) * config.k / case.k
    added = grid.rows / rows * grid.columns / columns
    assert counted <= work_of(shape, config).loaded <= counted * padding * added


@pytest.mark.parametrize("name", [name for name in PLAIN if IS_COUNTED_ONCE[name]])
def test_writes_are_those_of_the_result(name: str) -> None:
    case = CASES[name].case
    item = DTYPES[case.config.d].itemsize
    assert ROWS[name].counts["global written"] == case.m * case.n * item * max(case.batch, 1)


def test_a_product_with_a_swizzle_is_among_them() -> None:
    # CUTLASS adds 8 tiles to 24 of this case: without them, the two tests above fail.
    assert "sm90 swizzle" in PLAIN
    case = CASES["sm90 swizzle"].case
    assert work_of(shape_of(case), tile(case)).tiles == 32
