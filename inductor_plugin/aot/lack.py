"""What a pack lacks, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inductor_plugin.aot.lower import Lowered
    from inductor_plugin.aot.precompile import PackedKernel


def nothing_compiled(lowered: Sequence[Lowered]) -> str:
    """Return why there is no kernel at all."""
    if not lowered:
        return "the model has no product that is tuned for this GPU; nothing was compiled"
    reasons = {reason for problem in lowered for _, reason in problem.failed}
    reasons = reasons or {f"{n}: {why}" for it in lowered for n, why in it.rejected.items()}
    return f"nothing was compiled: {'; '.join(sorted(reasons)) or 'no template is offered'}"


def warnings_of(lowered: Sequence[Lowered], kernels: Sequence[PackedKernel]) -> list[str]:
    """Return what is missing, or slower than it should be, and why."""
    warnings: list[str] = []
    if not any(kernel.kind == "cutlass" for kernel in kernels):
        reasons = sorted({problem.rejected.get("cutlass", "not asked for") for problem in lowered})
        warnings.append(f"no CUTLASS kernels: {'; '.join(reasons)}")
    spilling = [kernel.name for kernel in kernels if kernel.kind == "cutlass" and kernel.spills]
    warnings += [f"{name} spills registers" for name in spilling]
    plain = [
        kernel.name for kernel in kernels if kernel.kind == "cutlass" and not kernel.instructions
    ]
    warnings += [f"{name} shows no tensor core instruction" for name in plain]
    failed = {name: reason for problem in lowered for name, reason in problem.failed}
    warnings += [f"{name} is not in the pack: {reason}" for name, reason in sorted(failed.items())]
    return warnings
