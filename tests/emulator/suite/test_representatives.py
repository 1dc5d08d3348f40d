"""What the representatives of `mutations` have to be: kernels that exist, in cases that fill every stage more than once."""

from __future__ import annotations

import functools
import math
from typing import cast

import pytest

from inductor_plugin.problem.attention import Mask
from inductor_plugin.templates.cutlass.limits import why_not_buildable
from tests.emulator.kernels import attention, build, gemm
from tests.emulator.suite.cases import templates
from tests.emulator.suite.entry import entries
from tests.emulator.suite.representatives import FAMILIES, GEMMS, HEADS, TRITON, representatives
from tests.support.attention.forward_cases import Trial

TILES_OF_SM80 = 1
"""These kernels start a block for each tile, whose shared memory is its own."""


def of_each_block(family: str) -> tuple[float, int]:
    """Return how many tiles of a product each of its blocks computes, and its steps along K."""
    case, blocks = GEMMS[family].case, GEMMS[family].blocks
    config, split = case.config, 1
    rows, batch = [case.m], max(case.batch, 1)
    if isinstance(case, gemm.Case):
        split = case.split
        if case.ends:
            firsts = (0, *case.ends)
            rows, batch = [end - first for first, end in zip(firsts, case.ends, strict=False)], 1
    m, n, k = config.tile
    tiles = sum(math.ceil(each / m) for each in rows) * math.ceil(case.n / n) * batch * split
    pair = 2 if config.schedule == "two_sm" else 1  # both work on one tile
    each = tiles * pair / blocks
    # Parts of a tile go from block to block if it has fewer of them than the blocks have: then some blocks have one more.
    return math.ceil(each) if split > 1 else each, math.ceil(case.k / k) // split


@pytest.mark.parametrize("family", GEMMS)
def test_the_stages_of_a_product_are_filled_again_within_a_tile_and_in_the_next(
    family: str,
) -> None:
    config = GEMMS[family].case.config
    tiles, steps = of_each_block(family)
    assert config.stages > 0
    assert steps > config.stages
    assert tiles >= (TILES_OF_SM80 if family == "sm80" else 2)


@pytest.mark.parametrize("family", GEMMS)
def test_a_product_is_built_with_the_stages_of_its_name(family: str) -> None:
    config = GEMMS[family].case.config
    assert why_not_buildable(config) is None
    if family != "sm80":
        assert f"StageCount<{config.stages}>" in build.text_of(config)


def tiles_of(case: attention.Case) -> int:
    """Return how many tiles go through the stages of a block: of K and V, in the backward of Q and of its gradient."""
    config = case.config
    if config.backward:
        return 2 * math.ceil(case.queries / config.rows)
    work = math.ceil(case.queries / config.rows) * case.heads * case.batch
    blocks = case.multiprocessors or work
    return 2 * math.ceil(case.keys / config.columns) * (work // blocks)


@pytest.mark.parametrize("family", HEADS)
def test_the_stages_of_an_attention_are_filled_again(family: str) -> None:
    case = HEADS[family]
    assert tiles_of(case) > (4 if case.config.backward else case.config.stages)


def test_pingpong_two_multiprocessors_and_8_bits_are_among_them() -> None:
    assert {case.config.schedule for case in HEADS.values()} == {"cooperative", "pingpong"}
    assert {case.config.element for case in HEADS.values()} >= {"bf16", "f16", "e4m3"}
    schedules = {product.case.config.schedule for product in GEMMS.values()}
    assert schedules >= {"pingpong", "cooperative", "stream_k", "one_sm", "two_sm"}


def test_every_family_of_the_suite_has_one() -> None:
    cases = representatives()
    assert tuple(cases) == FAMILIES
    assert {case.family for case in cases.values()} == {case.family for case in entries().values()}
    for family, case in cases.items():
        assert family.split()[0] == case.family


def test_every_template_of_triton_and_trees_of_either_gpu_have_one() -> None:
    suite = entries()
    of_triton = {case.template for case in suite.values() if case.template}
    assert {suite[name].template for name in TRITON.values()} == of_triton
    trees = {product.gpu for family, product in GEMMS.items() if family.startswith("tree")}
    assert trees == {"H100", "B200"}


def hides(mask: Mask, queries: int, keys: int) -> tuple[bool, bool]:
    """Return whether a mask hides any key of any query, and whether it shows any."""
    shift = keys - queries if mask.bottom_right else 0
    seen = {
        (mask.left < 0 or key >= query + shift - mask.left)
        and (mask.right < 0 or key <= query + shift + mask.right)
        for query in range(queries)
        for key in range(keys)
    }
    return False in seen, True in seen


def test_the_mask_of_tritons_attention_hides_some_keys_and_shows_others() -> None:
    run = templates.CASES[TRITON["triton attention"]].run
    trial = cast("functools.partial[object]", run).args[0]
    assert isinstance(trial, Trial)
    case = trial.case
    assert isinstance(case.queries, int)
    assert isinstance(case.keys, int)
    assert hides(case.mask, case.queries, case.keys) == (True, True)
