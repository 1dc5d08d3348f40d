"""Errors of a kernel's output against the library kernel's: of all numbers, of each row, column and batch, and of infinities.

A kernel that is wrong in a single row or column, or that forgets a small bias, hides in the errors of all numbers. So
the errors of each line are looked at, too: their root mean square, and their mean, which roundings bring close to zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.worker.child.deviation import errors_of
from inductor_plugin.worker.child.magnitude import parts

_DIFFERING = 0.25
"""Share of a row or a column of integers that may differ: thresholds are crossed here and there, not in a row."""
_FEW = 4
_FEW_LOST, _MOST_LOST = 0.01, 0.5
"""Share of infinite numbers that may be finite, and of finite ones that may not be: where a library kernel adds parts of a
sum in float16, up to 30 % of what it makes infinite is not (seen with 4 parts of 2,048 terms)."""


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
    if errors.steps > accepted.steps:
        return CheckResult(
            errors.largest,
            f"an integer differs by {errors.steps:.0f}, accepted is {accepted.steps:.0f}",
        )
    if errors.differing > _DIFFERING:
        return CheckResult(
            errors.largest,
            f"{errors.differing:.0%} of a row or a column differ, accepted are {_DIFFERING:.0%}",
        )
    return CheckResult(errors.largest)


def saturation(result: torch.Tensor, reference: torch.Tensor) -> str:
    """Return what is wrong with a product of which some numbers are infinite, empty if nothing is.

    A training loop finds out by them that its gradients have overflowed. Partial sums may overflow where their total
    does not, in either kernel, so that only most of the numbers have to agree.
    """
    infinite, positive, missing, finite = (
        _Tally("finite", "infinite"),
        _Tally("inf", "-inf"),
        _Tally("NaN", "infinite"),
        _Tally("not finite", "numbers"),
    )
    for got, expected in _pairs(result, reference):
        is_infinite, below = torch.isinf(expected), expected == -math.inf
        is_finite = torch.isfinite(expected)
        infinite.add(is_infinite & torch.isfinite(got), is_infinite)
        missing.add(is_infinite & torch.isnan(got), is_infinite)
        positive.add(below & (got == math.inf), below)
        finite.add(is_finite & ~torch.isfinite(got), is_finite)
    return next(filter(None, (each.words() for each in (infinite, missing, positive, finite))), "")


def lost(result: torch.Tensor, reference: torch.Tensor) -> str:
    """Return what is wrong with an output of large products, empty if nothing is.

    Only whether there is a number is compared. With e^x / (1 + e^x) as the user wrote it, one of 2,000 products is so
    close to 88.72 that its rounding to bfloat16 decides.
    """
    most = torch.finfo(reference.dtype).max ** 0.5
    lacking = _Tally("NaN or infinite", "numbers")
    for got, expected in _pairs(result, reference):
        moderate = expected.abs() < most  # False for NaN
        lacking.add(moderate & ~torch.isfinite(got), moderate)
    return lacking.words(_FEW_LOST)


def invents(result: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return True if there is a number where the reference has NaN."""
    pairs = _pairs(result, reference)
    return any(bool((torch.isnan(want) & torch.isfinite(got)).any()) for got, want in pairs)


def _pairs(
    result: torch.Tensor, reference: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield parts of both, comparable."""
    return zip(parts(result), parts(reference), strict=True)


@dataclass
class _Tally:
    """How many numbers are otherwise than they should be.

    Attributes:
        are: What they are.
        should: What the library kernel's are.
        wrong: How many are so.
        total: Among how many.
    """

    are: str
    should: str
    wrong: int = 0
    total: int = 0

    def add(self, differs: torch.Tensor, among: torch.Tensor) -> None:
        """Count those of a part."""
        self.wrong += int(differs.sum().item())
        self.total += int(among.sum().item())

    def words(self, most: float = _MOST_LOST) -> str:
        """Return what is wrong; empty if no more than a few are, or a share of ``most``."""
        what = f"{self.wrong} of {self.total} numbers are {self.are} where the library kernel's are {self.should}"
        return what if self.wrong > max(_FEW, most * self.total) else ""
