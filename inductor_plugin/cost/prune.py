"""Which fusions need not be compiled or measured, each with its reason. Pure: no torch, no GPU.

    judge            before anything is compiled fused: from the kernel as it is alone
    judge_compiled   after the fused compile: from what it takes now
    guard            limits of the options, whatever the times say

Both times and resources are estimates, so what is pruned is what loses by more than they may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from inductor_plugin.cache import Resources
from inductor_plugin.cost.fusion_time import Span, fused_extra_us, recomputed_us, separate_us
from inductor_plugin.cost.limits import Limits, guard, guard_registers, limits_of
from inductor_plugin.cost.registers import Kernel, Needs, fused_needs, unfused_needs
from inductor_plugin.kernels.resources import SPILL_LIMIT_BYTES
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.target import Target

__all__ = [
    "Keep", "Kernel", "Limits", "Needs", "Prediction", "Prune", "Span", "Verdict",
    "guard", "guard_registers", "judge", "judge_compiled", "limits_of", "predict", "spilling", "unable",
]  # fmt: skip

FORETOLD_SPILLS_BYTES = 2 * SPILL_LIMIT_BYTES
"""Spills per thread above which a kernel is not compiled: of 312 in benchmarks/results/
fusion_prediction.json 42 are pruned rightly and 4 wrongly; with 64 bytes 45 and 7."""
IDLE_COST = 0.5
"""Share of a kernel's time that the loss of all its other blocks costs: loads wait with nothing to do."""
BUSY_BLOCKS = 4
"""As many blocks on a multiprocessor hide all waiting; Inductor's own rule has the same number."""


@dataclass(frozen=True)
class Prediction:
    """What becomes of a kernel with an epilogue fused into it.

    Attributes:
        alone: What the kernel takes without it.
        fused: What it takes with it.
        read_bytes: Bytes read besides those of the product.
        write_bytes: Bytes written, the product's own included where others read it.
        separate_us: The epilogue as a kernel of its own.
        fused_extra_us: How much longer the product takes with it, for what it moves and computes.
        idle_us: How much longer it takes because fewer blocks run at once; None where the time of
            the product is not known.
        estimated: What was estimated because the kernel is not compiled; empty for nothing.
    """

    alone: Needs
    fused: Needs
    read_bytes: int
    write_bytes: int
    separate_us: Span
    fused_extra_us: Span
    idle_us: float | None
    estimated: str = ""

    @property
    def registers(self) -> int:
        """Registers of a thread, fused."""
        return self.fused.registers

    @property
    def spilled_bytes(self) -> int:
        """Bytes a thread spills, fused."""
        return self.fused.spilled_bytes

    @property
    def spills(self) -> bool:
        """Whether it spills, fused."""
        return self.fused.spilled_bytes > 0

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, fused."""
        return self.fused.shared_bytes


@dataclass(frozen=True)
class Keep:
    """The fusion is worth compiling, or measuring."""

    reason: str
    prediction: Prediction | None = None


@dataclass(frozen=True)
class Prune:
    """The fusion is not worth it, or not possible."""

    reason: str
    prediction: Prediction | None = None


Verdict: TypeAlias = Keep | Prune


def predict(
    kernel: Kernel, epilogue: Epilogue, target: Target, unfused_us: float | None = None
) -> Prediction:
    """Return what becomes of a kernel with an epilogue fused into it.

    Args:
        kernel: The kernel alone.
        epilogue: What is fused.
        target: The GPU.
        unfused_us: Time of the kernel alone, where measured.
    """
    alone, fused = unfused_needs(kernel, target), fused_needs(kernel, epilogue, target)
    return _prediction(kernel, epilogue, target, unfused_us, (alone, fused))


def judge(
    kernel: Kernel,
    epilogue: Epilogue,
    target: Target,
    unfused_us: float | None = None,
    best_us: float | None = None,
) -> Verdict:
    """Return whether a fusion is worth compiling, from what is known of the kernel alone.

    Args:
        kernel: The kernel alone.
        epilogue: What is fused.
        target: The GPU.
        unfused_us: Time of the kernel alone, where measured.
        best_us: Time of the best kernel for the product alone, where measured.
    """
    reason = unable(kernel, epilogue)
    if reason is not None:
        return Prune(reason)
    found = predict(kernel, epilogue, target, unfused_us)
    # The registers of a prologue are a rough guess: only its compiled kernel is judged by them.
    foretold = epilogue.position == "epilogue"
    reason = spilling(found, FORETOLD_SPILLS_BYTES) if foretold else None
    return Prune(reason, found) if reason else _priced(epilogue, found, unfused_us, best_us)


def judge_compiled(
    kernel: Kernel,
    fused: Resources,
    epilogue: Epilogue,
    target: Target,
    unfused_us: float | None = None,
    best_us: float | None = None,
) -> Verdict:
    """Return whether a fusion is worth measuring, from what the fused kernel takes.

    Args:
        kernel: The kernel alone.
        fused: What the compiler says of it with the epilogue; what it does not say is predicted.
        epilogue: What is fused.
        target: The GPU.
        unfused_us: Time of the kernel alone, where measured.
        best_us: Time of the best kernel for the product alone, where measured.
    """
    reason = unable(kernel, epilogue)
    if reason is not None:
        return Prune(reason)
    alone, guess = unfused_needs(kernel, target), fused_needs(kernel, epilogue, target)
    registers = guess.registers if fused.registers is None else fused.registers
    shared = guess.shared_bytes if fused.shared_bytes is None else fused.shared_bytes
    real = Needs(
        registers=registers,
        spilled_bytes=guess.spilled_bytes if fused.spills is None else fused.spills,
        shared_bytes=shared,
        blocks=target.blocks(fused.threads or kernel.block_threads, registers, shared),
    )
    found = _prediction(kernel, epilogue, target, unfused_us, (alone, real))
    reason = spilling(found, SPILL_LIMIT_BYTES)
    return Prune(reason, found) if reason else _priced(epilogue, found, unfused_us, best_us)


def spilling(found: Prediction, limit_bytes: int) -> str | None:
    """Return why a fused kernel spills more than is accepted, and more than it did alone, or None."""
    spilled = found.spilled_bytes
    if spilled <= max(limit_bytes, found.alone.spilled_bytes):
        return None
    return f"spills: {spilled} bytes a thread, more than {limit_bytes}"


def unable(kernel: Kernel, epilogue: Epilogue) -> str | None:
    """Return why a kernel cannot have an epilogue at all, or None."""
    rules: tuple[Callable[[Kernel, Epilogue], str | None], ...] = (
        _reduced,
        _viewed,
        _mutating,
        _scattered,
        _before,
    )
    return next((reason for one in rules if (reason := one(kernel, epilogue))), None)


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
    odd = [one for one in epilogue.reads if one.pattern == "other"]
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


def _prediction(
    kernel: Kernel,
    epilogue: Epilogue,
    target: Target,
    unfused_us: float | None,
    needs: tuple[Needs, Needs],
) -> Prediction:
    alone, fused = needs
    extra = fused_extra_us(epilogue, target)
    if epilogue.position == "prologue":
        again = recomputed_us(kernel, epilogue, target)
        extra = Span(extra.expected + again, extra.low, extra.high + again)
    facts = {
        "registers": kernel.registers,
        "spills": kernel.spilled_bytes,
        "shared memory": kernel.shared_bytes,
    }
    own = epilogue.product_bytes if epilogue.readers else 0
    return Prediction(
        alone=alone,
        fused=fused,
        read_bytes=epilogue.read_bytes,
        write_bytes=epilogue.write_bytes + own,
        separate_us=separate_us(epilogue, target),
        fused_extra_us=extra,
        idle_us=_idle_us(kernel, alone, fused, unfused_us),
        estimated=", ".join(name for name, known in facts.items() if known is None),
    )


def _idle_us(kernel: Kernel, alone: Needs, fused: Needs, unfused_us: float | None) -> float | None:
    """Return what it costs that fewer blocks run at once; a persistent kernel starts one anyway."""
    before, after = (1, min(fused.blocks, 1)) if kernel.persistent else (alone.blocks, fused.blocks)
    if after >= before or after >= BUSY_BLOCKS:
        return 0.0
    if unfused_us is None:
        return None
    return unfused_us * IDLE_COST * (1 - after / before)


def _priced(
    epilogue: Epilogue, found: Prediction, unfused_us: float | None, best_us: float | None
) -> Verdict:
    """Return the verdict on a fusion that is possible."""
    fused = found.fused
    if fused.blocks == 0:
        return Prune(
            f"shared memory: no block with {fused.registers} registers a thread and "
            f"{fused.shared_bytes} bytes of shared memory fits a multiprocessor",
            found,
        )
    lost = _hopeless(found, unfused_us, best_us) or _not_paid(epilogue, found)
    if lost is not None:
        return Prune(lost, found)
    return Keep(_worth(epilogue, found), found)


def _hopeless(found: Prediction, unfused_us: float | None, best_us: float | None) -> str | None:
    """Return why a kernel is too slow for any epilogue to help, or None."""
    if unfused_us is None or best_us is None:
        return None
    low, high = unfused_us + found.fused_extra_us.low, best_us + found.separate_us.high
    if low < high:
        return None
    return (
        f"behind: alone it takes {unfused_us:.1f} us, the best kernel {best_us:.1f} us and the "
        f"epilogue apart {found.separate_us.high:.1f} us at most"
    )


def _not_paid(epilogue: Epilogue, found: Prediction) -> str | None:
    """Return why fusing costs more than it saves, or None."""
    apart, extra = found.separate_us, found.fused_extra_us
    if epilogue.position == "prologue" and extra.expected > apart.high:
        return (
            f"prologue: computed again for each tile that reads it, {extra.expected:.1f} us; "
            f"apart it takes {apart.high:.1f} us at most"
        )
    idle = found.idle_us
    if idle is not None and idle + extra.low > apart.high:
        return (
            f"occupancy: {found.fused.blocks} blocks a multiprocessor instead of "
            f"{found.alone.blocks} cost {idle:.1f} us; apart the epilogue takes "
            f"{apart.high:.1f} us at most"
        )
    return None


def _worth(epilogue: Epilogue, found: Prediction) -> str:
    """Return what speaks for a fusion, in the words of its kind."""
    kinds: list[str] = []
    if epilogue.position == "prologue":
        kinds.append("prologue")
    if epilogue.readers:
        kinds.append("several readers: the product is written anyway")
    if any(one.pattern in ("row", "column") for one in epilogue.reads):
        kinds.append("broadcast")
    if any(one.pattern == "other" for one in epilogue.reads):
        kinds.append("an operand in no order")
    if any(one.dtype != epilogue.dtype for one in epilogue.writes):
        kinds.append("cast")
    if epilogue.atomic:
        kinds.append("atomic adds, as many as apart")
    if found.estimated:
        kinds.append(f"{found.estimated} estimated")
    saved = found.separate_us.expected - found.fused_extra_us.expected
    return "; ".join([*kinds, f"it may save {saved:.1f} us"])


def _called(buffer: str) -> str:
    return f"({buffer}) " if buffer else ""
