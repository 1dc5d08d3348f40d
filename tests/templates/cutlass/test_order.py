"""The order of CUTLASS kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass.choices import LIMIT, Choice, choices
from inductor_plugin.templates.cutlass.config import GemmConfig, LaunchOptions, Raster
from inductor_plugin.templates.cutlass.order import order, shape_of, tile_of
from inductor_plugin.templates.cutlass.problem import GemmFacts

FACTS = GemmFacts(
    *(4096, 4096, 4096, 1),
    *("bf16", "bf16", "bf16", "bf16"),
    *("row", "column"),
    *(8, 8, 8, 8),
)


def offered(facts: GemmFacts, name: str):
    result = choices(facts, target(name).arch, limit=1000)
    assert not isinstance(result, str)
    return result


@pytest.mark.parametrize("name", ["H100", "H200", "A100", "L40S", "RTX 4090", "B200"])
def test_a_large_product_starts_with_a_large_tile(name: str) -> None:
    ranked = order(target(name), FACTS, offered(FACTS, name))
    m, n, _ = ranked[0].config.tile
    assert m * n >= 128 * 128
    assert len(ranked) <= LIMIT
    assert len({config.name for config in ranked}) == len(ranked)


def test_few_rows_start_with_few_rows() -> None:
    facts = replace(FACTS, m=16)
    ranked = order(target("H100"), facts, offered(facts, "H100"))
    assert ranked[0].config.tile[0] == 64
    assert (
        ranked[0].config.tile != order(target("H100"), FACTS, offered(FACTS, "H100"))[0].config.tile
    )


def test_what_the_model_excludes_stays_behind() -> None:
    facts = replace(FACTS, m=128, n=256, k=16384)
    offers = offered(facts, "H100")
    cut = tuple(offer for offer in offers if offer.launch.split_k > 1)
    whole = tuple(offer for offer in offers if offer not in cut)
    short = replace(facts, k=64)  # fewer steps of K than parts
    ranked = order(target("H100"), short, (*cut, *whole), limit=1000)
    assert set(ranked[: len(whole)]) == set(whole)
    assert ranked[len(whole) :] == cut
    assert order(target("H100"), short, cut) == cut


def test_a_choice_keeps_its_launch() -> None:
    facts = replace(FACTS, m=128, n=256, k=16384)
    offers = offered(facts, "H100")
    cut = [offer for offer in offers if offer.launch.split_k > 1]
    assert cut
    assert all(tile_of(config).split_k == config.launch.split_k for config in cut)
    assert shape_of(facts).operations == 2 * 128 * 256 * 16384


def test_tiles_of_two_multiprocessors_count_by_half() -> None:
    halves = next(offer for offer in offered(FACTS, "B200") if offer.config.schedule == "two_sm")
    assert tile_of(halves).m * 2 == halves.config.tile[0]


def test_a_kernel_of_transposed_operands_has_tiles_with_columns_of_d_as_its_rows() -> None:
    config = GemmConfig(
        *("sm_90a", (128, 256, 32), (2, 1, 1), "cooperative", "tf32", "tf32", "f32", "f32", "f32"),
        layout_b="row",
    )
    launch = LaunchOptions(raster="along_m")
    turned = tile_of(Choice(config, launch))
    assert (turned.m, turned.n, turned.cluster, turned.along) == (256, 128, (1, 2), "n")
    plain = tile_of(Choice(replace(config, layout_b="column"), launch))
    assert (plain.m, plain.n, plain.cluster, plain.along) == (128, 256, (2, 1), "m")


def test_a_swizzle_is_ranked_with_the_tiles_it_adds() -> None:
    facts = replace(FACTS, m=17 * 128, n=63 * 128)
    offers = offered(facts, "H100")
    swizzled = [
        offer
        for offer in offers
        if offer.launch.swizzle == 8 and offer.config.tile[:2] == (128, 128)
    ]
    assert swizzled
    ranked = order(target("H100"), facts, offers, limit=1000)
    for offer in swizzled:
        assert (tile_of(offer).group, tile_of(offer).scheduler) == (8, "sm90")
        # 17 x 63 tiles become 24 x 64, in clusters of two rows 32 x 64: three or seven waves more than 9.
        plain = replace(offer, launch=LaunchOptions())
        assert ranked.index(plain) < ranked.index(offer), offer.name


def test_only_hoppers_scheduler_adds_tiles() -> None:
    for name in ("A100", "B200"):
        assert {tile_of(offer).scheduler for offer in offered(FACTS, name)} == {""}
    groups = offered(replace(FACTS, batch=4, grouped=True), "H100")
    assert {(each.config.arch, tile_of(each).scheduler) for each in groups} == {("sm_90a", "")}


def test_hoppers_scheduler_chooses_its_direction_unless_the_launch_names_it() -> None:
    (offer, *_) = offered(FACTS, "H100")
    named = {
        raster: tile_of(replace(offer, launch=LaunchOptions(raster=raster))).along
        for raster in get_args(Raster)
    }
    assert named == {"heuristic": "", "along_m": "m", "along_n": "n"}
    assert {tile_of(offer).along for offer in offered(FACTS, "B200")} == {"n"}
