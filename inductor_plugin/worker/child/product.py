"""Compares a candidate for a product with the library kernel.

Each kernel runs at least four times for it: on random operands; on operands that are large, with NaN in some elements
and in the gaps between those that are part of the product (`stress`); on small ones; and again on the first operands
after the last sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.problem import dtype_name
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.worker.child.comparison import compare, invents, lost, saturation
from inductor_plugin.worker.child.degeneracy import degeneracy_of
from inductor_plugin.worker.child.magnitude import parts, rms, share, whole
from inductor_plugin.worker.child.stress import (
    EXPONENTS,
    OVERFLOWING,
    SMALL,
    Stress,
    borders,
    fill_gaps,
    limited,
    plain,
    sites,
)

Tensors = MutableMapping[TensorSpec, torch.Tensor]
Outputs = tuple[torch.Tensor, Mapping[str, torch.Tensor]]
Run = Callable[[Stress], Outputs]
"""Runs a kernel once on changed operands and returns its output, and what else it writes by name."""

_SPOILED = 0.5
"""Share of an output that planted NaN may spoil: the rest still shows what must not be read."""
_OVERFLOWN = (0.001, 0.6)
"""Shares of an output between which the infinite numbers of a change tell whether a kernel has them, too."""
_SHARE = 4
"""Power of two by which a product and what is added to it differ, once in each direction."""
_NORMAL = 4.0
"""Root mean square of an output of small operands, in units of the smallest normal number of its type."""


@dataclass(frozen=True)
class Change:
    """A change of operands, and the library kernel's outputs on them.

    Attributes:
        stress: The change.
        output: The output.
        others: What else the kernel writes, by name.
        numbers: False if nothing but infinities and NaN are compared.
    """

    stress: Stress
    output: torch.Tensor
    others: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    numbers: bool = True

    @classmethod
    def of(cls, stress: Stress, outputs: Outputs, *, numbers: bool = True) -> Change:
        """Keep copies of outputs."""
        output, others = outputs
        kept = {name: other.clone() for name, other in others.items()} if numbers else {}
        return cls(stress, output.clone(), kept, numbers)


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
        self._added = check.added
        self._degeneracy = ""

    @property
    def known(self) -> bool:
        """Whether there is a reference."""
        return self._reference is not None

    @property
    def reference(self) -> torch.Tensor:
        """The library kernel's output on the operands as they are."""
        assert self._reference is not None
        return self._reference

    @property
    def degeneracy(self) -> str:
        """Why a wrong kernel may give the reference's numbers, empty if it gives others."""
        return self._degeneracy

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
        self._degeneracy = degeneracy_of(self._reference, inputs, tensors)
        usable = _finite(self._reference)
        self._gaps = fill_gaps(inputs, tensors)
        stress = self._largest(usable, run)
        if stress is None and self._gaps:  # it reads the gaps, which are numbers from now on
            self._gaps = False
            fill_gaps(inputs, tensors, 0)
            stress = self._largest(usable, run)
        if stress is None:
            return
        self._changes = list(self._planted(stress, usable, run))
        if self._check.large_values and not whole(self._reference):
            self._changes += [*self._small(run), *self._overflowing(stress.exponent, run)]
        elif not self._check.large_values:
            self._changes += self._steep(run)
        if len({change.stress.exponent for change in self._changes if change.numbers}) < 2:
            # What a kernel keeps of an operand for its address shows by other numbers there.
            changed = Stress(renewed=True)
            self._changes.append(Change.of(changed, run(changed)))

    def _largest(self, usable: float, run: Run) -> Stress | None:
        """Return the change to the largest operands of which the library kernel's output is finite; None if there is none."""
        if not self._gaps and not self._check.large_values:
            return Stress()
        exponents = EXPONENTS if self._check.large_values else (0,)
        tried = (self._stress(exponent) for exponent in exponents)
        return next((stress for stress in tried if _finite(run(stress)[0]) >= usable), None)

    def _stress(self, exponent: int) -> Stress:
        """Return a change of all operands.

        Those that are added are scaled as the product is, but are less than it in large operands and more in small ones:
        where both are as large, 1 % of one is 0.7 % of the sum.
        """
        share = -_SHARE if exponent >= 0 else _SHARE
        added = exponent * self._check.factors + (share if self._check.large_values else 0)
        own = {
            spec.seed: limited(spec.dtype, added, self.amplitude(spec))
            for spec in self._inputs
            if spec.seed in self._added
        }
        return Stress(exponent, added=tuple(own.items()))

    def _small(self, run: Run) -> Iterator[Change]:
        """Yield operands that are so small that a kernel must not take them for zeros."""
        for exponent in SMALL:
            stress = self._stress(exponent)
            outputs = run(stress)
            normal = torch.finfo(outputs[0].dtype).smallest_normal
            if outputs[0].numel() and _size(outputs[0]) >= _NORMAL * normal:
                yield Change.of(stress, outputs)
                return

    def _overflowing(self, largest: int, run: Run) -> Iterator[Change]:
        """Yield operands with which some numbers of the output are infinite, in float16."""
        for exponent in OVERFLOWING if self.reference.dtype == torch.float16 else ():
            if exponent <= largest:
                continue
            stress = self._stress(exponent)
            outputs = run(stress)
            least, most = _OVERFLOWN
            if least <= share(outputs[0], torch.isinf) <= most:
                yield Change.of(stress, outputs, numbers=False)
                return

    def _steep(self, run: Run) -> Iterator[Change]:
        """Yield operands with which an epilogue's exp overflows: products of some hundreds.

        Two kernels that round such a product differently have other numbers, but both have numbers. Integers are
        compared: a kernel without a clamp wraps.
        """
        stress = self._stress(self._check.steep)
        yield Change.of(stress, run(stress), numbers=whole(self.reference))

    def _planted(self, stress: Stress, usable: float, run: Run) -> Iterator[Change]:
        """Plant NaN, and yield the changes with the library kernel's outputs.

        Where NaN leave too few numbers to compare (a single row), large values are a change of their own. None are
        planted where the library kernel hides them: its ReLU may, and torch's does not.
        """
        floating = not whole(self.reference)
        plantable = [spec for spec in self._inputs if spec.seed not in self._check.unplanted]
        places = sites(plantable, self._added) if floating else ()
        further = borders(plantable, self._added) if floating else ()

        def tried(chosen: tuple[tuple[int, int], ...], most: float) -> Change | None:
            how = replace(stress, planted=chosen)
            outputs = run(how)
            spoiled = usable - _finite(outputs[0])
            unread = all(seed in self._added for seed, _ in chosen)
            shows = spoiled <= most and (spoiled > 0 or unread)
            return Change.of(how, outputs) if shows else None

        together = tried(places + further, _SPOILED) if further else None
        if together is None and places:
            together = tried(places, _SPOILED)
        if together is None and len(places) > 1:
            few = tuple(place for place in places if tried((place,), _SPOILED) is not None)
            together = tried(few, _SPOILED) if few else None
        if together is not None:
            yield together
        else:  # at other addresses at least
            yield Change.of(stress, run(stress))
        rest = () if together is None else together.stress.planted
        for place in places:
            alone = tried((place,), 1.0) if place not in rest else None
            if alone is not None:
                yield alone

    def judge(self, result: torch.Tensor, others: Mapping[str, torch.Tensor]) -> CheckResult:
        """Return whether the output on the operands as they are is right, and what else is written by the same name."""
        return self._compared((result, others), (self.reference, self._others))

    def _compared(self, outputs: Outputs, expected: Outputs) -> CheckResult:
        accepted = self._check.tolerance
        verdict = compare(outputs[0], expected[0], accepted)
        for name in expected[1].keys() & outputs[1].keys():
            if verdict.reason:
                break
            other = expected[1][name]
            tolerance = accepted.of_type(dtype_name(other.dtype))
            also = compare(outputs[1][name], other, tolerance)
            if also.reason:
                verdict = replace(also, reason=f"{also.reason} (in its output {name})")
        return verdict

    def judge_changed(
        self, result: torch.Tensor, others: Mapping[str, torch.Tensor], change: Change
    ) -> CheckResult:
        """Return whether the outputs on changed operands are right."""
        stress = change.stress
        if not change.numbers:
            differing = saturation if self._check.large_values else lost
            verdict = CheckResult(None, differing(result, change.output))
        else:
            verdict = self._compared((result, others), (change.output, change.others))
        if verdict.reason:
            scale = f"operands times 2^{stress.exponent}" if stress.exponent else ""
            nan = "NaN in some operands" if stress.planted else ""
            how = ", ".join(filter(None, (nan, scale, "other addresses")))
            return replace(verdict, reason=f"{verdict.reason} (with {how})")
        if not change.numbers:
            return verdict
        if invents(result, change.output):
            return CheckResult(
                None, "a number where the library kernel has NaN, from an operand that is NaN"
            )
        return verdict


def _size(tensor: torch.Tensor) -> float:
    """Return the root mean square of the numbers that are finite, the others as zeros."""
    sizes = ((part.numel(), rms(torch.nan_to_num(part, 0.0, 0.0, 0.0))) for part in parts(tensor))
    return (sum(count * size**2 for count, size in sizes) / tensor.numel()) ** 0.5


def _finite(tensor: torch.Tensor) -> float:
    """Return the share of numbers that are finite."""
    return share(tensor, torch.isfinite)
