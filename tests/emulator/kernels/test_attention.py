"""The project's CUTLASS attention: its sources, compiler, host code and C interface, on a Hopper GPU that is not there.

The late schedules are the test of two waits that CUTLASS's example lacks, the watched one of a barrier that it lacks, see docs/upstream/hopper_fmha_backward.md.
"""

from __future__ import annotations

import pytest
import torch

from inductor_plugin.attention import unfused
from inductor_plugin.attention.check.sample import SAMPLED_ROWS, positions
from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from tests.emulator.kernels import attention
from tests.emulator.kernels.attention import Case
from tests.emulator.machine.schedule import ALL, WATCHED, Schedule
from tests.emulator.runtime.runtime import Runtime

FORWARD = FmhaConfig(False, 128, 64, 64, "bf16")
BACKWARD = FmhaConfig(True, 64, 128, 64, "bf16")
RANDOM = Schedule(late=True, ahead="random", seed=5)

CASES = {
    "forward": Case(FORWARD, 1, 2, 2, 133, 150, 64),
    "narrow heads": Case(FORWARD, 2, 2, 1, 133, 150, 40, spread=True),
    "causal": Case(FORWARD, 1, 4, 2, 200, 200, 64, right=0),
    "window": Case(FORWARD, 1, 2, 1, 200, 333, 64, left=70, right=5, bottom_right=True),
    "rows without keys": Case(FORWARD, 1, 1, 1, 200, 90, 64, right=0, bottom_right=True),
    "backward": Case(BACKWARD, 1, 2, 1, 133, 150, 64),
    "backward, causal and narrow": Case(BACKWARD, 1, 2, 2, 200, 200, 48, right=0, spread=True),
    "backward, many tiles": Case(BACKWARD, 1, 1, 1, 500, 300, 64),
}


def right_outputs(case: Case) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return operands of an attention, and its outputs as a kernel that is right writes them."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"q": case.queries, "k": case.keys, "v": case.keys, "do": case.queries}
    inputs = {
        name: torch.randn(case.batch, case.heads, rows, case.dim, generator=generator).bfloat16()
        for name, rows in sizes.items()
    }
    q, k, v, do = inputs.values()
    mask = attention.facts_of(case).mask
    out, lse = unfused.forward(q, k, v, mask=mask, scale=case.scale)
    if not case.config.backward:
        return inputs, {"out": out.bfloat16(), "lse": lse.float()}
    gradients = unfused.backward(do, q, k, v, mask=mask, scale=case.scale)
    named = {name: getattr(gradients, name).bfloat16() for name in ("dq", "dk", "dv")}
    return inputs, named


@pytest.mark.parametrize(
    ("config", "name"), [(FORWARD, "out"), (FORWARD, "lse"), *((BACKWARD, f"d{x}") for x in "qkv")]
)
@pytest.mark.parametrize("spoil", ["nan", "wrong"])
def test_a_row_that_the_product_does_not_sample_is_judged_too(
    config: FmhaConfig, name: str, spoil: str
) -> None:
    case = Case(config, 1, 2, 2, 200, 200, 64)
    inputs, outputs = right_outputs(case)
    sampled = positions(200, SAMPLED_ROWS // 2)
    between = next(row for row in range(200) if row not in sampled)
    assert attention.share_of(case, inputs, outputs) <= 1
    row = outputs[name][0, 1, between]
    row.copy_(torch.full_like(row, torch.nan) if spoil == "nan" else row * 4)
    assert attention.share_of(case, inputs, outputs) > 1


def test_an_attention_without_lse_is_judged_by_its_output() -> None:
    case = Case(FORWARD, 1, 2, 2, 133, 150, 64, lse=False)
    inputs, outputs = right_outputs(case)
    del outputs["lse"]
    assert "lse" not in attention.facts_of(case).operands
    assert attention.share_of(case, inputs, outputs) <= 1
    outputs["out"][0, 1, 7] *= 4
    assert attention.share_of(case, inputs, outputs) > 1


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [WATCHED, *ALL, RANDOM], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_right(runtime: Runtime, name: str, schedule: Schedule) -> None:
    outcome = attention.run(runtime, CASES[name], target("H100"), schedule)
    for output, error in outcome.errors.items():
        assert error < (1e-3 if output == "lse" else 1e-2), output
    assert outcome.infinities
    assert outcome.changed == 0
    assert [line for launch in outcome.launches for line in launch.unfinished] == []
