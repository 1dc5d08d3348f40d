"""The GPU tests of attention, as far as a machine without a GPU can prove them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.harness.forced import decision_for
from inductor_plugin.problem.attention import BACKWARD, FORWARD
from inductor_plugin.templates import BUILTIN
from tests.gpu.forced import attention as attention_forced
from tests.gpu.forced.attention import FAMILIES
from tests.gpu.test_attention import GPU


def test_every_attention_template_has_a_family() -> None:
    on_gpu = [template for template in BUILTIN if getattr(template, "device", "cuda") == "cuda"]
    names = {case.name for case in on_gpu if {FORWARD, BACKWARD} & set(case.ops)}
    # Kernels for packed sequences have names of their own, for each template.
    prefixes = [
        prefix[:-1].replace("_varlen", "") for name in GPU for prefix in FAMILIES[name].prefixes
    ]
    assert names == set(prefixes)


def test_graphs_of_a_family_have_names_of_their_own() -> None:
    for family in FAMILIES.values():
        names = [shape.name for shape in family.shapes]
        assert len(names) == len(set(names))


def test_only_gradients_in_bfloat16_may_be_off_by_more_than_two_percent() -> None:
    for name, family in FAMILIES.items():
        gradients = family.device == "cuda" and any(shape.backward for shape in family.shapes)
        other = 0.1 if name == "cutlass 8 bits" else 0.02
        assert family.accepted == (0.03 if gradients else other), name


def test_a_missing_candidate_is_named() -> None:
    taken: list[str] = []
    decide = decision_for(("triton_attention-",), taken)
    verdict = decide({"attention_flash-1": 1.0}, {"attention_flash-1"}, 1.0)
    assert verdict.winner == "attention_flash-1"
    assert taken == ["none of ['attention_flash-1']"]
    assert (
        decide({"a-1": 1.0, "triton_attention-2": 9.0}, {"a-1"}, 1.0).winner == "triton_attention-2"
    )


# The plugin compiles here with warnings that are no errors in a user's process.
@pytest.mark.filterwarnings("default")
def test_a_forced_attention_runs_forward_and_backward(tmp_path: Path) -> None:
    torch.compiler.reset()
    report = attention_forced.report("math on a CPU", tmp_path)
    graph = report["graphs"]["causal"]
    assert graph["taken"]
    assert all(kernel.startswith("attention_math.") for kernel in graph["taken"]), graph["taken"]
    assert set(graph["errors"]) == {"plain", "lengths"}
    assert all(error < 1e-4 for error in graph["errors"].values()), graph["errors"]
