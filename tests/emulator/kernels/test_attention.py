"""The project's CUTLASS attention: its sources, compiler, host code and C interface, on a Hopper GPU that is not there.

The late schedules are the test of two waits that CUTLASS's example lacks, the watched one of a barrier that it lacks, see docs/upstream/hopper_fmha_backward.md.
"""

from __future__ import annotations

import pytest

from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from tests.emulator.kernels import attention
from tests.emulator.kernels.attention import Case
from tests.emulator.machine.schedule import ALL, WATCHED, Schedule
from tests.emulator.runtime.runtime import Runtime

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("schedule", [WATCHED, *ALL, RANDOM], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_right(runtime: Runtime, name: str, schedule: Schedule) -> None:
    outcome = attention.run(runtime, CASES[name], target("H100"), schedule)
    for output, error in outcome.errors.items():
        assert error < (1e-3 if output == "lse" else 1e-2), output
    assert outcome.infinities
    assert outcome.changed == 0
    assert [line for launch in outcome.launches for line in launch.unfinished] == []
