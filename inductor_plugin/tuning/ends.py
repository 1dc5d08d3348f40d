"""A dynamic call at the smallest and at the largest size of its class, where its candidates are checked, too.

A record holds for every size of a class: a kernel that is right at the measured size only, where a last tile is
full, must not win it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from inductor_plugin.kernels.call import (
    CppKernel,
    ExternKernel,
    Kernel,
    OpKernel,
    TensorSpec,
)
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.worker.jobs import BenchCandidate, ScreenJob

_MEASURED_SIZES = frozenset({"batch_size"})
"""Arguments of library kernels that are a size: MKL's packed weights are for one batch size."""


@dataclass(frozen=True)
class SizeEnd:
    """A dynamic call at one end of its size class.

    Attributes:
        sizes: Each dynamic size as measured, and as it is at this end.
        operands: Each operand with random values as measured, and as it is at this end.
        output: The output as measured, and as it is at this end.
        check: How results are compared at this end.
    """

    sizes: tuple[tuple[int, int], ...]
    operands: tuple[tuple[TensorSpec, TensorSpec], ...]
    output: tuple[TensorSpec, TensorSpec]
    check: NumberCheck

    @property
    def name(self) -> str:
        """The sizes as text: ``257 instead of 300``."""
        return ", ".join(f"{size} instead of {measured}" for measured, size in self.sizes)


def with_ends(job: ScreenJob, ends: Sequence[SizeEnd]) -> ScreenJob:
    """Return a screening that checks the candidate at the ends of its size class, too, where it can be called there."""
    if job.check is None or job.library is None or job.library == job.candidate:
        return job
    return replace(job, ends=tuple(_screenings(ends, job.library, job)))


def at_end(candidate: BenchCandidate, end: SizeEnd) -> BenchCandidate | None:
    """Return the call of a candidate at other sizes; None if its arguments for them are not known."""
    moved = dict(end.operands)
    kernel = _kernel_at(candidate.kernel, dict(end.sizes))
    # What is in a file has been repacked from frozen weights, whose sizes are fixed.
    known = all(spec in moved or spec.file is not None for spec in candidate.inputs)
    if kernel is None or not known or candidate.output != end.output[0]:
        return None
    inputs = tuple(moved.get(spec, spec) for spec in candidate.inputs)
    return replace(candidate, kernel=kernel, inputs=inputs, output=end.output[1])


def _screenings(
    ends: Sequence[SizeEnd], library: BenchCandidate, job: ScreenJob
) -> Iterator[ScreenJob]:
    for end in ends:
        reference, candidate = at_end(library, end), at_end(job.candidate, end)
        if reference is not None and candidate is not None:
            yield replace(
                job,
                problem_id=end.name,
                library=reference,
                candidate=candidate,
                check=end.check,
            )


def _kernel_at(kernel: Kernel, sizes: dict[int, int]) -> Kernel | None:
    if isinstance(kernel, CppKernel):
        known = all(size in sizes for size in kernel.sizes)
        return replace(kernel, sizes=tuple(sizes[size] for size in kernel.sizes)) if known else None
    if isinstance(kernel, ExternKernel):
        return None if _MEASURED_SIZES & {name for name, _ in kernel.kwargs} else kernel
    # A Triton request holds its grid, a sequence the sizes of its views.
    return kernel if isinstance(kernel, OpKernel) else None
