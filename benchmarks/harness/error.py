"""The error of a result."""

from __future__ import annotations

import math

import torch


def error_of(answer: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the root mean square of the difference, relative to that of the expected result.

    It is infinite for a result of another shape, or with values that are not finite.
    """
    if answer.shape != expected.shape:
        return math.inf
    wide = expected.double()
    difference = (answer.double() - wide).square().mean().sqrt()
    error = float(difference / wide.square().mean().sqrt())
    return error if math.isfinite(error) else math.inf
