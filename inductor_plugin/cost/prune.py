"""Fusions that need not be compiled or measured, each with its reason. Pure: no torch, no GPU.

    predict   time and resources of a kernel with an epilogue: from the kernel alone, or as compiled
    why_not   why the fusion is not worth compiling, or measuring

Times and resources are estimates: a fusion is pruned if it is predicted to lose by more than their usual error.
ARCHITECTURE.md says how often that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inductor_plugin.cache import Resources
from inductor_plugin.cost.fusion_time import Span, fused_extra_us, recomputed_us, separate_us
from inductor_plugin.cost.registers import Kernel, Needs, fused_needs, unfused_needs
from inductor_plugin.kernels.resources import SPILL_LIMIT_BYTES
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.target import Target

PREDICTED_SPILLS_BYTES = 2 * SPILL_LIMIT_BYTES
"""Spills per thread above which a kernel is not compiled: of 312 kernels in benchmarks/results/
fusion_prediction.json 42 are pruned rightly and 4 wrongly; with 64 bytes 45 and 7."""
IDLE_COST = 0.5
"""Share of a kernel's time that is lost if all other resident blocks are: load latency is exposed."""
BUSY_BLOCKS = 4
"""Blocks on a multiprocessor that hide all latency; Inductor's own rule has the same number."""


@dataclass(frozen=True)
class FusionPrediction:
    """Predicted time and resources of a kernel with an epilogue fused into it.

    Attributes:
        alone: Resources of the kernel without it.
        fused: Resources with it.
        unfused_us: Time of the kernel alone; 0 where it is not known.
        separate_us: Time of the epilogue as a separate kernel.
        fused_extra_us: Extra time of the product with it, for the bytes moved and the computation.
        idle_us: Extra time because fewer blocks are resident.
        compiled: Whether ``fused`` is as reported by the compiler.
    """

    alone: Needs
    fused: Needs
    unfused_us: float
    separate_us: Span
    fused_extra_us: Span
    idle_us: float
    compiled: bool

    @property
    def lossless(self) -> bool:
        """Whether the kernel loses nothing: no spills that matter, as many resident blocks as alone."""
        few = self.fused.spilled_bytes <= SPILL_LIMIT_BYTES
        return few and self.fused.blocks >= self.alone.blocks


def predict(
    kernel: Kernel,
    epilogue: Epilogue,
    target: Target,
    unfused_us: float = 0.0,
    compiled: Resources | None = None,
    *,
    host_counts: bool = False,
) -> FusionPrediction:
    """Return the predicted time and resources of a kernel with an epilogue fused into it.

    Args:
        kernel: The kernel alone.
        epilogue: The epilogue that is fused.
        target: The GPU.
        unfused_us: Time of the kernel alone, where measured.
        compiled: Resources of the fused kernel as compiled; those that are None are predicted.
        host_counts: Whether the host launches kernels, instead of a CUDA graph.
    """
    alone = unfused_needs(kernel, target)
    fused = fused_needs(kernel, epilogue, target, alone)
    if compiled is not None:
        fused = _as_compiled(compiled, fused, kernel, target)
    extra = fused_extra_us(epilogue, target)
    if epilogue.position == "prologue":
        again = recomputed_us(kernel, epilogue, target)
        extra = Span(extra.expected + again, extra.low, extra.high + again)
    return FusionPrediction(
        alone=alone,
        fused=fused,
        unfused_us=unfused_us,
        separate_us=separate_us(epilogue, target, host_counts=host_counts),
        fused_extra_us=extra,
        idle_us=_idle_us(kernel, alone, fused, unfused_us),
        compiled=compiled is not None,
    )


def why_not(kernel: Kernel, epilogue: Epilogue, prediction: FusionPrediction) -> str | None:
    """Return why a fusion need not be compiled or, if it is, measured; None if it must be.

    Args:
        kernel: The kernel alone.
        epilogue: The epilogue that is fused.
        prediction: Time and resources of both together.
    """
    return (
        why_not_fusible(kernel, epilogue)
        or _spilling(prediction)
        or _not_fitting(prediction)
        or _not_paid(epilogue, prediction)
    )


def _as_compiled(compiled: Resources, guess: Needs, kernel: Kernel, target: Target) -> Needs:
    registers = guess.registers if compiled.registers is None else compiled.registers
    shared = guess.shared_bytes if compiled.shared_bytes is None else compiled.shared_bytes
    return Needs(
        registers=registers,
        spilled_bytes=guess.spilled_bytes if compiled.spills is None else compiled.spills,
        shared_bytes=shared,
        blocks=target.blocks(
            compiled.threads or kernel.block_threads(target.warp_size), registers, shared
        ),
    )


def _idle_us(kernel: Kernel, alone: Needs, fused: Needs, unfused_us: float) -> float:
    """Return the cost of fewer resident blocks; a persistent kernel has one in any case."""
    before, after = (1, min(fused.blocks, 1)) if kernel.persistent else (alone.blocks, fused.blocks)
    if after >= before or after >= BUSY_BLOCKS:
        return 0.0
    return unfused_us * IDLE_COST * (1 - after / before)


def _spilling(prediction: FusionPrediction) -> str | None:
    """Return why a fused kernel spills more than is accepted and more than alone, or None."""
    limit_bytes = SPILL_LIMIT_BYTES if prediction.compiled else PREDICTED_SPILLS_BYTES
    spilled = prediction.fused.spilled_bytes
    if spilled <= max(limit_bytes, prediction.alone.spilled_bytes):
        return None
    return f"spills: {spilled} bytes a thread, more than {limit_bytes}"


def _not_fitting(prediction: FusionPrediction) -> str | None:
    fused = prediction.fused
    if fused.blocks:
        return None
    return (
        f"shared memory: no block with {fused.registers} registers a thread and "
        f"{fused.shared_bytes} bytes of shared memory fits a multiprocessor"
    )


def _not_paid(epilogue: Epilogue, prediction: FusionPrediction) -> str | None:
    """Return why fusing costs more than it saves, or None."""
    apart, extra, idle = prediction.separate_us, prediction.fused_extra_us, prediction.idle_us
    if epilogue.position == "prologue" and extra.expected > apart.high:
        return (
            f"prologue: computed again for each tile that reads it, {extra.expected:.1f} us; "
            f"apart it takes {apart.high:.1f} us at most"
        )
    if idle + extra.low > apart.high:
        return (
            f"occupancy: {prediction.fused.blocks} blocks a multiprocessor instead of "
            f"{prediction.alone.blocks} cost {idle:.1f} us; apart the epilogue takes "
            f"{apart.high:.1f} us at most"
        )
    return None


def why_not_fusible(kernel: Kernel, epilogue: Epilogue) -> str | None:
    """Return why a kernel cannot have an epilogue at all, or None."""
    rules: tuple[Callable[[Kernel, Epilogue], str | None], ...] = (
        _reduced,
        _viewed,
        _mutating,
        _scattered,
        _before,
    )
    return next((reason for rule in rules if (reason := rule(kernel, epilogue))), None)


def _reduced(kernel: Kernel, epilogue: Epilogue) -> str | None:
    if epilogue.reduction and not kernel.reduces:
        return (
            f"reduction: {epilogue.reduction} needs elements of other tiles, "
            f"and {kernel.template} has its own tile only"
        )
    return None


def _viewed(kernel: Kernel, epilogue: Epilogue) -> str | None:
    if epilogue.product != "full":
        return "view: the product is read in another order than its tiles have"
    odd = [read for read in epilogue.reads if read.pattern == "other"]
    if odd and kernel.kind == "cutlass":
        return f"view: an operand {_called(odd[0].buffer)}is gathered, which EVT cannot load"
    return None


def _mutating(kernel: Kernel, epilogue: Epilogue) -> str | None:
    if epilogue.mutates and not epilogue.atomic:
        return (
            f"mutation: a tensor that was there before is changed, while tiles of {kernel.template} "
            "may still read it"
        )
    return None


def _scattered(kernel: Kernel, epilogue: Epilogue) -> str | None:
    if epilogue.atomic and kernel.kind == "cutlass":
        return f"atomic add: {kernel.template} cannot scatter, EVT has no such store"
    return None


def _before(kernel: Kernel, epilogue: Epilogue) -> str | None:
    if epilogue.position == "prologue" and (kernel.kind == "cutlass" or "tma" in kernel.template):
        return (
            f"prologue: {kernel.template} copies its operands to shared memory without "
            "passing them through registers"
        )
    return None


def _called(buffer: str) -> str:
    return f"({buffer}) " if buffer else ""
