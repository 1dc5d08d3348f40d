"""What every recorded candidate becomes: a call that runs in the emulator, and how long that takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import DIRECTIONS, attention_of
from inductor_plugin.problem.product import flops
from inductor_plugin.problem.target import Target
from tests.emulator.machine.schedule import Schedule
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.row import Verdict

OPERATIONS_A_SECOND = 50e6
"""Multiplications and additions of tensor cores that are emulated in a second, of large calls; small ones and kernels
without tensor cores are slower (benchmarks/results/emulator_cpu.json)."""


@dataclass(frozen=True)
class Call:
    """A recorded candidate on an emulated GPU.

    Attributes:
        kernel: Name of its kernel.
        problem: What it computes, with its GPU.
        run: Calls it on random operands, and compares with float64.
        note: What is not as it was recorded; empty if nothing is.
    """

    kernel: str
    problem: Problem
    run: Callable[[Runtime, Schedule], Verdict]
    note: str = ""

    @property
    def target(self) -> Target:
        """The GPU."""
        assert self.problem.target is not None
        return self.problem.target

    @property
    def seconds(self) -> float:
        """About how long it takes to run in one schedule, without compiling."""
        is_attention = self.problem.op in DIRECTIONS
        operations = attention_of(self.problem).flops if is_attention else flops(self.problem)
        return operations / OPERATIONS_A_SECOND


def on(problem: Problem, target: Target) -> Problem:
    """Return a problem on a GPU; candidates of TF32 are among those of float32, else they were not in a record."""
    return replace(problem, target=target, tf32=True)
