"""Triton attention kernels on a GPU against the reference in float64. Run on an H200 (FINDINGS.md)."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import Mask
from inductor_plugin.template import Candidate, Template
from inductor_plugin.templates.triton_attention.decode import TritonAttentionDecode
from inductor_plugin.templates.triton_attention.forward import TritonAttention
from tests.support.attention.backward_cases import Case
from tests.support.attention.forward_cases import (
    LSE_TOLERANCE,
    TOLERANCE,
    Trial,
    error_of,
    expected_of,
    operands_of,
)
from tests.support.attention.forward_graph import OP, lowered_by

pytestmark = pytest.mark.gpu

MOST = 12
DIMS = (32, 40, 64, 96, 128, 192, 256)
MASKS = (Mask(), Mask(right=0), Mask(right=0, bottom_right=True), Mask(100, 30, bottom_right=True))
USUAL = Case(1000, 1300, heads=8, kv_heads=2, batch=2, dtype=torch.bfloat16)
CASES: dict[str, Case] = {
    **{f"{dim}, {m}": replace(USUAL, head_dim=dim, mask=m) for dim, m in product(DIMS, MASKS)},
    "float16": replace(USUAL, dtype=torch.float16, by_tokens=True),
    "float32": replace(USUAL, dtype=torch.float32),
    "soft-cap": replace(USUAL, softcap=5.0),
    "bias": replace(USUAL, bias=(1, 8, 1000, 1300)),
    "sequences": replace(USUAL, queries=(500, 0, 33, 700), keys=(20, 9, 0, 900), mask=MASKS[2]),
    "decode": replace(USUAL, queries=1, keys=4000),
    "decode, window": replace(USUAL, queries=4, keys=4001, mask=Mask(900, 0, bottom_right=True)),
    "decode, 256": replace(USUAL, queries=2, keys=3000, head_dim=256, heads=4),
}


@pytest.mark.parametrize("template", [TritonAttention(), TritonAttentionDecode()])
@pytest.mark.parametrize("what", CASES)
def test_every_kernel_is_right(template: Template, what: str, inductor_cache: Path) -> None:
    case = CASES[what]
    trial = Trial(what, case)
    operands = operands_of(trial)
    exact, exact_lse = expected_of(trial, operands)
    del operands["lse"]
    tensors = {name: operand.cuda() for name, operand in operands.items()}
    offered: list[str] = []
    for index in range(MOST):

        def pick(problem: Problem, index: int = index) -> Candidate:
            reason = template.reject(problem)
            if reason is not None:
                pytest.skip(reason)
            candidates = template.candidates(problem)
            offered[:] = [candidate.name for candidate in candidates]
            return candidates[index]

        out, lse = called(case, tensors, pick)
        error, error_lse = error_of(out.cpu(), exact), error_of(lse.cpu(), exact_lse)
        assert error <= 2 * TOLERANCE[case.dtype], f"out of {offered[index]}: {error}"
        assert error_lse <= 10 * LSE_TOLERANCE, f"lse of {offered[index]}: {error_lse}"
        if index + 1 == len(offered):
            return


def called(case: Case, tensors: dict[str, torch.Tensor], pick: Any) -> Any:
    """Compile an attention by one kernel, and call it."""
    mask = case.mask

    def graph(*tensor: torch.Tensor) -> Any:
        there = dict(zip(tensors, tensor, strict=True))
        more = [there.get(name) for name in ("bias", "cu_q", "cu_k")]
        facts = (case.factor, mask.left, mask.right, mask.bottom_right, case.softcap)
        return OP(there["q"], there["k"], there["v"], *more, *facts)

    torch.compiler.reset()
    options: dict[str, Any] = {"max_autotune": True, "fx_graph_cache": False}
    with lowered_by(pick), torch.no_grad():
        return torch.compile(graph, fullgraph=True, options=options)(*tensors.values())
