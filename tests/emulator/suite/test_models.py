"""The models that rank tiles and fusions (`inductor_plugin.cost`) against what the emulator has counted of products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.cost.gemm import work_of
from inductor_plugin.problem.target import target
from tests.emulator.kernels.gemm import DTYPES
from tests.emulator.suite import row as row_module
from tests.emulator.suite.cases import trees
from tests.emulator.suite.cases.products import CASES
from tests.emulator.suite.moved import (
    beside,
    beside_tree,
    factors,
    is_modelled,
    of_model,
    padded,
    shape_of,
    tile_in,
    written_by_tree,
)

ROWS = row_module.read()
COUNTED = {name: product for name, product in CASES.items() if name in ROWS}
MODELLED = [name for name, product in COUNTED.items() if is_modelled(product.case)]
WHOLE = [
    name
    for name, product in COUNTED.items()
    if product.case.split == 1
    and product.case.config.schedule != "stream_k"
    and not product.case.config.grouped
]
"""Products that write their result and nothing else: no parts of sums, no tensor maps."""
IS_COUNTED_ONCE = {name: name.startswith("sm80") or ROWS[name].ptx != "" for name in ROWS}
"""Rows whose TMA stores count once a warp, not once a lane: those without TMA, and those that have a digest of their PTX."""


@pytest.mark.parametrize("name", [name for name in MODELLED if CASES[name].case.split == 1])
def test_operations_are_those_that_tensor_cores_did(name: str) -> None:
    shape, config = shape_of(CASES[name].case), tile_in(CASES[name].case)
    work = work_of(shape, config)
    operations = work.tiles * work.steps * 2 * config.m * config.n * config.k
    assert ROWS[name].counts["tensor operations"] == operations


@pytest.mark.parametrize("name", COUNTED)
def test_loads_are_those_of_tiles_and_of_what_a_product_reads_besides(name: str) -> None:
    product = CASES[name]
    others = ROWS[name].counts["global read"] - factors(product.case)
    assert others in beside(product.case, target(product.gpu).multiprocessors)


@pytest.mark.parametrize("name", MODELLED)
def test_the_model_loads_the_same_tiles_and_pads_only_where_it_says(name: str) -> None:
    case = CASES[name].case
    loaded = work_of(shape_of(case), tile_in(case)).loaded
    assert factors(case) <= loaded
    assert loaded == pytest.approx(padded(case))


def test_products_of_every_kind_are_among_them() -> None:
    cases = [CASES[name].case for name in MODELLED]
    assert {case.config.bias for case in cases} == {"none", "row", "column", "full"}
    assert {case.config.scale for case in cases} == {"none", "tensor", "rowwise"}
    assert {case.config.grouped for case in cases} == {False, True}
    assert {"stream_k", "pingpong", "cooperative"} <= {case.config.schedule for case in cases}
    assert {case.config.arch for case in cases if case.split > 1} == {"sm_80", "sm_90a"}


def test_bytes_besides_the_factors_are_few_enough_that_twice_as_many_are_seen() -> None:
    case = CASES["sm90 fp8 scales by row, bias"].case
    bounds = beside(case, 132)
    counted = ROWS["sm90 fp8 scales by row, bias"].counts["global read"] - factors(case)
    assert bounds.fewest == bounds.most == counted == 2944
    grouped = CASES["sm90 grouped, even"].case
    assert 2 * (ROWS["sm90 grouped, even"].counts["global read"] - factors(grouped)) not in beside(
        grouped, 132
    )
    assert factors(replace(grouped, ends=(64, 128, 191))) < factors(grouped)


@pytest.mark.parametrize("name", [name for name in WHOLE if IS_COUNTED_ONCE[name]])
def test_writes_are_those_of_the_result(name: str) -> None:
    case = CASES[name].case
    item = DTYPES[case.config.d].itemsize
    assert ROWS[name].counts["global written"] == case.m * case.n * item * max(case.batch, 1)


def test_a_product_with_a_swizzle_is_among_them() -> None:
    # CUTLASS adds 8 tiles to 24 of this case: without them, the tests above fail.
    assert "sm90 swizzle" in MODELLED
    case = CASES["sm90 swizzle"].case
    assert work_of(shape_of(case), tile_in(case)).tiles == 32


@pytest.mark.parametrize("name", trees.CASES)
def test_the_model_of_fusions_moves_each_operand_and_each_output_once(name: str) -> None:
    tree = trees.CASES[name]
    case, item = tree.case, DTYPES[tree.case.plain.a].itemsize
    whole = case.m * case.n * max(case.batch, 1)
    each = {
        "full": whole * item,
        "row": case.n * item * max(case.batch, 1),
        "column": case.m * item * max(case.batch, 1),
        "scalar": 4,
    }
    reads, writes = of_model(case, target(tree.gpu))
    assert reads == sum(each[kind] for kind in case.function.operands)
    assert writes == written_by_tree(case)


@pytest.mark.parametrize("name", [name for name in trees.CASES if name in ROWS])
def test_a_tree_moves_what_the_model_of_fusions_says_and_no_more_than_its_tiles_read(
    name: str,
) -> None:
    tree, counts = trees.CASES[name], ROWS[name].counts
    reads, writes = of_model(tree.case, target(tree.gpu))
    others = counts["global read"] - factors(tree.case)
    assert reads <= others
    assert others in beside_tree(tree.case)
    assert not IS_COUNTED_ONCE[name] or counts["global written"] == writes


def test_a_tree_that_reads_an_operand_twice_is_beyond_its_bounds() -> None:
    case = trees.CASES["tree gate_two"].case
    m, n, item = 67, 80, 2
    once = n * item * 2 + 2 * m * n * item  # two tiles of 64 rows read the row
    bounds = beside_tree(case)
    assert (bounds.fewest, bounds.most) == (once, once)
    assert of_model(case, target("H100"))[0] == n * item + 2 * m * n * item
    assert once + m * n * item not in bounds
