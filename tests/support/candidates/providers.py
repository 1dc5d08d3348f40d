"""Templates for tests: candidates that are correct, slow or broken in a known way."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate


class FaultTemplate:
    """Offers operators of `tests.support.candidates.faults` for plain matrix products."""

    name = "faults"
    version = "1"

    def __init__(self, *ops: str, serves: tuple[str, ...] = ("mm", "bmm")) -> None:
        self.faults = ops
        self.ops = serves

    def reject(self, problem: Problem) -> str | None:
        if problem.output.dtype != "float32":
            return f"it computes float32 only, this is {problem.output.dtype}"
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return [
            Candidate(
                self.name,
                op,
                {"fault": op},
                OpKernel(f"faults::{op}", (), ("tests.support.candidates.faults",)),
            )
            for op in self.faults
        ]


@contextmanager
def offered(*ops: str, serves: tuple[str, ...] = ("mm", "bmm")) -> Generator[FaultTemplate]:
    """Register a template for the block."""
    template = FaultTemplate(*ops, serves=serves)
    default_registry().register(template)
    try:
        yield template
    finally:
        default_registry().unregister(template.name)
