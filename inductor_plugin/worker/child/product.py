"""Compares a candidate for a product with the library kernel.

Each kernel runs at least three times for it: on random operands; on operands that are large, with NaN in some elements
and in the gaps between those that are part of the product (`stress`); and again on the first operands after the last sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

import torch

from inductor_plugin.attention.check import CheckResult
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.worker.child.stress import EXPONENTS, Stress, fill_gaps, plain, sites

Tensors = MutableMapping[TensorSpec, torch.Tensor]
Run = Callable[[Stress], torch.Tensor]
"""Runs a kernel once on changed operands and returns its output."""

_SPOILED = 0.5
"""Share of an output that planted NaN may spoil: the rest still shows what must not be read."""
_LINE = 0.25
"""Share of a row or a column of integers that may differ: thresholds are crossed here and there, not in a row."""
_FEW = 4


@dataclass(frozen=True)
class Change:
    """A change of operands, and the library kernel's output on them."""

    stress: Stress
    output: torch.Tensor


class ProductVerifier:
    """The library kernel's outputs, and what the candidates of one problem are compared with."""

    def __init__(self, check: NumberCheck) -> None:
        """Compare as ``check`` says; there is no reference yet."""
        self._check = check
        self._reference: torch.Tensor | None = None
        self._others: dict[str, torch.Tensor] = {}
        self._changes: list[Change] = []
        self._inputs: tuple[TensorSpec, ...] = ()
        self._gaps = False
        self._amplitudes = dict(check.amplitudes)

    @property
    def known(self) -> bool:
        """Whether there is a reference."""
        return self._reference is not None

    @property
    def tells(self) -> bool:
        """Whether the reference has a number that a wrong kernel would miss: with a frozen weight of zeros it has none."""
        reference = self._reference
        if reference is None or reference.numel() == 0:
            return reference is not None
        sizes = _comparable(reference).abs()
        # Below the smallest normal number, rounding is as large as what it rounds.
        least = 1 if _whole(reference) else torch.finfo(reference.dtype).smallest_normal
        return bool((torch.isfinite(sizes) & (sizes >= least)).any())

    def changes(self, inputs: Sequence[TensorSpec]) -> Sequence[Change]:
        """Return the changes of operands on which a candidate is compared.

        None if it has a copy of an operand, repacked by the parent, where the library kernel reads the random one.
        """
        seeds = {spec.seed for spec in inputs if plain(spec)}
        read = {spec.seed for spec in self._inputs if plain(spec)}
        packed = {spec.seed for spec in inputs if spec.packing is not None and spec.file is None}
        return self._changes if read <= seeds and not read & packed else ()

    def amplitude(self, spec: TensorSpec) -> float:
        """Return the factor of an operand's random values."""
        return self._amplitudes.get(spec.seed, 1.0)

    def fill(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Fill the gaps of an operand that has just been built."""
        if self._gaps:
            fill_gaps(self._inputs, {spec: tensor})

    def take(
        self,
        result: torch.Tensor,
        others: Mapping[str, torch.Tensor],
        inputs: Sequence[TensorSpec],
        tensors: Tensors,
        run: Run,
    ) -> None:
        """Keep the library kernel's outputs.

        Args:
            result: Its output on the operands as they are.
            others: What else it writes, by name.
            inputs: Its operands.
            tensors: All operands that have been built.
            run: Runs it again.
        """
        self._reference, self._inputs = result.clone(), tuple(inputs)
        self._others = {name: other.clone() for name, other in others.items()}
        usable = _finite(self._reference)
        self._gaps = fill_gaps(inputs, tensors)
        exponent: int | None = 0
        if self._gaps or self._check.large_values:
            exponents = EXPONENTS if self._check.large_values else (0,)
            exponent = next((e for e in exponents if _finite(run(Stress(e))) >= usable), None)
        if (
            exponent is None
        ):  # it reads the gaps; those of operands that are built from now on are numbers
            self._gaps = False
            tensors.clear()
            return
        self._changes = list(self._planted(Stress(exponent), usable, run))

    def _planted(self, stress: Stress, usable: float, run: Run) -> Iterator[Change]:
        """Plant NaN, and yield the changes with the library kernel's outputs.

        Where NaN leave too few numbers to compare (a single row), large values are a change of their own. None are
        planted where the library kernel hides them: its ReLU may, and torch's does not.
        """
        floating = self._reference is not None and not _whole(self._reference)
        places = sites(self._inputs, self._amplitudes) if floating else ()

        def tried(chosen: tuple[tuple[int, int], ...], most: float) -> Change | None:
            how = replace(stress, planted=chosen)
            output = run(how)
            spoiled = usable - _finite(output)
            unread = all(seed in self._amplitudes for seed, _ in chosen)
            shows = spoiled <= most and (spoiled > 0 or unread)
            return Change(how, output.clone()) if shows else None

        together = tried(places, _SPOILED) if places else None
        if together is None and len(places) > 1:
            few = tuple(place for place in places if tried((place,), _SPOILED) is not None)
            together = tried(few, _SPOILED) if few else None
        if together is not None:
            yield together
        elif stress != Stress():
            yield Change(stress, run(stress).clone())
        rest = () if together is None else together.stress.planted
        for place in places:
            alone = tried((place,), 1.0) if place not in rest else None
            if alone is not None:
                yield alone

    def judge(self, result: torch.Tensor, others: Mapping[str, torch.Tensor]) -> CheckResult:
        """Return whether the output on the operands as they are is right, and what else is written by the same name."""
        assert self._reference is not None
        accepted = self._check.tolerance
        verdict = compare(result, self._reference, accepted)
        for name in self._others.keys() & others.keys():
            if verdict.reason:
                break
            expected = self._others[name]
            also = compare(
                others[name], expected, accepted.of_type(str(expected.dtype).removeprefix("torch."))
            )
            if also.reason:
                verdict = replace(also, reason=f"{also.reason} (in its output {name})")
        return verdict

    def judge_changed(self, result: torch.Tensor, change: Change) -> CheckResult:
        """Return whether the output on changed operands is right."""
        verdict = compare(result, change.output, self._check.tolerance)
        if verdict.reason:
            how = [
                *(["NaN in some operands"] if change.stress.planted else []),
                *(
                    [f"operands times {2**change.stress.exponent}"]
                    if change.stress.exponent
                    else []
                ),
                "other addresses",
            ]
            return replace(verdict, reason=f"{verdict.reason} (with {', '.join(how)})")
        hidden = _nan(change.output) & torch.isfinite(_comparable(result))
        if bool(hidden.any()):
            return CheckResult(
                None, "a number where the library kernel has NaN, from an operand that is NaN"
            )
        return verdict


@dataclass(frozen=True)
class Errors:
    """Errors relative to the root mean square of the reference; of integers not relative.

    Attributes:
        largest: Of any number; of integers the root mean square.
        spread: Root mean square.
        beyond: ``largest``, beyond what the roundings of each number explain.
        line: Largest share of a row or a column that differs; of integers only.
    """

    largest: float
    spread: float
    beyond: float
    line: float = 0.0


def compare(result: torch.Tensor, reference: torch.Tensor, accepted: Tolerance) -> CheckResult:
    """Return whether a result agrees with the reference; the reason says how not."""
    errors = errors_of(result, reference, accepted.rounding)
    if errors is None:
        return CheckResult(
            None, "NaN or infinite where the library kernel has a number, or another shape"
        )
    if errors.beyond > accepted.largest:
        return CheckResult(
            errors.largest,
            f"error {errors.beyond:.3g} of the reference's root mean square, accepted is {accepted.largest:.3g}",
        )
    if errors.spread > accepted.spread:
        return CheckResult(
            errors.largest,
            f"error {errors.spread:.3g} of the reference's root mean square, as the root mean square of all "
            f"numbers; accepted is {accepted.spread:.3g}",
        )
    if errors.line > _LINE:
        return CheckResult(
            errors.largest,
            f"{errors.line:.0%} of a row or a column differ, accepted are {_LINE:.0%}",
        )
    return CheckResult(errors.largest)


def errors_of(
    result: torch.Tensor, reference: torch.Tensor, rounding: float = 0.0
) -> Errors | None:
    """Return the errors of a result.

    Elements where the reference is not finite are not compared.

    Args:
        result: The result.
        reference: What it should be.
        rounding: As in `Tolerance`.

    Returns:
        None if the result has another shape, or is not finite where the reference is.
    """
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return None
    if reference.numel() == 0:
        return Errors(0.0, 0.0, 0.0)
    expected, got = _comparable(reference), _comparable(result)
    finite = torch.isfinite(expected)
    whole = _whole(reference)
    line = _worst_line(expected != got) if whole else 0.0
    if not bool(finite.all()):
        expected, got = expected[finite], got[finite]
    if expected.numel() == 0:
        return Errors(0.0, 0.0, 0.0)
    difference = got - expected
    spread, scale = _rms(difference), _rms(expected)
    divisor = scale if scale > 0 else 1.0
    if whole:
        return Errors(spread / divisor, spread / divisor, spread / divisor, line)
    absolute = difference.abs()
    largest = float(absolute.max().item())
    beyond = float((absolute - rounding * expected.abs()).max().item()) if rounding else largest
    errors = Errors(largest / divisor, spread / divisor, max(0.0, beyond / divisor))
    return errors if math.isfinite(errors.largest) and math.isfinite(errors.spread) else None


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a type whose differences are exact enough; complex numbers as pairs."""
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    narrow = tensor.dtype.is_floating_point and tensor.dtype.itemsize <= 4
    return tensor.to(torch.float32 if narrow else torch.float64)


def _whole(tensor: torch.Tensor) -> bool:
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def _nan(tensor: torch.Tensor) -> torch.Tensor:
    return torch.isnan(_comparable(tensor))


def _finite(tensor: torch.Tensor) -> float:
    """Return the share of numbers that are finite."""
    if tensor.numel() == 0:
        return 1.0
    return float(torch.isfinite(_comparable(tensor)).float().mean().item())


def _worst_line(differs: torch.Tensor) -> float:
    """Return the largest share of a row or a column that differs, where that is more than a few elements."""
    if differs.dim() < 2 or not bool(differs.any()):
        return 0.0
    worst = 0.0
    for dim in (-1, -2):
        counts = differs.sum(dim)
        if int(counts.max()) > _FEW:
            worst = max(worst, float(counts.max()) / differs.size(dim))
    return worst


def _rms(values: torch.Tensor) -> float:
    largest = float(values.abs().max().item())
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    # In units of the largest: the square of 1e-23 is none in float32, that of 1e20 infinite.
    return largest * float((values / largest).square().mean(dtype=torch.float64).sqrt().item())
