from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from inductor_plugin.repro.body import IMPORTS, RUN


@pytest.fixture
def body() -> dict[str, Any]:
    """The functions of a script."""
    names: dict[str, Any] = {"__name__": "script", "OPERANDS": [{"device": "cpu"}], "JUMPS": False}
    exec(compile(IMPORTS + RUN, "body", "exec"), names)
    return names


def test_an_error_is_relative_to_what_is_right(body: dict[str, Any]) -> None:
    right = torch.tensor([3.0, -4.0], dtype=torch.float64)  # rms 12.5 ** 0.5
    off = torch.tensor([3.0, -4.5])
    assert body["error"]([right.float()], [right]) == 0.0
    assert body["error"]([right, off], [right, right]) == pytest.approx(0.5 / 12.5**0.5)
    body["JUMPS"] = True
    assert body["error"]([off], [right]) == pytest.approx(0.125**0.5 / 12.5**0.5)


def test_what_is_no_number_counts_only_where_there_should_be_one(body: dict[str, Any]) -> None:
    right = torch.tensor([1.0, math.nan, math.inf], dtype=torch.float64)
    assert body["error"]([torch.tensor([1.0, 2.0, 3.0])], [right]) == 0.0
    for odd in (math.nan, math.inf):
        error = body["error"]([torch.tensor([odd, 0.0, 0.0]), right[:1]], [right, right[:1]])
        assert not error <= 1.0
    assert body["error"]([torch.empty(0)], [torch.empty(0, dtype=torch.float64)]) == 0.0
