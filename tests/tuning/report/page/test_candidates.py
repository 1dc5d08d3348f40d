from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from inductor_plugin.tuning.report.page.candidates import (
    CANDIDATE,
    Detail,
    Forms,
    candidate_row,
    digits,
)
from inductor_plugin.tuning.report.page.texts import Texts
from tests.support.cache.records import measured

GREATEST = sys.float_info.max


def row_of(median_ms: float, *samples_ms: float) -> dict[str, Any]:
    known = measured("a", median_ms, samples_ms=samples_ms)
    return dict(zip(CANDIDATE, candidate_row(known, Forms(Texts()), Detail()), strict=True))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.234567, 1.2346),
        (2.0, 2),
        (0.0, 0),
        (None, None),
        (GREATEST, GREATEST),
        (1e300, 1e300),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_a_number_has_few_digits_and_is_finite(value: float | None, shown: float | None) -> None:
    assert digits(value) == shown
    assert len(json.dumps(digits(value), allow_nan=False)) < 24


@pytest.mark.parametrize("samples", [(1e300,), (1e300,) * 9, (0.0, GREATEST, GREATEST)])
def test_samples_far_from_their_median_are_as_far_as_a_page_draws(
    samples: tuple[float, ...],
) -> None:
    row = row_of(1e-300, *samples)
    assert row["high"] == max(row["each"]) == 1_000_000
    json.dumps(row, allow_nan=False)
