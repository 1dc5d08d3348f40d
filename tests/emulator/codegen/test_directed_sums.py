"""Sums and differences of float32 that are rounded in a direction: a fused multiply-add by 1, which is held against fractions."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.ptx.syntax import PtxError
from tests.emulator.snippet import evaluate

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 3e38, -3e38, 1e-40], np.float32)


def addends() -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of special numbers, and of numbers whose sums are not exact."""
    drawn = np.random.default_rng(0)
    left, right = (each.reshape(-1) for each in np.meshgrid(SPECIAL, SPECIAL))
    scales = 2.0 ** drawn.integers(-30, 30, 600)
    more = drawn.standard_normal(600) * scales
    return (
        np.concatenate([left, more]).astype(np.float32),
        np.concatenate([right, drawn.standard_normal(600)]).astype(np.float32),
    )


@pytest.mark.parametrize("rounding", ["rm", "rp", "rz"])
@pytest.mark.parametrize(("name", "factor"), [("add", "%one"), ("sub", "%minus")])
def test_a_sum_rounds_in_the_direction_it_names(name: str, factor: str, rounding: str) -> None:
    a, c = addends()
    operands = {"%a": ("f32", a), "%c": ("f32", c), "%one": ("f32", np.ones_like(a))}
    text = (
        f"neg.f32 %minus, %one; {name}.{rounding}.f32 %d, %a, %c; {name}.rn.f32 %f, %a, %c; "
        f"fma.{rounding}.f32 %e, %c, {factor}, %a;"
    )
    results: dict[str, str] = dict.fromkeys(("%d", "%e", "%f", "%minus"), "f32")
    got, wanted, nearest, _ = evaluate(text, operands, results)
    number = ~np.isnan(wanted)
    assert np.array_equal(got[number].view(np.uint32), wanted[number].view(np.uint32))
    assert np.isnan(got[~number]).all()
    assert not np.array_equal(got[number], nearest[number])


@pytest.mark.parametrize(
    ("text", "width"), [("add.rz.f64", "f64"), ("sub.rm.f16", "b16"), ("add.rp.f32x2", "b64")]
)
def test_other_sums_that_are_rounded_in_a_direction_are_refused(text: str, width: str) -> None:
    zeros = np.zeros(4, {"f64": "float64", "b16": "uint16", "b64": "uint64"}[width])
    with pytest.raises(PtxError, match=r"PTX line .*\.r[zmp] of f"):
        evaluate(f"{text} %d, %a, %a;", {"%a": (width, zeros)}, {"%d": width})
