"""What a test's rank says of its own results."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.processes.ranks import Order, run_products


@pytest.mark.parametrize(("spoiled", "error"), [(0.0, 0.0), (math.nan, math.inf)])
def test_an_error_that_is_nan_is_infinite(
    spoiled: float, error: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first graph of two is spoiled, so that a later one could hide it."""
    first: list[Any] = []

    def compiled(model: Any, **_: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        first.append(model)
        return lambda x: model(x) + (spoiled if model is first[0] else 0.0)

    monkeypatch.setattr(torch, "compile", compiled)
    assert run_products(Order(), 0, 1, {}, tmp_path) == error
