"""Which kernels are worth measuring with an epilogue, from estimates. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from inductor_plugin.cache import Resources
from inductor_plugin.cost import prune
from inductor_plugin.cost.fusion_time import fused_extra_us
from inductor_plugin.cost.limits import Limits, guard_registers
from inductor_plugin.cost.prune import FusionPrediction
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.problem import Problem
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.target import Target
from inductor_plugin.template import Candidate

MAX_LOSSLESS = 2
"""How many similarly fast kernels are measured fused when the model predicts neither spills nor fewer
resident blocks. Inductor measures one (``max_epilogue_benchmarked_choices``), which may be one that spills."""
MAX_UNCERTAIN = 2
"""How many kernels are measured besides those that may lose by the epilogue. With one, the best for
BERT's gelu is missed (`benchmarks.fusion.fusions`)."""
DOMINATES = 1.05
"""A kernel that is so many times slower alone than one that loses nothing by an epilogue does not win
with it: what is read and written is the same for both. Medians of one kernel differ by 2 to 3 %."""

_TILE = re.compile(r"\bBLOCK_([MNK])=(\d+)")


@dataclass(frozen=True)
class FusionEstimate:
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

    @cached_property
    def prediction(self) -> FusionPrediction | None:
        """What becomes of both, before they are compiled; None where the GPU is not known."""
        return self._predicted(None)

    def why_not(self) -> str | None:
        """Return why the two need not be compiled together, None if they must."""
        return self._why_not(self.prediction)

    def why_not_compiled(self, fused: Resources) -> str | None:
        """Return why the two need not be measured, from what they take together; None if they must."""
        return self._why_not(self._predicted(fused))

    @property
    def predicted_lossless(self) -> bool:
        """Whether the model predicts neither spills nor fewer resident blocks than alone."""
        return self.prediction is None or self.prediction.lossless

    def least_ms(self) -> float:
        """Return milliseconds the two take together at least; 0 if that is not known.

        The kernel's own time, less what is saved where fewer bytes are written than without the epilogue.
        """
        if self.target is None:
            return 0.0
        saved_us = fused_extra_us(self.epilogue, self.target).low
        return max(0.0, self.unfused_us + saved_us) / 1e3

    def _predicted(self, compiled: Resources | None) -> FusionPrediction | None:
        if self.target is None:
            return None
        return prune.predict(self.kernel, self.epilogue, self.target, self.unfused_us, compiled)

    def _why_not(self, prediction: FusionPrediction | None) -> str | None:
        if prediction is None:
            return None
        reason = prune.why_not(self.kernel, self.epilogue, prediction, self.best_us)
        return reason or guard_registers(prediction.fused.registers, self.limits)


class Shortlist:
    """Shortlist of kernels to measure with an epilogue; offered fastest first."""

    def __init__(self) -> None:
        """Begin with none."""
        self.kept: dict[str, FusionEstimate] = {}
        self.pruned: dict[str, str] = {}

    def offer(self, name: str, unfused_us: float, estimate: Callable[[], FusionEstimate]) -> None:
        """Keep a kernel, or prune it and say why.

        Args:
            name: The kernel's.
            unfused_us: Its time alone.
            estimate: Called only if that time is no reason: a warm compile offers each kernel of each
                layer, and an estimate reads the cache.
        """
        reason = self._dominated(unfused_us)
        if reason is None:
            estimated = estimate()
            reason = estimated.why_not() or self._enough(estimated)
            if reason is None:
                self.kept[name] = estimated
                return
        self.pruned[name] = reason

    def _dominated(self, unfused_us: float) -> str | None:
        """Return why a kernel that takes so long alone cannot win."""
        for faster, estimate in self.kept.items():
            if estimate.predicted_lossless and unfused_us > DOMINATES * estimate.unfused_us:
                return (
                    f"dominated: {faster} takes {estimate.unfused_us:.1f} us alone, "
                    f"this {unfused_us:.1f}, and loses nothing by it"
                )
        return None

    def _enough(self, estimate: FusionEstimate) -> str | None:
        """Return why a kernel need not be measured besides those before it."""
        lossless = sum(kept.predicted_lossless for kept in self.kept.values())
        if estimate.predicted_lossless:
            enough = lossless >= MAX_LOSSLESS
            return f"{MAX_LOSSLESS} kernels as fast are measured with it" if enough else None
        enough = len(self.kept) - lossless >= MAX_UNCERTAIN
        return "it may lose by it, as a faster kernel that is measured" if enough else None


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
