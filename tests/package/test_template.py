from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Sequence

import pytest

from inductor_plugin import template as template_module
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.template import Candidate, Failed, Template

SQUARE = Operand((64, 64), (64, 1), "float32", "cpu")
WIDE = Operand((64, 64), (1, 64), "float32", "cpu")


class RowMajor:
    """Runs row-major products, with two tiles."""

    name = "row_major"
    ops = ("mm",)

    def reject(self, problem: Problem) -> str | None:
        stride = problem.inputs[0].stride
        return None if stride[1] == 1 else f"A must be row-major, its strides are {stride}"

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return tuple(
            Candidate(
                template=self.name,
                name=f"row_major_{tile}",
                config={"tile": tile},
                kernel=OpKernel("aten::mm.out", (), ()),
                description=f"tile {tile}",
            )
            for tile in (64, 32)
        )


class NoCandidates:
    name = "incomplete"
    ops = ("mm",)

    def reject(self, problem: Problem) -> str | None:
        return None


def test_a_class_is_a_template_by_what_it_has():
    template: Template = RowMajor()
    assert isinstance(template, Template)
    assert not isinstance(NoCandidates(), Template)


def test_a_rejection_is_a_reason():
    template: Template = RowMajor()
    assert template.reject(Problem("mm", (SQUARE, SQUARE), SQUARE)) is None
    reason = template.reject(Problem("mm", (WIDE, SQUARE), SQUARE))
    assert reason == "A must be row-major, its strides are (1, 64)"


def test_candidates_keep_their_rank():
    names = [
        candidate.name
        for candidate in RowMajor().candidates(Problem("mm", (SQUARE, SQUARE), SQUARE))
    ]
    assert names == ["row_major_64", "row_major_32"]


def test_a_candidate_crosses_the_process_border_and_its_config_is_json():
    candidate = RowMajor().candidates(Problem("mm", (SQUARE, SQUARE), SQUARE))[0]
    assert pickle.loads(pickle.dumps(candidate)) == candidate
    assert json.loads(json.dumps(candidate.config)) == {"tile": 64}


def test_candidates_and_failures_cannot_be_changed():
    candidate = RowMajor().candidates(Problem("mm", (SQUARE, SQUARE), SQUARE))[0]
    for record, name in ((candidate, "name"), (Failed("no space"), "reason")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, "other")


def test_a_template_of_another_package_finds_what_it_needs_in_one_module():
    for name in template_module.__all__:
        assert getattr(template_module, name) is not None
    assert {"Candidate", "Contract", "OpKernel", "Problem"} <= set(template_module.__all__)
    assert template_module.OpKernel is OpKernel
    assert template_module.Problem is Problem
