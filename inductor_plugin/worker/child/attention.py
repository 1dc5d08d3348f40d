"""An attention in the benchmark worker: roles and values of its operands, and its outputs.

A candidate's operands are identified by the seeds of their values: a kernel that takes each buffer
once has fewer operands than the library kernel, and takes a whole buffer instead of a view.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from inductor_plugin.attention import library as attention_library
from inductor_plugin.attention.check import steep
from inductor_plugin.attention.check.reference import CheckResult, Reference
from inductor_plugin.kernels.call import ExternKernel, Kernel, TensorSpec
from inductor_plugin.problem.attention import Attention
from inductor_plugin.worker.jobs import BenchCandidate, FinalJob, ScreenJob

_PREPARED = frozenset({"out", "lse", "delta"})


@dataclass(frozen=True)
class Rerun:
    """A kernel that can be called again after its operands have been changed in place.

    Attributes:
        candidate: The candidate.
        inputs: Its operands.
        run: Calls it, and returns its outputs by name.
        library: Whether it is the library kernel, whose outputs are the reference.
    """

    candidate: BenchCandidate
    inputs: Sequence[torch.Tensor]
    run: Callable[[], Mapping[str, torch.Tensor]]
    library: bool


class AttentionVerifier:
    """State shared by the jobs of one attention."""

    def __init__(
        self,
        facts: Attention,
        specs: Sequence[TensorSpec],
        build: Callable[[TensorSpec], torch.Tensor],
    ) -> None:
        """Build the operands and compute the reference results.

        Args:
            facts: The attention.
            specs: Its operands, in the order of ``facts.operands``.
            build: Builds an operand.

        Raises:
            ValueError: The number of operands is not that of ``facts``.
        """
        self._facts = facts
        self._specs = dict(zip(facts.operands, specs, strict=True))
        self._primary = "dk" if facts.backward else "out"
        written = ("dq", "dv") if facts.backward else ("lse",)
        self._written = tuple(name for name in written if name in self._specs)
        read = {n: s for n, s in self._specs.items() if n not in _PREPARED | set(self._written)}
        self._reference = Reference(facts, {name: build(spec) for name, spec in read.items()})
        self._library_leaks = ""
        self._steep: dict[str, torch.Tensor] = {}
        self.known = False

    def fill(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Write results of the forward that the gradients read into the operands that contain them."""
        for name, value in self._reference.prepared.items():
            view = self._specs.get(name)
            if view is not None and view.seed == spec.seed:
                _viewed(tensor, view).copy_(value)

    def is_delta(self, spec: TensorSpec) -> bool:
        """Return whether an operand is delta, which a call of a Triton gradient computes anew (`DeltaRequest`)."""
        delta = self._specs.get("delta")
        return delta is not None and delta.seed == spec.seed

    def written(self, candidate: BenchCandidate) -> dict[int, TensorSpec]:
        """Return the inputs a candidate writes, by index, as the problem's views."""
        indices = {spec.seed: i for i, spec in enumerate(candidate.inputs)}
        views = [self._specs[name] for name in self._written]
        return {indices[view.seed]: view for view in views if view.seed in indices}

    def outputs(
        self,
        candidate: BenchCandidate,
        inputs: Sequence[torch.Tensor],
        result: torch.Tensor,
        written: Mapping[int, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """Return the outputs of a candidate by name.

        Args:
            candidate: The candidate.
            inputs: Its operands, as they were in the call.
            result: Its output.
            written: The inputs it writes, as the problem's views; library kernels write none and are
                called again for all their outputs.
        """
        if library_kernel(candidate):
            return _all_outputs(candidate.kernel, inputs, self._facts)
        names = {self._specs[name].seed: name for name in self._written}
        more = {names[candidate.inputs[i].seed]: tensor for i, tensor in written.items()}
        return {self._primary: result, **more}

    def take(self, outputs: Mapping[str, torch.Tensor]) -> CheckResult:
        """Keep the library kernel's outputs; the judgement's reason says what is wrong with them."""
        self.known = True
        return self._reference.take(outputs)

    def judge(self, outputs: Mapping[str, torch.Tensor]) -> CheckResult:
        """Return whether a candidate's outputs are correct."""
        shape = tuple(outputs[self._primary].shape)
        if shape != self._shape:
            return CheckResult(None, f"{self._primary} has the shape {shape}, not {self._shape}")
        return self._reference.judge(outputs)

    def poisoned(self, kernel: Rerun) -> str:
        """Run a kernel with NaN planted in its operands; its outputs are those of that run.

        Returns:
            Why its outputs are wrong, empty if they are not; for a candidate only if the library kernel
            passes.
        """
        if self._library_leaks and not kernel.library:
            return ""
        copies = self._copies(kernel)
        if not all(copies.values()):
            return ""
        restore = self._reference.plant(copies)
        if restore is None:
            return ""
        try:
            is_library = library_kernel(kernel.candidate)
            reason = self._reference.nan_leaks(kernel.run(), library=is_library)
        finally:
            restore()
        if kernel.library:
            self._library_leaks = reason
        return reason

    def with_large_scores(self, kernel: Rerun) -> str:
        """Run a kernel with large scores and small values, and return why its outputs are wrong, empty if they are not.

        The library kernel's outputs are kept, and candidates compared with them.
        """
        copies = self._copies(kernel)
        if not all(copies.values()) or not (kernel.library or self._steep):
            return ""
        powers = steep.exponents(self._facts, copies["q"][0], copies["k"][0])
        if powers is None or any(map(_expanded, (*copies["q"], *copies["v"]))):
            return ""
        with _scaled(copies["q"], powers[0]), _scaled(copies["v"], powers[1]):
            outputs = kernel.run()
        if not kernel.library:
            return steep.wrong(outputs, self._steep)
        trusted = self._reference.trusted
        self._steep = {n: tensor.clone() for n, tensor in outputs.items() if n in trusted}
        return ""

    def _copies(self, kernel: Rerun) -> dict[str, list[torch.Tensor]]:
        """Return where a kernel reads each operand: all copies of it."""
        views = {n: s for n, s in self._specs.items() if n in {"q", "k", "v", "do"}}
        operands = list(zip(kernel.candidate.inputs, kernel.inputs, strict=True))
        return {
            name: [_viewed(tensor, view) for spec, tensor in operands if spec.seed == view.seed]
            for name, view in views.items()
        }

    @property
    def _shape(self) -> tuple[int, ...]:
        """Return the shape of the output."""
        if self._primary == "dk":
            return self._specs["k"].size
        return (*self._specs["q"].size[:-1], self._specs["v"].size[-1])


def verifier_of(
    job: ScreenJob | FinalJob,
    candidate: BenchCandidate,
    build: Callable[[TensorSpec], torch.Tensor],
) -> AttentionVerifier | None:
    """Return the trial of a job, None if its results are not checked.

    Without a library kernel the operands are those of the candidate, if it takes all of them.
    """
    facts = job.attention
    if facts is None or job.check is None:
        return None
    if job.library is None and len(candidate.inputs) != len(facts.operands):
        return None
    return AttentionVerifier(facts, (job.library or candidate).inputs, build)


def library_kernel(candidate: BenchCandidate) -> bool:
    """Return whether a candidate is a library attention kernel."""
    kernel = candidate.kernel
    return isinstance(kernel, ExternKernel) and kernel.name in attention_library.FUNCTIONS


def _all_outputs(
    kernel: Kernel, inputs: Sequence[torch.Tensor], facts: Attention
) -> dict[str, torch.Tensor]:
    """Return all outputs of a library kernel, lse as [B, H, Sq] or [H, Tq]."""
    assert isinstance(kernel, ExternKernel)
    name = kernel.name.removeprefix(attention_library.PREFIX)
    arguments = dict(kernel.kwargs)
    if facts.backward:
        name = name.removesuffix("_backward")
        grads = attention_library.results(name, True, inputs, arguments)  # noqa: FBT003  theirs
        return dict(zip(("dq", "dk", "dv"), grads, strict=True))
    arguments["form"] = "" if facts.varlen else "rows"
    out, lse = attention_library.results(name, False, inputs, arguments)  # noqa: FBT003  theirs
    return {"out": out} if lse is None else {"out": out, "lse": lse}


def _expanded(tensor: torch.Tensor) -> bool:
    """Return True if several elements are one number in memory: it cannot be changed in place."""
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in pairs)


@contextmanager
def _scaled(copies: Sequence[torch.Tensor], exponent: int) -> Generator[None]:
    """Multiply all copies of an operand by a power of two, and restore them; each address once."""
    before = {(each.data_ptr(), each.stride()): (each, each.clone()) for each in copies}
    for each, _ in before.values():
        each.mul_(2.0**exponent)
    try:
        yield
    finally:
        for each, values in before.values():
            each.copy_(values)


def _viewed(tensor: torch.Tensor, view: TensorSpec) -> torch.Tensor:
    return torch.as_strided(tensor, view.size, view.stride, view.offset)
