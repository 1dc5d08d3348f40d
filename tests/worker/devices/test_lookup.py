"""Which device is described how, and what a wrong description costs."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from inductor_plugin.cache import digest_of
from inductor_plugin.device import DEVICES
from inductor_plugin.errors import DeviceError
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import target
from inductor_plugin.tuning.environment import environment, provenance
from inductor_plugin.worker.devices import lookup
from inductor_plugin.worker.devices.cpu import CPU
from inductor_plugin.worker.devices.cuda import CUDA
from tests.support.fakes.devices import HERE, NPU, described

MATRIX = Operand((8, 8), (8, 1), "float32", "npu")
PRODUCT = Problem("mm", (MATRIX, MATRIX), MATRIX)


def test_cpu_and_cuda_are_built_in() -> None:
    assert lookup.known("cpu") is CPU
    assert lookup.known("cuda:1") is CUDA
    assert [lookup.reference_of(device) for device in ("cpu", "cuda:0")] == ["", ""]
    assert lookup.on_host("cpu")
    assert not lookup.on_host("cuda:0")
    assert lookup.uuid_of("cpu") == ""


def test_a_device_that_nobody_describes_has_a_reason() -> None:
    assert lookup.device_of("npu:0") is None
    assert not lookup.on_host("npu:0")
    assert lookup.uuid_of("npu:0") == lookup.why_scarce("npu:0") == ""
    assert lookup.why_not_tuned("npu:0") == (
        "devices of type 'npu' are left to Inductor alone: no package describes them in the group of entry points "
        "inductor_plugin.devices (docs/own-device.md)"
    )
    with pytest.raises(DeviceError, match="no package describes them"):
        lookup.known("npu:0")


def test_what_is_described_is_the_environment() -> None:
    with described(numerics=lambda: {"rounding": "nearest"}):
        fields = environment("npu:1")
        assert fields["device"] == {"type": "npu", "name": "Fake NPU", "cores": 4}
        assert fields["software"] == {"torch": str(torch.__version__), "npu_driver": "3"}
        assert fields["numerics"]["rounding"] == "nearest"
        assert len(digest_of(fields)) == 64
        assert provenance("npu:1")["watts"] == 5
        assert lookup.why_not_tuned("npu:1") is None
        assert lookup.reference_of("npu:1").startswith(HERE)


def raises(*_: object) -> Any:
    raise ValueError("no driver")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"facts": raises}, r"facts\('npu:0'\) raised ValueError: no driver"),
        ({"facts": lambda _: {"cores": 4}}, r"facts\('npu:0'\) has no text `name`: {'cores': 4}"),
        ({"facts": lambda _: None}, "facts returned a NoneType, no dict"),
        ({"facts": lambda _: {"name": torch.device("cpu")}}, "which is no JSON"),
        ({"facts": lambda _: {"name": "x", "limits": {1: 2}}}, "which is no JSON"),
        ({"versions": raises}, r"versions\(\) raised ValueError: no driver"),
        ({"versions": lambda: {"driver": object()}}, "versions has 'driver'"),
        ({"numerics": lambda: [1]}, "numerics returned a list, no dict"),
    ],
)
def test_a_wrong_description_is_an_error_that_names_the_package(
    fields: dict[str, Any], said: str
) -> None:
    with described(**fields), pytest.raises(DeviceError, match=said) as raised:
        environment("npu:0")
    assert str(raised.value).startswith("device 'npu' (registered as ")


def test_facts_are_asked_once_a_device() -> None:
    asked: list[str] = []

    def counted(device: str) -> dict[str, Any]:
        asked.append(device)
        return {"name": device}

    with described(facts=counted):
        for device in ("npu:0", "npu:1", "npu:0"):
            lookup.facts_of(device)["name"] = "changed by a caller"
        assert lookup.facts_of("npu:0")["name"] == "npu:0"
    assert asked == ["npu:0", "npu:1"]


def test_what_a_record_can_do_without_does_not_fail(caplog: pytest.LogCaptureFixture) -> None:
    with (
        described(conditions=raises, turn=raises, scarcity=raises),
        caplog.at_level(logging.WARNING),
    ):
        assert lookup.conditions_of("npu:0") == {}
        assert lookup.uuid_of("npu:0") == "npu-0"
        assert lookup.why_scarce("npu:0") == ""
        assert lookup.uuid_of("npu:0") == "npu-0"
    assert len(caplog.records) == 3


def test_turns_are_named_by_the_device_or_by_its_index() -> None:
    with described():
        assert [lookup.uuid_of(device) for device in ("npu", "npu:3")] == ["npu-0", "npu-3"]
    with described(turn=lambda _: ""):
        assert lookup.uuid_of("npu:0") == ""
    with described(turn=lambda device: f"card of {device}"):
        assert lookup.uuid_of("npu:0") == "card_of_npu_0"  # the name of a file


def test_a_target_is_one_or_none() -> None:
    assert lookup.target_of("cpu") is None
    with described():
        assert lookup.target_of("npu:0") is None
    with described(target=lambda _: target("H100")):
        assert lookup.target_of("npu:0") is target("H100")
    with (
        described(target=lambda _: {"name": "x"}),
        pytest.raises(DeviceError, match="is a dict, not a Target"),
    ):
        lookup.target_of("npu:0")


def test_a_device_says_what_may_be_offered() -> None:
    def refusal(problem: Problem, template: str) -> str:
        return f"{template} is not for {problem.op}" if template == "slow" else ""

    with described(refusal=refusal):
        assert lookup.why_not_offered(PRODUCT, "slow") == "slow is not for mm"
        assert lookup.why_not_offered(PRODUCT, "fast") is None
    with described(refusal=raises), pytest.raises(DeviceError, match="refusal"):
        lookup.why_not_offered(PRODUCT, "fast")


def test_an_amd_gpu_is_described_as_hip(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch calls it ``cuda``; where nobody describes it, it is served as before."""
    with described(name="hip", triton=True):
        assert (
            lookup.name_of("cuda:0") == "cuda"
        )  # an NVIDIA GPU, beside an installed package for AMD's
        monkeypatch.setattr(torch.version, "hip", "6.4")
        assert lookup.name_of("cuda:0") == "hip"
        assert lookup.facts_of("cuda:0") == {"type": "cuda", "name": "Fake NPU", "cores": 4}
        assert lookup.is_for_triton("cuda:0")
        assert not lookup.is_nvidia("cuda:0")
        assert lookup.adopt("cuda:0", lookup.reference_of("cuda:0")).triton
    assert lookup.known("cuda:0") is CUDA
    assert not lookup.is_for_triton("cuda:0")
    assert not lookup.is_nvidia("cuda:0")


def test_triton_kernels_are_for_devices_that_say_so() -> None:
    assert lookup.is_for_triton("cuda:0")
    assert lookup.is_nvidia("cuda:0")
    assert not lookup.is_for_triton("cpu")
    assert not lookup.is_for_triton("npu:0")
    with described(triton=True):
        assert lookup.is_for_triton("npu:0")
        assert not lookup.is_nvidia("npu:0")


def test_a_worker_loads_what_the_parent_has_loaded() -> None:
    try:
        assert lookup.adopt("npu:0", f"{HERE}:NPU") is NPU
        assert lookup.known("npu:0") is NPU
    finally:
        DEVICES.unregister("npu")
    assert lookup.adopt("cpu", "") is CPU
    with pytest.raises(DeviceError, match="no package describes them"):
        lookup.adopt("npu:0", "")
