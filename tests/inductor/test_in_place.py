"""Operations in place that Inductor lowers as others out of place, beside products that are decided after the lowering."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from inductor_plugin.cache import open_store
from tests.support.attention.graphs import only
from tests.support.compile import compiled, fresh
from tests.support.lowering import Lab

__all__ = ["fresh"]  # the fixture
pytestmark = pytest.mark.compat


def masked(
    a: torch.Tensor, b: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    result = torch.bmm(a, b)
    result[~mask] = -math.inf
    operand = torch.relu(a)
    other = torch.bmm(operand, b)
    operand[mask] = 0.0
    return result, other, operand


@pytest.mark.parametrize("name", [r"cpp_\w+", "bmm"], ids=["template", "library"])
def test_a_product_keeps_its_operands_and_its_result_what_is_done_to_it(
    name: str, cache_dir: Path
) -> None:
    """``lowering.mutate_to`` puts another buffer into the box of what is masked."""
    a, b = torch.randn(4, 32, 32), torch.randn(4, 32, 32)
    mask = torch.rand(4, 32, 32) > 0.5
    with torch.no_grad(), Lab(only(name), cache_dir).open():
        computed = compiled(masked, cache_dir)(a, b, mask)
    decisions = [each.decision for each in open_store(cache_dir).iter_records() if each.op == "bmm"]
    assert decisions
    assert all(each and re.match(f"{name}-", each.winner) for each in decisions)
    for value, expected in zip(computed, masked(a, b, mask), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)
