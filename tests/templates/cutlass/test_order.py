"""The order of CUTLASS kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass.choices import LIMIT, choices
from inductor_plugin.templates.cutlass.order import order, shape_of, tile_of
from inductor_plugin.templates.cutlass.problem import GemmFacts

FACTS = GemmFacts(
    *(4096, 4096, 4096, 1),
    *("bf16", "bf16", "bf16", "bf16"),
    *("row", "column"),
    *(8, 8, 8, 8),
)


def offered(facts: GemmFacts, name: str):
    found = choices(facts, target(name).arch, limit=1000)
    assert not isinstance(found, str)
    return found


@pytest.mark.parametrize("name", ["H100", "H200", "A100", "L40S", "RTX 4090", "B200"])
def test_a_large_product_starts_with_a_large_tile(name: str) -> None:
    found = order(target(name), FACTS, offered(FACTS, name))
    m, n, _ = found[0].config.tile
    assert m * n >= 128 * 128
    assert len(found) <= LIMIT
    assert len({one.name for one in found}) == len(found)


def test_few_rows_start_with_few_rows() -> None:
    facts = replace(FACTS, m=16)
    found = order(target("H100"), facts, offered(facts, "H100"))
    assert found[0].config.tile[0] == 64
    assert (
        found[0].config.tile != order(target("H100"), FACTS, offered(FACTS, "H100"))[0].config.tile
    )


def test_what_the_model_does_not_know_stays_behind() -> None:
    given = offered(FACTS, "H100")
    found = order(target("H100"), FACTS, given, limit=1000)
    assert set(found) == set(given)


def test_a_choice_keeps_its_launch() -> None:
    facts = replace(FACTS, m=128, n=256, k=16384)
    given = offered(facts, "H100")
    cut = [one for one in given if one.launch.split_k > 1]
    assert cut
    assert all(tile_of(one).split_k == one.launch.split_k for one in cut)
    assert shape_of(facts).operations == 2 * 128 * 256 * 16384


def test_tiles_of_two_multiprocessors_count_by_half() -> None:
    two = next(one for one in offered(FACTS, "B200") if one.config.schedule == "two_sm")
    assert tile_of(two).m * 2 == two.config.tile[0]
