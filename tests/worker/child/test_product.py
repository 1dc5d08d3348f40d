"""Errors of a result, and which are accepted."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math

import pytest
import torch

from inductor_plugin.problem.tolerance import STEPPED, Tolerance, product_tolerance
from inductor_plugin.worker.child.product import compare, errors_of

STEPS = Tolerance(STEPPED, STEPPED)


def largest(result: torch.Tensor, reference: torch.Tensor) -> float | None:
    errors = errors_of(result, reference)
    return None if errors is None else errors.largest


def test_integers_may_fall_on_either_side_of_a_threshold_here_and_there() -> None:
    mask = torch.ones(400, dtype=torch.bool)
    other = mask.clone()
    other[0] = False
    assert largest(other, mask) == pytest.approx(0.05)
    assert largest(~mask, mask) == pytest.approx(1.0)
    steps = torch.arange(-127, 128, dtype=torch.int8)
    assert largest(steps, steps) == 0
    shuffled = steps[torch.randperm(len(steps), generator=torch.Generator().manual_seed(0))]
    assert (largest(shuffled, steps) or 0.0) > 1.0


def test_integers_may_not_differ_in_a_row() -> None:
    mask = torch.ones(256, 512, dtype=torch.bool)
    scattered, row, column = mask.clone(), mask.clone(), mask.clone()
    scattered.view(-1)[::219] = False
    row[3, :300] = False
    column[:100, 7] = False
    assert compare(scattered, mask, STEPS).reason == ""
    assert "59% of a row or a column differ" in compare(row, mask, STEPS).reason
    assert "39% of a row or a column differ" in compare(column, mask, STEPS).reason


def test_two_roundings_of_a_large_number_are_no_error() -> None:
    """With a scale for each row, some numbers are many times as large as the root mean square."""
    accepted = product_tolerance("bfloat16", "float8_e4m3fn", 128, tf32=False)
    reference = torch.ones(64, 64, dtype=torch.bfloat16)
    reference[5, 5] = 40.0
    next_to_it, far, beside = (reference.clone() for _ in range(3))
    next_to_it[5, 5] = 40.25
    far[5, 5] = 41.0
    beside[7, 7] = 1.25
    assert compare(next_to_it, reference, accepted).reason == ""
    assert compare(next_to_it, reference, accepted).error == pytest.approx(0.25 / 1.18, rel=0.01)
    assert "error 0.583" in compare(far, reference, accepted).reason
    assert "accepted is 0.0645" in compare(beside, reference, accepted).reason
    exact = Tolerance(accepted.largest, accepted.spread)
    assert compare(next_to_it, reference, exact).reason


def test_the_error_is_relative_to_the_reference() -> None:
    reference = torch.tensor([3.0, 4.0, 5.0])
    scale = math.sqrt(50 / 3)
    assert largest(reference, reference) == 0
    errors = errors_of(reference + torch.tensor([0, 0.5, 0]), reference)
    assert errors is not None
    assert errors.largest == pytest.approx(0.5 / scale)
    assert errors.spread == pytest.approx(0.5 / math.sqrt(3) / scale)
    infinite = torch.tensor([3.0, math.inf, 5.0])
    assert errors_of(infinite, reference) is None
    assert largest(reference, infinite) == 0
    assert errors_of(torch.tensor([3.0, math.nan, 5.0]), reference) is None
    assert errors_of(reference[:2], reference) is None
    assert largest(torch.zeros(3), torch.zeros(3)) == 0
    big = torch.tensor([2**30 + 1, 2**30])
    assert largest(big, big - 1) != 0


NARROW = [getattr(torch, n) for n in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, n)]
SMALL_K, LARGE_K = 256, 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, *NARROW])
@pytest.mark.parametrize("reduction", [SMALL_K, LARGE_K])
def test_wrong_factors_are_refused_and_honest_roundings_accepted(
    dtype: torch.dtype, reduction: int
) -> None:
    """An error of 1 %, of 10 % with 8 bits, a bias as large as the product, half of the numbers zero."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(256, 256, generator=generator, dtype=torch.float64)
    name = str(dtype).removeprefix("torch.")
    accepted = product_tolerance(name, "bfloat16", reduction, tf32=False)
    reference = exact.to(dtype)
    noise = 1 + 2.0**-26 * reduction**0.5 * torch.randn(exact.shape, generator=generator)
    twice = (exact * noise).to(torch.bfloat16 if dtype.itemsize == 1 else torch.float32)
    assert compare((exact * noise).to(dtype), reference, accepted).reason == ""
    assert compare(twice.to(dtype), reference, accepted).reason == ""  # rounded twice
    factor = 1.1 if dtype.itemsize == 1 else 1.01
    bias = torch.randn(256, generator=generator)
    zeroed = torch.where(exact.abs() < 0.67, 0.0, exact)
    for wrong in (exact * factor, exact / factor, exact + bias, zeroed):
        assert compare(wrong.to(dtype), reference, accepted).reason
