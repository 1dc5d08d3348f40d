"""Programs of Triton that nobody wrote for the emulator, compiled for three architectures, against float64."""

from __future__ import annotations

import pytest

from inductor_plugin.problem.target import Target

pytest.importorskip("triton", reason="torch for CPUs comes without Triton")

from tests.emulator.held_out import calls
from tests.emulator.held_out.calls import GPUS, PROGRAMS, SCHEDULES


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.arch)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_numbers_of_float64(name: str, gpu: Target) -> None:
    if reason := calls.absent(name, gpu):
        pytest.skip(reason)
    for schedule in SCHEDULES:
        assert calls.error(name, gpu, schedule) <= 1, schedule
