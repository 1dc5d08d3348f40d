"""A fusion on its way to a decision: which kernels are worth measuring with an epilogue. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from inductor_plugin.cache import Resources
from inductor_plugin.cost import prune
from inductor_plugin.cost.fusion_time import fused_extra_us
from inductor_plugin.cost.limits import Limits, guard_registers
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.kernels.resources import SPILL_LIMIT_BYTES
from inductor_plugin.problem import Problem
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.target import Target
from inductor_plugin.template import Candidate

MOST = 2
"""Kernels of about one speed that are measured with an epilogue and are foretold to lose nothing by it.
Inductor measures one (``max_epilogue_benchmarked_choices``), which may be one that spills."""
DOUBTFUL = 2
"""Kernels measured beside those that may lose by the epilogue: spill, or leave room for fewer blocks. With
one, the best for BERT's gelu is missed (`benchmarks.fusion.fusions`)."""
DOMINATES = 1.05
"""A kernel that is so many times slower alone than one that loses nothing by an epilogue does not win
with it: what is read and written is the same for both. Medians of one kernel differ by 2 to 3 %."""

_TILE = re.compile(r"\bBLOCK_([MNK])=(\d+)")


@dataclass(frozen=True)
class Price:
    """One kernel and the epilogue it may take over.

    Attributes:
        kernel: Without the epilogue.
        epilogue: What is fused.
        target: The GPU; None where its figures are not known: then nothing is pruned for them.
        limits: Those of the options.
        unfused_us: Time of the kernel alone.
        best_us: Time of the best kernel for the product alone.
    """

    kernel: Kernel
    epilogue: Epilogue
    target: Target | None
    limits: Limits
    unfused_us: float
    best_us: float

    def refused(self) -> str | None:
        """Return why the two need not be compiled together, None if they must."""
        if self.target is None:
            return None
        found = prune.judge(self.kernel, self.epilogue, self.target, self.unfused_us, self.best_us)
        if isinstance(found, prune.Prune):
            return found.reason
        registers = found.prediction.registers if found.prediction else 0
        return guard_registers(registers, self.limits)

    def sure(self) -> bool:
        """Return whether the kernel is foretold to lose nothing: no spills, as many blocks as alone."""
        if self.target is None:
            return True
        found = prune.predict(self.kernel, self.epilogue, self.target, self.unfused_us)
        return found.spilled_bytes <= SPILL_LIMIT_BYTES and found.fused.blocks >= found.alone.blocks

    def least_ms(self) -> float:
        """Return milliseconds the two take together at least; 0 if that is not known.

        The kernel's own time, less what is saved where fewer bytes are written than without the epilogue.
        """
        if self.target is None:
            return 0.0
        saved_us = fused_extra_us(self.epilogue, self.target).low
        return max(0.0, self.unfused_us + saved_us) / 1e3

    def refused_compiled(self, fused: Resources) -> str | None:
        """Return why the two need not be measured, from what they take together; None if they must."""
        if self.target is None:
            return None
        found = prune.judge_compiled(
            self.kernel, fused, self.epilogue, self.target, self.unfused_us, self.best_us
        )
        if isinstance(found, prune.Prune):
            return found.reason
        return guard_registers(fused.registers or 0, self.limits)


class Chosen:
    """The kernels that will be measured with an epilogue, told which by which, the fastest first."""

    def __init__(self) -> None:
        """Begin with none."""
        self._sure: list[tuple[str, float]] = []
        self._doubtful = 0

    def dominated(self, time_us: float) -> str | None:
        """Return why a kernel that takes so long alone cannot win; nothing else of it needs to be known."""
        for faster, alone_us in self._sure:
            if time_us > DOMINATES * alone_us:
                return (
                    f"dominated: {faster} takes {alone_us:.1f} us alone, this {time_us:.1f}, "
                    "and loses nothing by it"
                )
        return None

    def refused(self, name: str, price: Price) -> str | None:
        """Return why a kernel need not be measured besides those before it; None takes it in."""
        sure = price.sure()
        if sure and len(self._sure) >= MOST:
            return f"{MOST} kernels as fast are measured with it"
        if not sure and self._doubtful >= DOUBTFUL:
            return "it may lose by it, as a faster kernel that is measured"
        if sure:
            self._sure.append((name, price.unfused_us))
        else:
            self._doubtful += 1
        return None


def kernel_of(
    problem: Problem,
    template: str,
    description: str,
    warps: int,
    stages: int,
    known: Resources | None,
) -> Kernel:
    """Return what is known of a Triton kernel without its epilogue.

    Args:
        problem: The product.
        template: Name of its template.
        description: Inductor's, with its tile: ``BLOCK_M=128, BLOCK_N=64 ...``.
        warps: Warps of a program.
        stages: Loads in flight.
        known: What the compiler said of it; None where it is not in the cache.
    """
    tile = {name: int(value) for name, value in _TILE.findall(description)}
    first = 1 if problem.op in ("addmm", "baddbmm") else 0
    a, b = problem.inputs[first : first + 2]
    taken = known or Resources(None, None, None, None)
    return Kernel(
        template=template,
        tile=(tile.get("M", 16), tile.get("N", 16), tile.get("K", 16)),
        warps=warps,
        threads=taken.threads or 0,
        stages=stages,
        registers=taken.registers,
        spilled_bytes=taken.spills,
        shared_bytes=taken.shared_bytes,
        operands=(a.dtype, b.dtype),
        shape=(*problem.output.size[-2:], a.size[-1]),
        persistent="persistent" in template,
    )


def visitor_kernel(problem: Problem, candidate: Candidate) -> Kernel:
    """Return what is known of a CUTLASS kernel before it is compiled."""
    config = candidate.config
    numbers: Any = config.get("tile", (128, 128, 64))
    first = 1 if problem.op in ("addmm", "baddbmm") else 0
    a, b = problem.inputs[first : first + 2]
    pingpong = config.get("schedule") == "pingpong"
    return Kernel(
        template=candidate.template,
        tile=(int(numbers[0]), int(numbers[1]), int(numbers[2])),
        warps=4 if pingpong else 8,
        threads=384,
        operands=(a.dtype, b.dtype),
        shape=(*problem.output.size[-2:], a.size[-1]),
        kind="cutlass",
        persistent=True,
    )
