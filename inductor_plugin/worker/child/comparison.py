"""Errors of a kernel's output against the library kernel's: of all numbers, of each row, column and batch, and of infinities.

A kernel that is wrong in a single row or column, or that forgets a small bias, hides in the errors of all numbers. So
the errors of each line are looked at, too: their root mean square, and their mean, which roundings bring close to zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.problem.tolerance import Tolerance

_DIFFERING = 0.25
"""Share of a row or a column of integers that may differ: thresholds are crossed here and there, not in a row."""
_FEW = 4
_SHORTEST = 64
"""Numbers of a line below which its root mean square is that of a few, and says little."""
_DEVIATIONS = 6.0
"""The mean of n random errors is within 6 / sqrt(n) of their root mean square: of 1e9 lines, one is beyond."""
_FLUCTUATION = 3.0
"""The root mean square of n random errors is within 1 + 3 / sqrt(n) of its expectation: 4 standard deviations of a
normal error's, sqrt(1 / 2n)."""
_LEAST_UNIT = 2.0**-12
"""Least size of a number's scale, in units of the root mean square of all numbers."""
_TURNS = 3
_SQUARED = (1e-12, 1e12)
"""Largest numbers between which squares are in the range of float32."""
_FEW_LOST, _MOST_LOST = 0.01, 0.5
"""Share of infinite numbers that may be finite, and of finite ones that may not be: where a library kernel adds parts of a
sum in float16, up to 30 % of what it makes infinite is not (seen with 4 parts of 2,048 terms)."""


@dataclass(frozen=True)
class Errors:
    """Errors relative to the root mean square of the reference; of integers not relative.

    Attributes:
        largest: Of any number; of integers the root mean square.
        spread: Root mean square.
        beyond: Of any number, beyond what its roundings explain; relative to the scale of its row and column where that
            is larger.
        line: Largest root mean square of a row, a column, a batch or a channel, relative to their scales; beyond what so
            few numbers explain.
        drift: Largest mean of such a line, beyond what random errors explain.
        differing: Largest share of a row or a column that differs; of integers only.
    """

    largest: float = 0.0
    spread: float = 0.0
    beyond: float = 0.0
    line: float = 0.0
    drift: float = 0.0
    differing: float = 0.0


def compare(result: torch.Tensor, reference: torch.Tensor, accepted: Tolerance) -> CheckResult:
    """Return whether a result agrees with the reference; the reason says how not."""
    errors = errors_of(result, reference, accepted.rounding, own_units=accepted.own_units)
    if errors is None:
        return CheckResult(
            None, "NaN or infinite where the library kernel has a number, or another shape"
        )
    unit = "of the reference's root mean square"
    checks = (
        (errors.beyond, accepted.largest, f"error {errors.beyond:.3g} {unit}"),
        (
            errors.spread,
            accepted.spread,
            f"error {errors.spread:.3g} {unit}, as the root mean square of all numbers",
        ),
        (
            errors.line,
            accepted.spread,
            f"error {errors.line:.3g} {unit}, as the root mean square of a row, a column or a batch",
        ),
        (
            errors.drift,
            accepted.drift,
            f"error {errors.drift:.3g} {unit}, as the mean of a row, a column or a batch",
        ),
    )
    for error, limit, words in checks:
        if error > limit:
            return CheckResult(errors.largest, f"{words}; accepted is {limit:.3g}")
    if errors.differing > _DIFFERING:
        return CheckResult(
            errors.largest,
            f"{errors.differing:.0%} of a row or a column differ, accepted are {_DIFFERING:.0%}",
        )
    return CheckResult(errors.largest)


def errors_of(
    result: torch.Tensor,
    reference: torch.Tensor,
    rounding: float = 0.0,
    *,
    own_units: bool = False,
) -> Errors | None:
    """Return the errors of a result.

    Elements where the reference is not finite are not compared.

    Args:
        result: The result.
        reference: What it should be.
        rounding: As in `Tolerance`.
        own_units: As in `Tolerance`.

    Returns:
        None if the result has another shape, or is not finite where the reference is.
    """
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return None
    if reference.numel() == 0:
        return Errors()
    expected, got = comparable(reference), comparable(result)
    compared = _Compared.of(expected)
    if compared.share == 0.0:
        return Errors()
    difference = compared.only(got - expected)
    if not _all_finite(difference):
        return None
    expected = compared.only(expected)
    part = compared.share**0.5
    spread, scale = rms(difference) / part, rms(expected) / part
    divisor = scale if scale > 0 else 1.0
    if whole(reference):
        relative = spread / divisor
        return Errors(relative, relative, relative, differing=_worst_share(difference != 0))
    largest = _largest(difference) / divisor
    beyond = line = drift = 0.0
    if largest:
        units, errors = expected / divisor, difference.div_(divisor)
        product, size = _scales(units, compared)
        # In place: memory for another matrix takes longer than what is computed in it.
        excess = errors.abs().add_(units.abs_(), alpha=-rounding).div_(size)
        beyond = float(excess.max().item())
        line, drift = _worst_line(errors.div_(product if own_units else size), compared)
    errors = Errors(largest, spread / divisor, max(0.0, beyond), line, drift)
    return errors if math.isfinite(errors.largest) and math.isfinite(errors.spread) else None


@dataclass(frozen=True)
class _Compared:
    """Which numbers are compared: those that are finite in the reference; ``finite`` is None if all are."""

    shape: torch.Size
    finite: torch.Tensor | None

    @classmethod
    def of(cls, expected: torch.Tensor) -> _Compared:
        # A mask of 1e6 numbers takes 1.1 ms, and so does each sum over it; their extremes 0.1 ms.
        return cls(expected.shape, None if _all_finite(expected) else torch.isfinite(expected))

    @property
    def share(self) -> float:
        """The share of all numbers."""
        if self.finite is None:
            return 1.0
        return int(torch.count_nonzero(self.finite).item()) / self.finite.numel()

    def only(self, values: torch.Tensor) -> torch.Tensor:
        """Return values with zeros in place of what is not compared."""
        return values if self.finite is None else torch.where(self.finite, values, 0.0)

    def count(self, dims: tuple[int, ...], like: torch.Tensor, *, keepdim: bool) -> torch.Tensor:
        """Return how many numbers of each line are compared; a single number if it is the same for all."""
        if self.finite is None:
            return like.new_tensor(math.prod(self.shape[dim] for dim in dims))
        return self._ones.sum(dims, keepdim).to(like.dtype)

    @functools.cached_property
    def _ones(self) -> torch.Tensor:
        assert self.finite is not None
        return self.finite.float()  # its sums take a tenth of those of truth values


def _all_finite(values: torch.Tensor) -> bool:
    return math.isfinite(_largest(values))


def saturation(result: torch.Tensor, reference: torch.Tensor) -> str:
    """Return what is wrong with a product of which some numbers are infinite, empty if nothing is.

    A training loop finds out by them that its gradients have overflowed. Partial sums may overflow where their total
    does not, in either kernel, so that only most of the numbers have to agree.
    """
    expected, got = comparable(reference), comparable(result)
    infinite, below = torch.isinf(expected), expected == -math.inf
    finite = torch.isfinite(expected)
    return _mostly(infinite & torch.isfinite(got), infinite, "finite", "infinite") or (
        _mostly(infinite & torch.isnan(got), infinite, "NaN", "infinite")
        or _mostly(below & (got == math.inf), below, "inf", "-inf")
        or _mostly(finite & ~torch.isfinite(got), finite, "not finite", "numbers")
    )


def lost(result: torch.Tensor, reference: torch.Tensor) -> str:
    """Return what is wrong with an output of large products, empty if nothing is.

    Only whether there is a number is compared. With e^x / (1 + e^x) as the user wrote it, one of 2,000 products is so
    close to 88.72 that its rounding to bfloat16 decides.
    """
    expected, got = comparable(reference), comparable(result)
    moderate = expected.abs() < torch.finfo(reference.dtype).max ** 0.5  # False for NaN
    lacking = moderate & ~torch.isfinite(got)
    return _mostly(lacking, moderate, "NaN or infinite", "numbers", most=_FEW_LOST)


def _mostly(
    differs: torch.Tensor,
    among: torch.Tensor,
    words: str,
    expected: str,
    *,
    most: float = _MOST_LOST,
) -> str:
    count, total = int(differs.sum().item()), int(among.sum().item())
    wrong = count > max(_FEW, most * total)
    what = f"{count} of {total} numbers are {words} where the library kernel's are {expected}"
    return what if wrong else ""


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a type whose differences are exact enough; complex numbers as pairs in its last dimension."""
    if tensor.dtype.is_complex:
        pairs = torch.view_as_real(tensor)
        tensor = pairs.flatten(-2) if pairs.dim() > 1 else pairs
    narrow = tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 4
    return tensor.to(torch.float32 if narrow else torch.float64)


def whole(tensor: torch.Tensor) -> bool:
    """Return True for integers and truth values."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def rms(values: torch.Tensor) -> float:
    """Return the root mean square of finite numbers."""
    largest = _largest(values)
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    least, most = _SQUARED
    # In units of the largest: the square of 1e-23 is none in float32, that of 1e20 infinite.
    unit = 1.0 if least < largest < most else largest
    total = _norm(values if unit == 1.0 else values / unit, tuple(range(values.dim()))).item()
    return unit * total / values.numel() ** 0.5


def _norm(values: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Return the root of the sum of squares, without memory for the squares.

    Of many dimensions the last is summed first, the others in float64: a sum of 3e7 squares in float32 is 1 % wrong.
    """
    *others, last = sorted(dim % values.dim() for dim in dims) if values.dim() else [0]
    linalg: Any = torch.linalg  # typed partly
    lines: torch.Tensor = linalg.vector_norm(values, dim=last, keepdim=bool(others))
    if not others:
        return lines
    return lines.double().square().sum((*others, last)).sqrt().to(values.dtype)


def _largest(values: torch.Tensor) -> float:
    """Return the largest absolute value, NaN if any number is."""
    low, high = torch.aminmax(values)  # both NaN then
    return max(abs(low.item()), abs(high.item()))


def _scales(units: torch.Tensor, compared: _Compared) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the errors of lines are relative to in a product, and in what an epilogue has computed of it.

    A row or a column may have a scale of its own: of a quantized operand, of a frozen weight's outliers. Roundings of
    operands, of sums and of the result are as large as both scales make the number. They are found by dividing rows
    and columns in turns by their root mean square (Sinkhorn and Knopp, 1967), if they are long enough to tell it.
    After an epilogue a small number may be the difference of large ones, so that errors are relative to at least the
    root mean square of all numbers.
    """
    one = torch.ones((), dtype=units.dtype, device=units.device)
    if units.dim() < 2:
        return one, one
    squares = units.square()

    def mean(total: torch.Tensor, dim: int) -> torch.Tensor:
        count = compared.count((dim,), units, keepdim=True)
        means = total / count.clamp(min=1.0)
        return torch.where(count < _SHORTEST, one, means.clamp(min=_LEAST_UNIT**2))

    rows = columns = squares.new_ones((*squares.shape[:-1], 1))
    for _ in range(_TURNS):
        columns = mean(rows.reciprocal().mT @ squares, -2)
        rows = mean(squares @ columns.reciprocal().mT, -1)
    product = (rows.sqrt() * columns.sqrt()).clamp_(min=_LEAST_UNIT)
    size = product.clamp(min=1.0)
    for dim in (-1, -2):
        count = compared.count((dim,), units, keepdim=True).clamp(min=1.0)
        size.clamp_(min=(squares.sum(dim, keepdim=True) / count).sqrt())
    return product, size


def _worst_line(errors: torch.Tensor, compared: _Compared) -> tuple[float, float]:
    """Return the largest root mean square and the largest mean of a line's errors."""
    worst, drift = 0.0, 0.0
    for dims in _lines(errors.shape):
        count = compared.count(dims, errors, keepdim=False).clamp(min=1)
        spread = _norm(errors, dims) / count.sqrt()
        mean = (errors.sum(dims) / count).abs() - _DEVIATIONS * spread / count.sqrt()
        spread = spread / (1 + _FLUCTUATION / count.sqrt())
        enough = (count >= _SHORTEST).expand_as(spread)
        if bool(enough.any()):
            worst = max(worst, float(spread[enough].max().item()))
            drift = max(drift, float(mean[enough].max().item()))
    return worst, drift


def _lines(shape: torch.Size) -> Iterator[tuple[int, ...]]:
    """Return the dimensions to reduce: for each row and column, and for each index of any dimension."""
    dims = range(len(shape))
    chosen = {(dim,) for dim in dims[-2:] if len(shape) > 1}
    chosen |= {tuple(other for other in dims if other != dim) for dim in dims if len(shape) > 1}
    for each in sorted(chosen):
        if math.prod(shape[dim] for dim in each) >= _SHORTEST:
            yield each


def _worst_share(differs: torch.Tensor) -> float:
    """Return the largest share of a row or a column that differs, where that is more than a few elements."""
    if differs.dim() < 2 or not bool(differs.any()):
        return 0.0
    worst = 0.0
    for dim in (-1, -2):
        counts = differs.sum(dim)
        if int(counts.max()) > _FEW:
            worst = max(worst, float(counts.max()) / differs.size(dim))
    return worst
