"""Which node's times may be recorded under which environment."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from inductor_plugin.worker.bench_farm.fit import NodeFacts, why_not, why_not_target

HERE: dict[str, Any] = {
    "device": {
        "type": "cuda",
        "name": "NVIDIA H200",
        "capability": "9.0",
        "multiprocessors": 132,
        "memory_bytes": 150_000,
    },
    "software": {"torch": "2.14.1", "triton": "3.8.0", "driver": "580.1", "cudnn": 91_200},
    "numerics": {"float32_matmul_precision": "highest", "deterministic": False},
}


def node(plugin: str = "1", **changed: Any) -> NodeFacts:
    """Return a node's facts, changed where ``section__field`` says so."""
    environment = copy.deepcopy(HERE)
    for name, value in changed.items():
        section, _, own = name.partition("__")
        environment[section][own] = value
    return NodeFacts("node", plugin, environment)


def test_a_node_with_the_same_environment_fits() -> None:
    assert why_not(HERE, node(), "1") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device__name", "NVIDIA H100"),
        ("device__capability", "10.0"),
        ("device__memory_bytes", 141_000),
        ("device__multiprocessors", 16),
        ("software__torch", "2.13.0"),
        ("software__triton", "3.7.0"),
        ("software__driver", "570.0"),
        ("numerics__deterministic", True),
        ("numerics__cudnn_benchmark", True),  # a switch that is not at its default there alone
        ("device__mig", "1g.18gb"),
    ],
)
def test_a_node_with_another_environment_does_not_and_says_what_differs(
    name: str, value: Any
) -> None:
    reason = why_not(HERE, node(**{name: value}), "1")
    assert str(reason).startswith(f"{name.replace('__', '.')} is {value!r} there and ")


def test_another_version_of_the_plugin_does_not_measure_for_this_one() -> None:
    assert why_not(HERE, node(plugin="2"), "1") == "inductor-plugin is '2' there and '1' here"


def test_a_setting_that_only_this_process_has_is_missed_there() -> None:
    wanted = copy.deepcopy(HERE)
    wanted["numerics"]["blas"] = "cublaslt"
    assert why_not(wanted, node(), "1") == "numerics.blas is None there and 'cublaslt' here"


def test_the_compiler_is_that_of_the_machine_that_compiles() -> None:
    wanted = copy.deepcopy(HERE)
    wanted["software"]["cpp"] = "g++ 12"
    assert why_not(wanted, node(), "1") is None


def test_software_that_only_the_node_has_is_another_environment() -> None:
    extra = node(software__other="3")
    assert why_not(HERE, extra, "1") == "software.other is '3' there and None here"


LOWERED: dict[str, Any] = {
    "device": {**HERE["device"], "memory_bytes": 141_000},
    "software": {**HERE["software"], "driver": "unknown"},
    "numerics": HERE["numerics"],
}


def test_what_a_machine_without_the_gpu_cannot_know_is_the_nodes() -> None:
    assert why_not_target(LOWERED, node(), "1") is None
    assert why_not(LOWERED, node(), "1")  # it does matter where the GPU is here


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device__name", "NVIDIA H100"),
        ("device__capability", "8.0"),
        ("device__multiprocessors", 114),
        ("software__torch", "2.13.0"),
        ("numerics__deterministic", True),
    ],
)
def test_another_gpu_or_other_software_is_not_the_target(name: str, value: Any) -> None:
    reason = why_not_target(LOWERED, node(**{name: value}), "1")
    assert str(reason).startswith(f"{name.replace('__', '.')} is {value!r} there")
