"""Shortlist of the kernels that are worth measuring with an epilogue, from estimates. Pure."""

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
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.product import factors
from inductor_plugin.problem.target import Target
from inductor_plugin.template import Candidate

MAX_LOSSLESS = 2
"""How many similarly fast kernels are measured fused when the model predicts neither spills nor fewer
resident blocks. Inductor measures one (``max_epilogue_benchmarked_choices``), which may be one that spills."""
MAX_UNCERTAIN = 2
"""How many kernels that may lose by the epilogue are measured besides. With 1, the best kernel for BERT's
gelu is missed (`benchmarks.fusion.fusions`)."""
DOMINATES = 1.05
"""A kernel that is slower alone by this factor than one that loses nothing by an epilogue does not win
with it: both read and write the same tensors. Medians of one kernel differ by 2 to 3 %."""

_TILE = re.compile(r"\bBLOCK_([MNK])=(\d+)")


@dataclass(frozen=True)
class FusionEstimate:
    """One kernel and an epilogue that may be fused into it.

    Attributes:
        kernel: The kernel without the epilogue.
        epilogue: The epilogue.
        target: The GPU; None where its figures are not known: then the model prunes nothing.
        limits: Limits of the options.
        unfused_us: Time of the kernel alone.
        host_counts: Whether the host launches kernels, instead of a CUDA graph.
    """

    kernel: Kernel
    epilogue: Epilogue
    target: Target | None
    limits: Limits
    unfused_us: float
    host_counts: bool = False

    @cached_property
    def prediction(self) -> FusionPrediction | None:
        """Time and resources before compilation; None where the GPU is not known."""
        return self._predicted(None)

    def why_not(self) -> str | None:
        """Return why the two need not be compiled together, None if they must."""
        return self._why_not(self.prediction)

    def why_not_compiled(self, fused: Resources) -> str | None:
        """Return why the two need not be measured, from the fused kernel's resources; None if they must."""
        return self._why_not(self._predicted(fused))

    @property
    def predicted_lossless(self) -> bool:
        """Whether the model predicts neither spills nor fewer resident blocks than alone."""
        return self.prediction is None or self.prediction.lossless

    def least_ms(self) -> float:
        """Return the least time of the two together in milliseconds; 0 if it is not known.

        That is the time of the kernel alone, less the saving where the epilogue writes fewer bytes.
        """
        if self.target is None:
            return 0.0
        saved_us = fused_extra_us(self.epilogue, self.target).low
        return max(0.0, self.unfused_us + saved_us) / 1e3

    def _predicted(self, compiled: Resources | None) -> FusionPrediction | None:
        if self.target is None:
            return None
        return prune.predict(
            self.kernel,
            self.epilogue,
            self.target,
            self.unfused_us,
            compiled,
            host_counts=self.host_counts,
        )

    def _why_not(self, prediction: FusionPrediction | None) -> str | None:
        if prediction is None:
            return None
        reason = prune.why_not(self.kernel, self.epilogue, prediction)
        return reason or guard_registers(prediction.fused.registers, self.limits)


class Shortlist:
    """Shortlist of kernels to measure with an epilogue; offered fastest first."""

    def __init__(self) -> None:
        """Begin with no kernels."""
        self.kept: dict[str, FusionEstimate] = {}
        self.pruned: dict[str, str] = {}

    def offer(self, name: str, unfused_us: float, estimate: Callable[[], FusionEstimate]) -> None:
        """Keep a kernel, or prune it and record why.

        Args:
            name: Name of the kernel.
            unfused_us: Its time alone.
            estimate: Called only if that time does not rule it out: a warm compile offers each kernel
                of each layer, and an estimate reads the cache.
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
        """Return why a kernel with this time alone cannot win, or None."""
        for faster, estimate in self.kept.items():
            if estimate.predicted_lossless and unfused_us > DOMINATES * estimate.unfused_us:
                return (
                    f"dominated: {faster} takes {estimate.unfused_us:.1f} us alone, "
                    f"this {unfused_us:.1f}, and loses nothing by it"
                )
        return None

    def _enough(self, estimate: FusionEstimate) -> str | None:
        """Return why a kernel need not be measured besides the kernels already kept, or None."""
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
    resources: Resources | None,
) -> Kernel:
    """Return the facts of a Triton kernel without its epilogue.

    Args:
        problem: The product.
        template: Name of its template.
        description: Inductor's description, with the tile: ``BLOCK_M=128, BLOCK_N=64 ...``.
        warps: Warps of a program.
        stages: Loads in flight.
        resources: Its resources as compiled; None where it is not in the cache.
    """
    tile = {name: int(value) for name, value in _TILE.findall(description)}
    a, b = _multiplied(problem)
    known = resources or Resources(None, None, None, None)
    return Kernel(
        template=template,
        tile=(tile.get("M", 16), tile.get("N", 16), tile.get("K", 16)),
        warps=warps,
        threads=known.threads or 0,
        stages=stages,
        registers=known.registers,
        spilled_bytes=known.spills,
        shared_bytes=known.shared_bytes,
        operands=(a.dtype, b.dtype),
        shape=(*problem.output.size[-2:], a.size[-1]),
        persistent="persistent" in template,
    )


def visitor_kernel(problem: Problem, candidate: Candidate) -> Kernel:
    """Return the facts of a CUTLASS kernel before it is compiled."""
    config = candidate.config
    numbers: Any = config.get("tile", (128, 128, 64))
    a, b = _multiplied(problem)
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


def _multiplied(problem: Problem) -> tuple[Operand, Operand]:
    """Return A and B: of a sum of products those of the first, of a convolution the image and the filters."""
    first, second = factors(problem.op) or (0, 1)
    return problem.inputs[first], problem.inputs[second]
