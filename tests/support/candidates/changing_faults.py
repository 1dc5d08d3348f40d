"""A template whose candidates fail, each round other ones: in every way that a candidate can."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate
from tests.support.candidates import random_faults

CHEAP = sorted(random_faults.CHEAP)
OF_PRODUCTS = ("numbers::second_call", "numbers::writes_a", "numbers::too_large")
"""Wrong in ways that one comparison does not show; they take no scalars."""
COSTLY = ("random_faults::segfaults", "random_faults::hangs", "faults::no_memory")
"""Each costs a worker or the time limit of a candidate; `no_memory` takes no scalars."""
_MODULES = {
    "random_faults": "tests.support.candidates.random_faults",
    "faults": "tests.support.candidates.faults",
    "numbers": "tests.support.candidates.wrong_numbers",
}


class ChangingFaults:
    """Offers a correct candidate and those of a round, by which the same fault is another candidate.

    Attributes:
        faults: Operators of the round.
        round: Its number, part of the candidates' identity.
    """

    name = "changing_faults"
    version = "1"
    ops = ("mm", "bmm", "addmm", "baddbmm")

    def __init__(self) -> None:
        self.faults: tuple[str, ...] = ()
        self.round = 0

    def reject(self, problem: Problem) -> str | None:
        return None if problem.output.dtype == "float32" else "it computes float32 only"

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        offers = [self._candidate(problem, "random_faults::good", "")]
        for fault in self.faults:
            plain = not fault.startswith("random_faults")
            if plain and (len(problem.inputs) == 3 or problem.op != "mm"):
                continue
            offers.append(self._candidate(problem, fault, str(self.round)))
        return offers

    def _candidate(self, problem: Problem, op: str, number: str) -> Candidate:
        arguments = dict(problem.arguments)
        args: tuple[float, ...] = ()
        if len(problem.inputs) == 3:
            args = float(arguments.get("alpha", "1")), float(arguments.get("beta", "1"))
            op += ".added"
        namespace = op.partition("::")[0]
        return Candidate(
            self.name,
            f"{op.partition('::')[2]}{number}",
            {"fault": op, "args": repr(args), "round": number},
            OpKernel(op, args, (_MODULES[namespace],)),
        )


@contextmanager
def offered() -> Generator[ChangingFaults]:
    """Register the template for the block."""
    template = ChangingFaults()
    untyped: Any = template
    default_registry().register(untyped)
    try:
        yield template
    finally:
        default_registry().unregister(template.name)
