"""By which resources of a cluster nodes with a GPU are known."""

from __future__ import annotations

import json
import shlex

import pytest

from inductor_plugin.worker.farm.resource import reserved, resource_of, resources_of, start_command


@pytest.mark.parametrize(
    ("device", "own", "ray"),
    [
        ("NVIDIA H200", "inductor-plugin:NVIDIA_H200", "accelerator_type:H200"),
        ("NVIDIA H100 80GB HBM3", "inductor-plugin:NVIDIA_H100_80GB_HBM3", "accelerator_type:H100"),
        (
            "NVIDIA A100-SXM4-80GB",
            "inductor-plugin:NVIDIA_A100-SXM4-80GB",
            "accelerator_type:A100",
        ),
        ("Tesla V100-SXM2-16GB", "inductor-plugin:Tesla_V100-SXM2-16GB", "accelerator_type:V100"),
        ("NVIDIA GeForce RTX 4090", "inductor-plugin:NVIDIA_GeForce_RTX_4090", None),
        ("Intel(R) Xeon(R) (model 143)", "inductor-plugin:Intel_R_Xeon_R_model_143", None),
    ],
)
def test_a_gpu_is_known_by_its_own_resource_and_by_rays_where_that_is_sure(
    device: str, own: str, ray: str | None
) -> None:
    assert resource_of(device) == own
    assert resources_of(device) == tuple(filter(None, (own, ray)))


def test_the_command_of_an_operator_is_one_that_a_shell_reads() -> None:
    resource = resource_of("NVIDIA H100 80GB HBM3")
    words = shlex.split(start_command(resource))
    assert json.loads(words[-1].removeprefix("--resources=")) == {resource: 1}


OWN, RAY = resources_of("NVIDIA H200")


@pytest.mark.parametrize(
    ("resources", "on_gpu", "needed"),
    [
        ({"CPU": 8.0, "GPU": 8.0, OWN: 8.0, RAY: 1.0}, True, {OWN: 1.0, "GPU": 1.0}),
        ({"CPU": 8.0, "GPU": 8.0, RAY: 1.0}, True, {"GPU": 1.0}),
        ({"CPU": 8.0, OWN: 1.0}, True, {OWN: 1.0}),
        ({"CPU": 8.0, "GPU": 1.0, OWN: 1.0}, False, {OWN: 1.0}),  # a CPU is measured
        ({"CPU": 8.0, "GPU": 8.0, "accelerator_type:A100": 1.0}, True, {}),
    ],
)
def test_a_gpu_and_what_names_it_are_reserved(
    resources: dict[str, float], needed: dict[str, float], *, on_gpu: bool
) -> None:
    assert reserved(resources, (OWN, RAY), on_gpu=on_gpu) == needed
