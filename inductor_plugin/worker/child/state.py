"""What the benchmark worker keeps of a problem between its jobs: operands, their checksums, the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child.attention import AttentionVerifier
from inductor_plugin.worker.child.operands import build, checksum
from inductor_plugin.worker.child.product import ProductVerifier
from inductor_plugin.worker.jobs import CHANGED


@dataclass(frozen=True)
class Accepted:
    """Outputs that were found right: most kernels give the same numbers in each call, which are compared once.

    Attributes:
        outputs: Copies of them, by name.
        verdict: What was found.
    """

    outputs: Mapping[str, torch.Tensor]
    verdict: CheckResult

    @classmethod
    def of(cls, outputs: Mapping[str, torch.Tensor], verdict: CheckResult) -> Accepted:
        """Keep copies of outputs."""
        return cls({name: tensor.clone() for name, tensor in outputs.items()}, verdict)

    def is_same(self, outputs: Mapping[str, torch.Tensor]) -> bool:
        """Return whether outputs have the same types, sizes and numbers; those with NaN never have."""
        return outputs.keys() == self.outputs.keys() and all(
            tensor.dtype == outputs[name].dtype and torch.equal(tensor, outputs[name])
            for name, tensor in self.outputs.items()
        )


@dataclass
class ProblemState:
    """State shared by the jobs of one problem.

    Attributes:
        tensors: Its operands.
        sums: Checksums of those that have not changed since.
        echoes: Copies of operands in other memory.
        is_small: Whether calls have an echo: all candidates or none. None until the first is asked.
        product: What compares a product's results.
        attention: What compares an attention's.
        accepted: The results that were right last.
        compared: The candidates whose results were right on changed operands and in a dozen calls, too.
        ends: The same at the ends of its size class.
    """

    tensors: dict[TensorSpec, torch.Tensor] = field(default_factory=dict[TensorSpec, torch.Tensor])
    sums: dict[TensorSpec, int] = field(default_factory=dict[TensorSpec, int])
    echoes: dict[TensorSpec, torch.Tensor] = field(default_factory=dict[TensorSpec, torch.Tensor])
    is_small: bool | None = None
    product: ProductVerifier | None = None
    attention: AttentionVerifier | None = None
    accepted: Accepted | None = None
    compared: set[str] = field(default_factory=set[str])
    ends: dict[str, ProblemState] = field(default_factory=dict[str, "ProblemState"])

    def operand(self, spec: TensorSpec) -> torch.Tensor:
        """Return an operand, built if it is not there."""
        if spec not in self.tensors:
            self.tensors[spec] = self._built(spec)
            self.sums.pop(spec, None)
        return self.tensors[spec]

    def echo(self, spec: TensorSpec) -> torch.Tensor:
        """Return an operand with the same numbers in other memory."""
        if spec not in self.echoes:
            self.echoes[spec] = self._built(spec)
        return self.echoes[spec]

    def _built(self, spec: TensorSpec) -> torch.Tensor:
        factor = self.product.amplitude(spec) if self.product is not None else 1.0
        tensor = build(spec, factor)
        verifier = self.attention or self.product
        if verifier is not None:
            verifier.fill(spec, tensor)
        return tensor

    @property
    def known(self) -> bool:
        """Whether the library kernel has run."""
        verifier = self.attention or self.product
        return verifier is not None and verifier.known

    @property
    def comparable(self) -> bool:
        """Whether there is something to compare candidates with."""
        return not self.incomparable

    @property
    def incomparable(self) -> str:
        """Why candidates cannot be compared, empty if they can be; of an attention there is a float64 reference."""
        if self.attention is not None:
            return ""
        if self.product is None or not self.product.known:
            return "there is no library kernel to compare its numbers with"
        return self.product.degeneracy

    def look(self, specs: Iterable[TensorSpec]) -> None:
        """Keep the checksums of operands as they are now."""
        for spec in specs:
            if spec in self.tensors and spec not in self.sums and not self._is_rewritten(spec):
                self.sums[spec] = checksum(self.tensors[spec])

    def changed(self, specs: Sequence[TensorSpec]) -> str:
        """Return which operand is not as it was any more, empty if none; then all are built again."""
        index = self.first_changed(specs)
        if index is None:
            return ""
        self.forget_operands()
        return f"{CHANGED} {index}"

    def _is_rewritten(self, spec: TensorSpec) -> bool:
        """Return whether calls of some candidates compute an operand themselves, before their kernel reads it."""
        return self.attention is not None and self.attention.is_delta(spec)

    def forget_operands(self) -> None:
        """Let all operands be built again."""
        self.tensors.clear()
        self.echoes.clear()
        self.sums.clear()

    def first_changed(self, specs: Sequence[TensorSpec]) -> int | None:
        """Return the index of the first operand that is not as it was any more."""
        return next(
            (
                index
                for index, spec in enumerate(specs)
                if spec in self.sums and checksum(self.tensors[spec]) != self.sums[spec]
            ),
            None,
        )
