"""Numbers part by part: each is looked at once, and little memory is taken."""

from __future__ import annotations

import math

import pytest
import torch

from inductor_plugin.worker.child import magnitude
from inductor_plugin.worker.child.magnitude import parts, places, rms, share


@pytest.mark.parametrize("shape", [(), (7,), (9, 5), (4, 6, 10), (2, 3, 5, 4), (1, 40)])
@pytest.mark.parametrize("part", [1, 8, 30, 1 << 24])
def test_each_number_is_in_one_part(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], part: int
) -> None:
    monkeypatch.setattr(magnitude, "PART", part)
    seen = torch.zeros(shape)
    for place in places(shape):
        seen[place] += 1
        assert seen[place].numel() <= max(part, shape[-1] if shape else 1)
    assert bool((seen == 1).all())


def test_a_share_is_that_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.tensor([[1.0, math.inf], [math.nan, 2.0], [3.0, 4.0]])
    monkeypatch.setattr(magnitude, "PART", 2)
    assert len(list(parts(values))) == 3
    assert share(values, torch.isfinite) == pytest.approx(4 / 6)
    assert share(torch.empty(0, 4), torch.isfinite) == 1.0


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_a_root_mean_square_is_in_the_range_of_float32(size: float) -> None:
    values = torch.tensor([3.0, 4.0]) * size
    assert rms(values) == pytest.approx(math.sqrt(12.5) * size)
