"""The time limit of one graph's tuning: what is compiled first, and when measuring has to start.

    first compile ── compile, the heaviest problems first ──► compile_until ── measure ──► ends

What has been compiled but not measured is lost time, so the last part of the budget is kept for measuring.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import DIRECTIONS, attention_of
from inductor_plugin.problem.definition import item_bytes
from inductor_plugin.problem.product import flops

SHARE = 0.4
"""Most of the budget that is kept for measuring."""
MEASURE_S = 0.05
"""Least seconds kept for each candidate."""
MEASURE_PER_COMPILE = 0.025
"""Seconds of a screening in those of the compile of a unit: 0.05 s and 2 s on two quiet cores. So what a compile takes
tells how busy the machine is."""
UNIT_S = 2.5
"""Least budget in which a unit of several C++ kernels can be compiled and measured; with less each is compiled alone."""
TWO_WAVES_S = 5.0
"""Budget below which each worker compiles two units, the heaviest problems in the first: one of five kernels takes 2 s on two
quiet cores, and 3 s were seen."""
LEAST_MEASURED = 0.5
"""Share of the candidates for which time is left when a compile that has begun in time is ended."""
_FLOPS_PER_BYTE = {"cpu": 16.0}
_FLOPS_PER_BYTE_OF_A_GPU = 200.0
"""Operations in the time of one byte of memory: an H100 has 989 TFLOP/s in bfloat16 and 3.35 TB/s; two
cores with AVX-512 have about 200 GFLOP/s and 12 GB/s."""

_T = TypeVar("_T")


def weight(problem: Problem) -> float:
    """Return how much there is to gain: bytes moved, or operations in the time of one byte each.

    A faster kernel saves a share of its problem's time, so the problem that takes longest comes first.
    """
    per_byte = _FLOPS_PER_BYTE.get(problem.output.device, _FLOPS_PER_BYTE_OF_A_GPU)
    moved = sum(map(_bytes, (*problem.inputs, problem.output)))
    return max(float(moved), _flops(problem) / per_byte)


def compile_until(
    ends: float, total_s: float, candidates: int, compile_s: float, share: float = 1.0
) -> float:
    """Return the time after which nothing is compiled any more, so that the rest suffices to measure.

    Args:
        ends: Time at which the budget ends.
        total_s: The whole budget in seconds.
        candidates: Candidates that have been compiled or are being compiled, with their library kernels.
        compile_s: Seconds that a compile took on the average; 0 if none has ended.
        share: Share of the candidates that is to be measured.
    """
    measure_s = max(MEASURE_S, MEASURE_PER_COMPILE * compile_s)
    return ends - share * min(SHARE * total_s, measure_s * candidates)


def heaviest_first(
    items: Sequence[_T], problem: Callable[[_T], Problem], size: int
) -> list[list[_T]]:
    """Return batches of ``size`` candidates, those of the heaviest problem first.

    A problem's candidates are next to each other, so that the first problems can be measured although
    later ones are not compiled in time.
    """
    ordered = sorted(items, key=lambda item: -weight(problem(item)))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def heaviest_unit_first(
    units: Sequence[Sequence[_T]], problem: Callable[[_T], Problem]
) -> list[list[_T]]:
    """Return the units by their heaviest problem, and the kernels of each by theirs."""
    ordered = [sorted(unit, key=lambda item: -weight(problem(item))) for unit in units]
    return sorted(ordered, key=lambda unit: -weight(problem(unit[0])))


class Budget:
    """The budget of one graph. It starts with the first compile, so that lowering takes nothing of it."""

    def __init__(self, total_s: float) -> None:
        """Allow ``total_s`` seconds, which do not run yet."""
        self.total_s = total_s
        self.ends = math.inf
        self._expected = 0
        self._libraries: set[str] = set()
        self._compile_s: list[float] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Let the time run, if it does not yet."""
        with self._lock:
            if self.ends == math.inf:
                self.ends = time.monotonic() + self.total_s

    @property
    def over(self) -> bool:
        """True if nothing more may be started."""
        return time.monotonic() > self.ends

    def admit(self, candidates: int, libraries: Mapping[str, int] | None = None) -> float:
        """Return the time until which candidates may be compiled, and keep time to measure them.

        What has begun in time may use half of what is kept: half of the candidates, the heaviest, measured are more
        than none.

        Args:
            candidates: Candidates of one compile job.
            libraries: How many library kernels are measured with them, by the digest of their problem. They count once,
                in however many jobs a problem's candidates are compiled.
        """
        with self._lock:
            added = {n: k for n, k in (libraries or {}).items() if n not in self._libraries}
            expected = self._expected + candidates + sum(added.values())
            compile_s = fmean(self._compile_s) if self._compile_s else 0.0
            known = self.ends, self.total_s, expected, compile_s
            latest_start = compile_until(*known)
            if time.monotonic() >= latest_start:
                return latest_start
            self._expected = expected
            self._libraries |= added.keys()
            return compile_until(*known, share=LEAST_MEASURED)

    def compiled(self, elapsed_s: float) -> None:
        """Store the seconds that the compile of a unit took."""
        with self._lock:
            self._compile_s.append(elapsed_s)


def _bytes(operand: Operand) -> int:
    return math.prod(operand.size) * item_bytes(operand.dtype)


def _flops(problem: Problem) -> float:
    names_operands = any(name == "operands" for name, _ in problem.arguments)
    if names_operands and problem.op in DIRECTIONS:
        return float(attention_of(problem).flops)
    return float(flops(problem))
