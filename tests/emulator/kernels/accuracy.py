"""How far a kernel's output is from float64, in units of what the product accepts of a kernel on a GPU."""

from __future__ import annotations

import torch

from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.worker.child.deviation import errors_of


def share(got: torch.Tensor, wanted: torch.Tensor, accepted: Tolerance) -> float:
    """Return the largest part of an accepted error that an output has; more than 1 is wrong.

    Args:
        got: The output.
        wanted: The same by float64; where it is NaN nothing is compared. Of integers, the integers.
        accepted: The product's own tolerance, `problem.tolerance`.
    """
    if not got.dtype.is_floating_point:
        wanted = wanted.round().to(got.dtype)
    else:
        got, wanted = got.double(), wanted.double()
    errors = errors_of(got, wanted, accepted.rounding, own_units=accepted.own_units)
    if errors is None:
        return torch.inf
    pairs = (
        (errors.beyond, accepted.largest),
        (errors.spread, accepted.spread),
        (errors.line, accepted.spread),
        (errors.drift, accepted.drift),
    )
    return max(_part(error, limit) for error, limit in pairs)


def _part(error: float, limit: float) -> float:
    if error <= 0:
        return 0.0
    return error / limit if limit else torch.inf
