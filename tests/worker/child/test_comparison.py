"""Errors of a result, and which are accepted."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from inductor_plugin.problem.tolerance import STEPPED, Tolerance, product_tolerance
from inductor_plugin.worker.child.comparison import compare, lost, saturation
from inductor_plugin.worker.child.deviation import errors_of

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


def test_integers_beside_a_zero_point_may_differ_by_a_step_alone() -> None:
    """Of a root mean square of 128, a tenth is 13 steps."""
    wanted = torch.full((256, 512), 128, dtype=torch.uint8)
    near, far = wanted.clone(), wanted.clone()
    near.view(-1)[::219] += 1
    far.view(-1)[::219] += 2
    rounded = replace(STEPS, steps=1.0)
    assert compare(near, wanted, rounded).reason == ""
    assert compare(far, wanted, rounded).reason == "an integer differs by 2, accepted is 1"
    assert compare(far, wanted, STEPS).reason == ""


def test_two_roundings_of_a_large_number_are_no_error() -> None:
    """With a scale for each row, some numbers are many times as large as the root mean square."""
    accepted = product_tolerance("bfloat16", "float8_e4m3fn", 128, tf32=False)
    reference = torch.ones(64, 64, dtype=torch.bfloat16)
    reference[5, 5] = 40.0
    next_to_it, far, beside = (reference.clone() for _ in range(3))
    next_to_it[5, 5] = 40.25
    far[5, 5] = 43.0
    beside[7, 7] = 1.5
    assert compare(next_to_it, reference, accepted).reason == ""
    assert compare(next_to_it, reference, accepted).error == pytest.approx(0.25 / 1.18, rel=0.01)
    assert "accepted is 0.0645" in compare(far, reference, accepted).reason
    assert "accepted is 0.0645" in compare(beside, reference, accepted).reason


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


def test_an_error_in_a_single_line_is_seen() -> None:
    """1 % of a row, a column or a batch is far below the root mean square of all numbers' roundings."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(3, 400, 500, generator=generator, dtype=torch.float64)
    reference = exact.to(torch.bfloat16)
    accepted = product_tolerance("bfloat16", "bfloat16", 4096, tf32=False)
    assert compare(reference, reference, accepted).reason == ""
    for line in ((1, 7), (1, slice(None), 7), (2,)):
        wrong = exact.clone()
        wrong[line] *= 1.013
        assert (
            "of a row, a column or a batch" in compare(wrong.bfloat16(), reference, accepted).reason
        )
    few = exact.clone()
    few[0, 0, :40] *= 1.013  # of 40 numbers the roundings are as large
    assert compare(few.bfloat16(), reference, accepted).reason == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lines_with_scales_of_their_own_are_compared_with_their_own_numbers(
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(256, 384, generator=generator, dtype=torch.float64)
    exact *= torch.logspace(-2, 1, 256).unsqueeze(1) * torch.logspace(0, 1, 384)
    reference = exact.to(dtype)
    accepted = product_tolerance(
        str(dtype).removeprefix("torch."), "float8_e4m3fn", 512, tf32=False
    )
    noisy = exact * (1 + 2.0**-12 * torch.randn(exact.shape, generator=generator))
    assert compare(noisy.to(dtype), reference, accepted).reason == ""
    wrong = exact.clone()
    wrong[200] *= 1.02
    assert compare(wrong.to(dtype), reference, accepted).reason


@pytest.mark.parametrize(("dtype", "bias"), [("float8_e4m3fn", 1 / 64), ("bfloat16", 1 / 256)])
def test_a_small_bias_shows_in_the_mean_of_its_column(dtype: str, bias: float) -> None:
    """A bias of the operands' size beside a product of 4,096 or of 65,536 terms."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(1024, 256, generator=generator)
    added = bias * torch.randn(256, generator=generator).sign()
    accepted = product_tolerance(dtype, "bfloat16", 4096, tf32=False)
    kind = getattr(torch, dtype)
    verdict = compare(exact.to(kind), (exact + added).to(kind), accepted)
    assert "as the mean of a row, a column or a batch" in verdict.reason
    nearly = (exact + added) * (1 + 1e-4 * torch.randn(exact.shape, generator=generator))
    assert compare(nearly.to(kind), (exact + added).to(kind), accepted).reason == ""


def test_products_of_one_term_may_be_those_of_truncated_operands() -> None:
    """TF32 keeps 10 bits; some GPUs round to it, some cut."""
    generator = torch.Generator().manual_seed(0)
    column, row = torch.randn(300, 1, generator=generator), torch.randn(1, 300, generator=generator)
    accepted = product_tolerance("float32", "float32", 1, tf32=True)
    cut = [(each.view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (column, row)]
    assert compare(cut[0] @ cut[1], column @ row, accepted).reason == ""
    assert compare(1.005 * cut[0] @ cut[1], column @ row, accepted).reason


def test_most_numbers_beyond_the_largest_are_infinite() -> None:
    """Parts of a sum that are added in float16 overflow where their total does not."""
    reference = torch.tensor([[math.inf, -math.inf, 3.0, 65504.0]] * 100, dtype=torch.float16)
    other_order = reference.clone()
    other_order[:40, 0], other_order[:40, 1], other_order[:40, 2] = 60000.0, math.nan, -math.inf
    assert saturation(reference, reference) == ""
    assert saturation(other_order, reference) == ""
    cut, turned, spoiled = reference.clamp(-60000, 60000), reference.abs(), reference.clone()
    spoiled[spoiled.isfinite()] = math.nan
    for wrong, words in (
        (cut, "200 of 200 numbers are finite where the library kernel's are infinite"),
        (turned, "100 of 100 numbers are inf where the library kernel's are -inf"),
        (torch.where(reference.isinf(), math.nan, reference), "200 of 200 numbers are NaN"),
        (spoiled, "200 of 200 numbers are not finite"),
    ):
        assert words in saturation(wrong, reference)


def test_moderate_numbers_stay_numbers() -> None:
    reference = torch.tensor([1.0, 200.0, 1e30, math.inf, math.nan])
    assert lost(torch.tensor([1.0, 150.0, math.inf, 3.0, 0.0]), reference) == ""
    reference = reference.repeat(200)
    for value in (math.nan, math.inf):
        wrong = reference.clone()
        wrong[1:20:5] = value
        assert lost(wrong, reference) == ""  # next to where an exp overflows
        wrong[1::5] = value
        assert lost(wrong, reference).startswith("200 of 400 numbers are NaN or infinite")


def test_a_column_that_is_small_is_compared_with_its_own_numbers() -> None:
    """A frozen weight may have columns that are hundreds of times as small as others."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(256, 128, generator=generator)
    exact[:, 64:] /= 300
    reference = exact.bfloat16()
    accepted = product_tolerance("bfloat16", "bfloat16", 256, tf32=False)
    linear = replace(accepted, own_units=True)
    missing = reference.clone()
    missing[:, 64:] = 0.0
    assert compare(missing, reference, linear).reason
    assert compare((exact * 1.0001).bfloat16(), reference, linear).reason == ""
    assert compare(missing, reference, accepted).reason == ""  # as after a sigmoid


@pytest.mark.parametrize("factor", [30, 1000])
def test_a_column_that_is_large_has_larger_errors(factor: int) -> None:
    """As of a frozen weight with outliers; truncated to TF32, and summed in another order."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(96, 512, generator=generator), torch.randn(512, 80, generator=generator)
    b[:, 7] *= factor
    cut = [(each.view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (a, b)]
    accepted = product_tolerance("float32", "float32", 512, tf32=True)
    for units in (False, True):
        tolerance = replace(accepted, own_units=units)
        assert compare(cut[0] @ cut[1], a @ b, tolerance).reason == ""
        wrong = (cut[0] @ cut[1]) * torch.where(torch.arange(80) == 7, 1.01, 1.0)
        assert compare(wrong, a @ b, tolerance).reason


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
