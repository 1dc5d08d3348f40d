"""The cases of epilogue trees: each after a Hopper product, and each that a Blackwell product has after one of those."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.emulator.kernels.fused import EPILOGUES, Case
from tests.emulator.suite.cases.configs import COOPERATIVE, FOUR, SM90, SM100, TWO_SM, f16
from tests.support.graphs import epilogues


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
_F16 = ("silu", "gate", "before_and_after", "mask")
_TWO_SM = ("gelu", "gate", "fp8_e4m3")
"""A row, an operand as large as D, a narrower D: after a product of two multiprocessors for each tile."""
_FOUR = "norm"
"""A row and a column: in a cluster of two such pairs."""


def _is_for_blackwell(epilogue: epilogues.Case) -> bool:
    """Return whether an epilogue reads one operand as large as D at most, and D is all that it writes (`limits`)."""
    operands = [torch.zeros(1, 1) for _ in epilogue.operands]
    outputs = len(epilogue.function(torch.zeros(1, 1), *operands)) + epilogue.readers
    return epilogue.operands.count("full") <= 1 and outputs == 1


def _cases() -> dict[str, Tree]:
    result = {f"tree {name}": Tree(Case(SM90, name, 67, 80, 72), "H100") for name in EPILOGUES}
    for name in _BATCHED:
        case = Case(COOPERATIVE, name, 131, 80, 72, batch=3, pad=16)
        result[f"tree {name}, cooperative, batch"] = Tree(case, "H100")
    for name in _F16:
        case = Case(f16(COOPERATIVE), name, 131, 80, 72, pad=16)
        result[f"tree {name}, f16"] = Tree(case, "H200")
    for name, epilogue in EPILOGUES.items():
        if _is_for_blackwell(epilogue):
            result[f"tree {name}, sm100"] = Tree(Case(SM100, name, 131, 80, 72), "B200")
    for name in _TWO_SM:
        result[f"tree {name}, sm100, two SMs"] = Tree(Case(TWO_SM, name, 259, 80, 72), "B200")
    four = Case(FOUR, _FOUR, 259, 400, 104)
    result[f"tree {_FOUR}, sm100, two pairs of SMs"] = Tree(four, "B200")
    return result


CASES = _cases()
"""All by name."""
