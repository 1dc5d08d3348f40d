"""A candidate on its way through the builder, and the rank of its compile job."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inductor_plugin.kernels.resources import SPILL_LIMIT_BYTES
from inductor_plugin.kernels.unit import unique_symbol
from inductor_plugin.problem import Problem
from inductor_plugin.tuning.budget import weight
from inductor_plugin.tuning.task import CppBuild, Task, TaskCandidate
from inductor_plugin.worker.jobs import Compiled, Outcome

_WITHOUT_LIBRARY = "flex_"
"""FlexAttention's operators have no library kernel to compare with: the result must not be slower than
Inductor's default, which on an H100 spills 132 bytes backward at head dimension 128."""


@dataclass
class BuildItem:
    """A candidate to build.

    Attributes:
        task: Its problem.
        candidate: The candidate.
        done: Called when it is ready or has failed.
    """

    task: Task
    candidate: TaskCandidate
    done: Callable[[], None]

    @property
    def over(self) -> bool:
        """True if its task no longer waits for it."""
        return self.task.late or self.task.done.is_set()

    @property
    def cpp(self) -> CppBuild:
        """The build of a C++ or CUDA candidate."""
        build = self.candidate.build
        assert isinstance(build, CppBuild)
        return build

    @property
    def digest(self) -> str:
        """Digest of the kernel of a C++ or CUDA candidate."""
        return self.cpp.key.digest

    @property
    def symbol(self) -> str:
        """The C function's name in the library, which follows from the key alone."""
        return unique_symbol(self.cpp.source)

    @property
    def spill_limit(self) -> int:
        """Bytes a thread may spill for the kernel to be measured."""
        without = self.task.problem.op.startswith(_WITHOUT_LIBRARY)
        return sys.maxsize if without else SPILL_LIMIT_BYTES


def answer(items: Sequence[BuildItem], reason: str) -> None:
    """Skip the items that have no outcome, and report all of them, again: tasks that wait until nothing compiles may continue."""
    for item in items:
        if not item.candidate.ready and item.candidate.outcome is None:
            item.candidate.outcome = Outcome(item.candidate.candidate_id, "skipped", reason)
        item.done()


def problem_of(item: BuildItem) -> Problem:
    """Return the problem of an item."""
    return item.task.problem


def urgency(items: Sequence[BuildItem]) -> tuple[float, Callable[[], float]]:
    """Return the rank of a job among those of its budget, and what says until when it may run.

    Without a budget the long ones come first, C++ and CUDA before Triton, since whichever ends last is waited for; and all
    may run as long as somebody waits for them.
    """
    task = items[0].task
    budget = task.budget

    def until() -> float:
        if all(item.over for item in items):
            return -math.inf
        if budget is None:
            return math.inf
        return budget.admit(len(items), libraries) if task.measured else budget.admit(0)

    tasks = {item.task for item in items}
    libraries = {each.digest: sum(e.library for e in each.entries) for each in tasks}
    rank = float(isinstance(items[0].candidate.build, CppBuild))
    return rank if budget is None else weight(task.problem), until


def unanswered(key: str) -> Compiled:
    """Return the result for a kernel no worker reached; ``skipped``, so it is tried again."""
    return Compiled(key, "skipped", "the compile workers did not come to it in time")
