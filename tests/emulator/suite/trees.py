"""The cases of epilogue trees: each after a Hopper product, those of one operand and one output after a Blackwell product."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inductor_plugin.templates.cutlass.limits import why_not_buildable
from tests.emulator.kernels.fused import EPILOGUES, Case
from tests.emulator.suite.products import COOPERATIVE, SM90, SM100


@dataclass(frozen=True)
class Tree:
    """A case and where it runs.

    Attributes:
        case: The kernel and its operands.
        gpu: Name of the GPU.
    """

    case: Case
    gpu: str


_BATCHED = ("bias_column", "residual", "gate_two", "scale_tensor")
_BLACKWELL = ("gelu", "norm", "fp8_e4m3", "int8", "gate", "residual", "bias_scalar")
_F16 = ("silu", "gate", "before_and_after", "mask")


def _cases() -> dict[str, Tree]:
    result = {f"tree {name}": Tree(Case(SM90, name, 67, 80, 72), "H100") for name in EPILOGUES}
    for name in _BATCHED:
        case = Case(COOPERATIVE, name, 131, 80, 72, batch=3, pad=16)
        result[f"tree {name}, cooperative, batch"] = Tree(case, "H100")
    half = replace(COOPERATIVE, a="f16", b="f16", c="f16", d="f16")
    for name in _F16:
        result[f"tree {name}, f16"] = Tree(Case(half, name, 131, 80, 72, pad=16), "H200")
    for name in _BLACKWELL:
        result[f"tree {name}, sm100"] = Tree(Case(SM100, name, 131, 80, 72), "B200")
    return result


CASES = _cases()
"""All by name."""


def refusals() -> dict[str, str]:
    """Return the cases of which the project has no kernel, with the reason."""
    reasons = {name: why_not_buildable(tree.case.config) for name, tree in CASES.items()}
    return {name: reason for name, reason in reasons.items() if reason}
