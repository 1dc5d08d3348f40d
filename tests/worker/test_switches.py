"""torch's switches: in the key where they are not at their default, and in a worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from inductor_plugin.attention.library import KERNELS
from inductor_plugin.cache import digest_of
from inductor_plugin.config import Config
from inductor_plugin.tuning.environment import numerics, worker_settings
from inductor_plugin.worker import switches
from inductor_plugin.worker.jobs import CallJob
from inductor_plugin.worker.process import WorkerProcess
from inductor_plugin.worker.switches import SWITCHES, Switch
from tests.support.repository import REPOSITORY
from tests.support.worker.switches import SETTABLE, other


@pytest.fixture(autouse=True)
def as_they_were() -> Iterator[None]:
    before = [(switch.name, switch.read()) for switch in SWITCHES]
    yield
    switches.apply(before)


def test_without_any_the_key_is_that_of_earlier_versions() -> None:
    assert set(numerics("cuda:0")) == {
        "float32_matmul_precision",
        "deterministic",
        "cudnn_allow_tf32",
        "fp16_reduced",
        "bf16_reduced",
    }
    assert worker_settings(Config(), "bench", "cuda:0").switches == ()


@pytest.mark.parametrize("switch", SETTABLE, ids=lambda switch: switch.name)
def test_each_is_in_the_key_of_a_gpu_and_in_its_worker(switch: Switch) -> None:
    before, cpu = digest_of(numerics("cuda:0")), numerics("cpu")
    switch.write(other(switch))
    assert numerics("cuda:0")[switch.name] == other(switch)
    assert digest_of(numerics("cuda:0")) != before
    assert numerics("cpu") == cpu
    assert worker_settings(Config(), "bench", "cuda:0").switches == ((switch.name, other(switch)),)
    assert worker_settings(Config(), "bench", "cpu").switches == ()


def test_a_backend_of_attention_that_torch_may_choose_has_a_switch() -> None:
    """Without one, what was measured while the user had switched it off would be the record of all."""
    kernels = (kernel for kernel in KERNELS.values() if kernel.operator.startswith("aten."))
    backends = {kernel.backend for kernel in kernels} - {""}
    assert backends >= {"FLASH", "CUDNN"}
    assert {f"sdpa_{backend.lower()}" for backend in backends} <= {each.name for each in SWITCHES}


def test_a_worker_has_all_of_them() -> None:
    values = tuple((switch.name, other(switch)) for switch in SETTABLE)
    settings = worker_settings(Config(), "bench", "cpu")
    settings = replace(settings, sys_path=(str(REPOSITORY), *sys.path), switches=values)
    worker = WorkerProcess(settings, "worker with switches")
    try:
        assert worker.run(CallJob("inductor_plugin.worker.switches", "differing"), 60.0) == values
    finally:
        worker.close()
