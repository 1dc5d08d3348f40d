"""Errors of a result against its reference: of all numbers, and of each row, column and batch.

Both are read several times, part by part, each part in float32: a whole output in float32, with its errors and scales,
would take sixteen times the memory of the output itself. What is kept is a few numbers for each row and column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from inductor_plugin.worker.child.magnitude import (
    Place,
    all_finite,
    comparable,
    largest,
    norms,
    places,
    rms,
    whole,
)

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
        steps: Largest difference; of integers only.
    """

    largest: float = 0.0
    spread: float = 0.0
    beyond: float = 0.0
    line: float = 0.0
    drift: float = 0.0
    differing: float = 0.0
    steps: float = 0.0


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
    pair = _Pair(result, reference)
    if not pair.count:
        return Errors()
    total = pair.overall()
    if total is None:
        return None
    spread, scale, most = total
    divisor = scale if scale > 0 else 1.0
    if whole(reference):
        relative = spread / divisor
        return Errors(relative, relative, relative, differing=pair.worst_share(), steps=most)
    beyond = line = drift = 0.0
    if most:
        scales = _Scales.of(pair, divisor)
        sums = _Sums(pair)
        for part in pair.parts():
            units, errors = part.expected / divisor, part.difference.div(divisor)
            product, size = scales.at(part.place)
            # In place: memory for another matrix takes longer than what is computed in it.
            excess = errors.abs().add_(units.abs_(), alpha=-rounding).div_(size)
            beyond = max(beyond, float(excess.max().item()))
            sums.add(part.place, errors.div_(product if own_units else size))
        line, drift = sums.worst()
    errors = Errors(most / divisor, spread / divisor, beyond, line, drift)
    return errors if math.isfinite(errors.largest) and math.isfinite(errors.spread) else None


@dataclass(frozen=True)
class _Part:
    """A part of both: numbers that are not compared are zeros.

    Attributes:
        place: Where it is, in batches and rows.
        expected: The reference, [batches, rows, columns].
        difference: The result less the reference.
        finite: Which numbers are compared; None if all are.
    """

    place: Place
    expected: torch.Tensor
    difference: torch.Tensor
    finite: torch.Tensor | None


class _Pair:
    """A result and its reference, as matrices.

    Attributes:
        shape: Batches, rows and columns.
        dims: Sizes of all dimensions.
        count: How many numbers are compared.
        rows: How many of each row are, [batches, rows, 1].
        columns: How many of each column are, [batches, 1, columns].
    """

    def __init__(self, result: torch.Tensor, reference: torch.Tensor) -> None:
        self._result, self._reference = _matrices(result), _matrices(reference)
        pairs = 2 if reference.dtype.is_complex else 1
        batches, rows, columns = self._reference.shape
        self.shape = batches, rows, columns * pairs
        self.dims: tuple[int, ...] = ()
        if reference.dim():
            self.dims = (*reference.shape[:-1], reference.size(-1) * pairs)
        self._places = list(places((batches, rows, columns)))
        # A small pair has one part, which is not computed anew each time.
        self._only = self._part(self._places[0]) if len(self._places) == 1 else None
        first = torch.ones((), dtype=torch.float64, device=reference.device)
        self.rows = first.expand(batches, rows, 1) * self.shape[2]
        self.columns = first.expand(batches, 1, self.shape[2]) * rows
        for part in self.parts():
            if part.finite is not None:
                lost = (~part.finite).float()  # its sums take a tenth of those of truth values
                self.rows[part.place[:2]] -= lost.sum(-1, keepdim=True)
                self.columns[part.place[:1]] -= lost.sum(-2, keepdim=True)
        self.count = int(self.rows.sum().item())

    def parts(self) -> Iterator[_Part]:
        """Yield the parts of both."""
        if self._only is not None:
            yield self._only
            return
        for place in self._places:
            yield self._part(place)

    def _part(self, place: Place) -> _Part:
        expected = comparable(self._reference[place])
        finite = None if all_finite(expected) else torch.isfinite(expected)
        difference = comparable(self._result[place]) - expected
        if finite is not None:
            difference = torch.where(finite, difference, 0.0)
            expected = torch.where(finite, expected, 0.0)
        return _Part(place, expected, difference, finite)

    def overall(self) -> tuple[float, float, float] | None:
        """Return the root mean squares of errors and reference, and the largest error; None if any is not finite."""
        errors = scales = most = 0.0
        for part in self.parts():
            part_most = largest(part.difference)
            if not math.isfinite(part_most):
                return None
            most, size = max(most, part_most), part.expected.numel()
            errors += size * rms(part.difference) ** 2
            scales += size * rms(part.expected) ** 2
        return math.sqrt(errors / self.count), math.sqrt(scales / self.count), most

    def worst_share(self) -> float:
        """Return the largest share of a row or a column that differs, where that is more than a few elements."""
        if len(self.dims) < 2:
            return 0.0
        columns = torch.zeros_like(self.columns)
        most = 0.0
        for part in self.parts():
            differs = part.difference != 0
            most = max(most, float(differs.sum(-1).max().item()))
            columns[part.place[:1]] += differs.sum(-2, keepdim=True)
        pairs = (most, self.shape[2]), (float(columns.max().item()), self.shape[1])
        return max((count / size for count, size in pairs if count > _FEW), default=0.0)


@dataclass(frozen=True)
class _Scales:
    """What the errors of numbers are relative to in a product, and in what an epilogue has computed of it.

    A row or a column may have a scale of its own: of a quantized operand, of a frozen weight's outliers. Roundings of
    operands, of sums and of the result are as large as both scales make the number. They are found by dividing rows
    and columns in turns by their root mean square (Sinkhorn and Knopp, 1967), if they are long enough to tell it.
    After an epilogue a small number may be the difference of large ones, so that errors are relative to at least the
    root mean square of all numbers.

    Attributes:
        rows: Scale of each row, [batches, rows, 1].
        columns: Scale of each column, [batches, 1, columns].
        row_rms: Root mean square of each row.
        column_rms: Root mean square of each column.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    row_rms: torch.Tensor
    column_rms: torch.Tensor

    @classmethod
    def of(cls, pair: _Pair, divisor: float) -> _Scales:
        """Return the scales of a pair's reference, in units of ``divisor``."""
        dtype = next(pair.parts()).expected.dtype
        if len(pair.dims) < 2:
            unit = torch.ones((1, 1, 1), dtype=dtype, device=pair.rows.device)
            return cls(unit, unit, unit, unit)

        def squared(add: Callable[[Place, torch.Tensor], None]) -> None:
            for part in pair.parts():
                add(part.place, (part.expected / divisor).square_())

        rows = torch.ones_like(pair.rows, dtype=dtype)
        columns = torch.ones_like(pair.columns, dtype=dtype)
        row_sums, column_sums = torch.zeros_like(rows), torch.zeros_like(columns)

        def sum_rows(place: Place, squares: torch.Tensor) -> None:
            row_sums[place[:2]] = squares @ columns[place[:1]].reciprocal().mT

        def sum_columns(place: Place, squares: torch.Tensor) -> None:
            column_sums[place[:1]] += rows[place[:2]].reciprocal().mT @ squares

        def sum_both(place: Place, squares: torch.Tensor) -> None:
            sum_rows(place, squares)
            sum_columns(place, squares)

        squared(sum_both)
        row_rms = (row_sums / pair.rows.clamp(min=1)).sqrt().to(dtype)
        column_rms = (column_sums / pair.columns.clamp(min=1)).sqrt().to(dtype)
        for turn in range(_TURNS):
            if turn:
                column_sums.zero_()
                squared(sum_columns)
            columns = _means(column_sums, pair.columns)
            squared(sum_rows)
            rows = _means(row_sums, pair.rows)
        return cls(rows.sqrt(), columns.sqrt(), row_rms, column_rms)

    def at(self, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scales of the numbers of a part, in a product and after an epilogue."""
        rows, columns = self.rows[place[:2]], self.columns[place[:1]]
        product = (rows * columns).clamp_(min=_LEAST_UNIT)
        size = product.clamp(min=1.0)
        size.clamp_(min=self.row_rms[place[:2]]).clamp_(min=self.column_rms[place[:1]])
        return product, size


def _means(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return the mean squares of lines, 1 of those that are too short to tell."""
    means = (total / count.clamp(min=1)).clamp(min=_LEAST_UNIT**2)
    return torch.where(count < _SHORTEST, 1.0, means).to(total.dtype)


class _Sums:
    """Sums and sums of squares of the errors of each row and column."""

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair
        self._rows = torch.zeros_like(pair.rows), torch.zeros_like(pair.rows)
        self._columns = torch.zeros_like(pair.columns), torch.zeros_like(pair.columns)

    def add(self, place: Place, errors: torch.Tensor) -> None:
        """Add the errors of a part."""
        for lines, where, dim in ((self._rows, place[:2], -1), (self._columns, place[:1], -2)):
            lines[0][where] += errors.sum(dim, keepdim=True)
            lines[1][where] += norms(errors, dim).double().square()

    def worst(self) -> tuple[float, float]:
        """Return the largest root mean square and the largest mean of a line's errors."""
        worst = drift = 0.0
        dims = self._pair.dims
        for reduced in _lines(dims):
            along = len(dims) - 1 in reduced
            counted = self._pair.rows if along else self._pair.columns
            lines = self._rows if along else self._columns
            # Each row, or each column, is summed already.
            kept = (*dims[:-1], 1) if along else (*dims[:-2], 1, dims[-1])
            total, squares, count = (
                values.reshape(kept).sum(reduced) for values in (*lines, counted)
            )
            count = count.clamp(min=1)
            spread = (squares / count).sqrt()
            mean = (total / count).abs() - _DEVIATIONS * spread / count.sqrt()
            spread = spread / (1 + _FLUCTUATION / count.sqrt())
            enough = count >= _SHORTEST
            if bool(enough.any()):
                worst = max(worst, float(spread[enough].max().item()))
                drift = max(drift, float(mean[enough].max().item()))
        return worst, drift


def _lines(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Return the dimensions to reduce: for each row and column, and for each index of any dimension."""
    dims = range(len(shape))
    chosen = {(dim,) for dim in dims[-2:] if len(shape) > 1}
    chosen |= {tuple(other for other in dims if other != dim) for dim in dims if len(shape) > 1}
    for each in sorted(chosen):
        if math.prod(shape[dim] for dim in each) >= _SHORTEST:
            yield each


def _matrices(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as [batches, rows, columns]."""
    if tensor.dim() < 3:
        return tensor[(None,) * (3 - tensor.dim())]
    return tensor.flatten(0, -3)
