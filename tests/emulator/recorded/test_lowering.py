"""A recorded candidate among those of today: by identity, or by configuration."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inductor_plugin.problem.target import target
from tests.emulator.recorded.lowering import like, lowering
from tests.support.cache.records import measured


@dataclass(frozen=True)
class Offer:
    candidate_id: str
    name: str
    description: str


TILES = "BLOCK_M=64, NUM_SMS=132, num_warps=4"
ROW = measured("triton_mm-1", name="triton_mm", description=TILES)


def test_the_same_identity_goes_before_the_same_configuration() -> None:
    alike = Offer("triton_mm-2", "triton_mm", TILES)
    same = Offer("triton_mm-1", "triton_mm", "another")
    assert like([alike, same], ROW) == same


def test_a_configuration_is_the_same_on_gpus_of_other_sizes_and_of_one_kernel() -> None:
    smaller = TILES.replace("132", "108")
    others = [Offer("a", "triton_bmm", TILES), Offer("b", "triton_mm", TILES.replace("64", "32"))]
    assert like(others, ROW) is None
    assert like([*others, Offer("c", "triton_mm", smaller)], ROW) == Offer(
        "c", "triton_mm", smaller
    )


def test_the_precision_of_float32_is_that_of_the_record_meanwhile() -> None:
    before = torch.get_float32_matmul_precision()
    with lowering(target("H100"), "high"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
