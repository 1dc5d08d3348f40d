"""Templates for tests: candidates that are correct, slow or broken in a known way."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate

_MODULES = {
    "faults": "tests.support.candidates.faults",
    "numbers": "tests.support.candidates.wrong_numbers",
}


class FaultTemplate:
    """Offers operators of a test module, by their namespace, for plain matrix products."""

    name = "faults"
    version = "1"

    def __init__(
        self,
        *ops: str,
        serves: tuple[str, ...] = ("mm", "bmm"),
        namespace: str = "faults",
        dtype: str = "float32",
    ) -> None:
        self.faults = ops
        self.ops = serves
        self.namespace = namespace
        self.dtype = dtype

    def reject(self, problem: Problem) -> str | None:
        if problem.output.dtype != self.dtype:
            return f"it computes {self.dtype} only, this is {problem.output.dtype}"
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return [
            Candidate(
                self.name,
                op,
                {"fault": op},
                OpKernel(f"{self.namespace}::{op}", (), (_MODULES[self.namespace],)),
            )
            for op in self.faults
        ]


@contextmanager
def offered(
    *ops: str,
    serves: tuple[str, ...] = ("mm", "bmm"),
    namespace: str = "faults",
    dtype: str = "float32",
) -> Generator[FaultTemplate]:
    """Register a template for the block."""
    template = FaultTemplate(*ops, serves=serves, namespace=namespace, dtype=dtype)
    default_registry().register(template)
    try:
        yield template
    finally:
        default_registry().unregister(template.name)
