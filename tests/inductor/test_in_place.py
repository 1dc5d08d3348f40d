"""Operations in place that Inductor lowers as others out of place, beside products that are decided after the lowering."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest
import torch

from inductor_plugin.tuning import selection
from inductor_plugin.tuning.decision import Verdict
from tests.support.compile import compiled, fresh

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


def choosing(prefix: str, winners: list[str]) -> Callable[..., Verdict]:
    def decide(
        medians_ms: Mapping[str, float], libraries: Collection[str], *_limits: object
    ) -> Verdict:
        names = [name for name in medians_ms if name.startswith(prefix)] if prefix else libraries
        winners.append(next(iter(names)))
        return Verdict(winners[-1], next(iter(libraries)), "chosen by the test")

    return decide


@pytest.mark.parametrize("prefix", ["cpp", ""], ids=["template", "library"])
def test_a_product_keeps_its_operands_and_its_result_what_is_done_to_it(
    prefix: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``lowering.mutate_to`` puts another buffer into the box of what is masked."""
    a, b = torch.randn(4, 32, 32), torch.randn(4, 32, 32)
    mask = torch.rand(4, 32, 32) > 0.5
    winners: list[str] = []
    monkeypatch.setattr(selection, "decide", choosing(prefix, winners))
    with torch.no_grad():
        computed = compiled(masked, cache_dir)(a, b, mask)
    assert winners
    for value, expected in zip(computed, masked(a, b, mask), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)
