"""What the benchmark worker asks of the numbers of an attention, without a worker."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import pytest
import torch

from inductor_plugin.worker.child.attention import AttentionVerifier, Rerun
from inductor_plugin.worker.child.operands import build
from tests.support.attention import reference
from tests.support.attention.screening import CAUSAL, aten, candidate, facts_of


@pytest.mark.parametrize("is_library", [True, False], ids=["library", "ours"])
def test_only_a_library_kernel_may_keep_its_lse_a_number_where_an_operand_is_nan(
    is_library: bool,
) -> None:
    """As torch's FlashAttention 2 does; as a rival, too, where another library kernel was traced."""
    facts = facts_of(CAUSAL, "float32")
    kernel = aten(facts) if is_library else candidate(facts, "")
    inputs = [build(spec) for spec in kernel.inputs]
    q, k, v = inputs[:3]

    def run() -> dict[str, torch.Tensor]:
        out, lse = reference.forward(q, k, v, mask=CAUSAL, scale=facts.scale)
        return {"out": out, "lse": lse.nan_to_num(0.0)}

    verifier = AttentionVerifier(facts, kernel.inputs, build)
    reason = verifier.poisoned(Rerun(kernel, inputs, run, library=False))
    assert ("lse is a number where an operand is NaN" in reason) is not is_library
    assert not q.isnan().any()
