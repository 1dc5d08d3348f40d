"""One attention in the benchmark worker: which operand is which, what is in it, what is written.

A candidate's operands are known by the seeds of their values: a kernel that takes each buffer once
has fewer of them than the library kernel, and takes a whole buffer where that takes a view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from inductor_plugin.attention import library as attention_library
from inductor_plugin.attention.check import Judgement, Reference
from inductor_plugin.kernels.call import ExternKernel, Kernel, TensorSpec
from inductor_plugin.problem.attention import Attention
from inductor_plugin.worker.jobs import BenchCandidate, ScreenJob

_PREPARED = frozenset({"out", "lse", "delta"})


class Trial:
    """What the jobs of one attention share."""

    def __init__(
        self,
        facts: Attention,
        specs: Sequence[TensorSpec],
        build: Callable[[TensorSpec], torch.Tensor],
    ) -> None:
        """Make the operands and what their results are held against.

        Args:
            facts: The attention.
            specs: Its operands, in the order of ``facts.operands``.
            build: Makes an operand.

        Raises:
            ValueError: There are more or fewer operands than ``facts`` names.
        """
        self._facts = facts
        self._specs = dict(zip(facts.operands, specs, strict=True))
        self._primary = "dk" if facts.backward else "out"
        written = ("dq", "dv") if facts.backward else ("lse",)
        self._written = tuple(name for name in written if name in self._specs)
        read = {n: s for n, s in self._specs.items() if n not in _PREPARED | set(self._written)}
        self._reference = Reference(facts, {name: build(spec) for name, spec in read.items()})
        self._hides = ""
        self.known = False

    def fill(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Write what a forward leaves for the gradients into an operand that holds it."""
        for name, value in self._reference.prepared.items():
            view = self._specs.get(name)
            if view is not None and view.seed == spec.seed:
                _viewed(tensor, view).copy_(value)

    def written(self, candidate: BenchCandidate) -> dict[int, TensorSpec]:
        """Return which inputs of a candidate it writes, and how the problem sees them."""
        places = {spec.seed: i for i, spec in enumerate(candidate.inputs)}
        views = [self._specs[name] for name in self._written]
        return {places[view.seed]: view for view in views if view.seed in places}

    def outputs(
        self,
        candidate: BenchCandidate,
        inputs: Sequence[torch.Tensor],
        result: torch.Tensor,
        written: Mapping[int, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """Return what a candidate gave, by name.

        Args:
            candidate: The candidate.
            inputs: Its operands, as they were in the call.
            result: Its output.
            written: The inputs it writes, as the problem sees them; the library's kernels write none
                and are called once more for all they compute.
        """
        if library_kernel(candidate):
            return _all_outputs(candidate.kernel, inputs, self._facts)
        names = {self._specs[name].seed: name for name in self._written}
        more = {names[candidate.inputs[i].seed]: tensor for i, tensor in written.items()}
        return {self._primary: result, **more}

    def take(self, outputs: Mapping[str, torch.Tensor]) -> Judgement:
        """Keep what the library kernel gave; a reason is what is wrong with it."""
        self.known = True
        return self._reference.take(outputs)

    def judge(self, outputs: Mapping[str, torch.Tensor]) -> Judgement:
        """Return whether a candidate is right."""
        found = tuple(outputs[self._primary].shape)
        if found != self._shape:
            return Judgement(None, f"{self._primary} has the shape {found}, not {self._shape}")
        return self._reference.judge(outputs)

    def poisoned(
        self,
        candidate: BenchCandidate,
        inputs: Sequence[torch.Tensor],
        run: Callable[[], Mapping[str, torch.Tensor]],
        *,
        library: bool,
    ) -> str:
        """Run a kernel with NaN planted in its operands; its outputs are those of that run.

        Returns:
            What it has made of them that it must not; of a candidate only what the library kernel
            does better.
        """
        if self._hides and not library:
            return ""
        views = {n: s for n, s in self._specs.items() if n in {"q", "k", "v", "do"}}
        given = list(zip(candidate.inputs, inputs, strict=True))
        copies = {
            name: [_viewed(tensor, view) for spec, tensor in given if spec.seed == view.seed]
            for name, view in views.items()
        }
        if not all(copies.values()):
            return ""
        restore = self._reference.plant(copies)
        if restore is None:
            return ""
        try:
            found = self._reference.spoilt(run())
        finally:
            restore()
        if library:
            self._hides = found
        return found

    @property
    def _shape(self) -> tuple[int, ...]:
        """Return the shape of the output."""
        if self._primary == "dk":
            return self._specs["k"].size
        return (*self._specs["q"].size[:-1], self._specs["v"].size[-1])


def trial_of(job: ScreenJob, build: Callable[[TensorSpec], torch.Tensor]) -> Trial | None:
    """Return the trial of a job, None where its numbers are not checked.

    Without a library kernel the operands are those of the candidate, if it takes all of them.
    """
    facts = job.attention
    if facts is None or job.tolerance is None:
        return None
    if job.library is None and len(job.candidate.inputs) != len(facts.operands):
        return None
    return Trial(facts, (job.library or job.candidate).inputs, build)


def library_kernel(candidate: BenchCandidate) -> bool:
    """Return whether a candidate is one of the library's attention kernels."""
    kernel = candidate.kernel
    return isinstance(kernel, ExternKernel) and kernel.name in attention_library.FUNCTIONS


def _all_outputs(
    kernel: Kernel, inputs: Sequence[torch.Tensor], facts: Attention
) -> dict[str, torch.Tensor]:
    """Return all that one of the library's kernels computes, lse as [B, H, Sq] or [H, Tq]."""
    assert isinstance(kernel, ExternKernel)
    name = kernel.name.removeprefix(attention_library.PREFIX)
    told = dict(kernel.kwargs)
    if facts.backward:
        name = name.removesuffix("_backward")
        grads = attention_library.results(name, True, inputs, told)  # noqa: FBT003  theirs
        return dict(zip(("dq", "dk", "dv"), grads, strict=True))
    told["form"] = "" if facts.varlen else "rows"
    out, lse = attention_library.results(name, False, inputs, told)  # noqa: FBT003  theirs
    return {"out": out} if lse is None else {"out": out, "lse": lse}


def _viewed(tensor: torch.Tensor, view: TensorSpec) -> torch.Tensor:
    return torch.as_strided(tensor, view.size, view.stride, view.offset)
