"""The cases of epilogue trees against what can be built: each tree after Hopper's products, and each that Blackwell's have."""

from __future__ import annotations

import pytest

from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.limits import why_not_buildable
from tests.emulator.kernels.fused import EPILOGUES, Case
from tests.emulator.suite.cases.configs import SM90, SM100
from tests.emulator.suite.cases.trees import CASES


@pytest.mark.parametrize("plain", [SM90, SM100], ids=lambda plain: plain.arch)
def test_every_tree_that_can_be_built_after_a_product_has_a_case(plain: GemmConfig) -> None:
    configs = {name: Case(plain, name, 8, 8, 8).config for name in EPILOGUES}
    built = {name for name, config in configs.items() if why_not_buildable(config) is None}
    run = {tree.case.epilogue for tree in CASES.values() if tree.case.plain == plain}
    assert run == built
    assert len(built) == (33 if plain == SM90 else 29)


def test_every_case_of_a_tree_has_a_kernel() -> None:
    reasons = {name: why_not_buildable(tree.case.config) for name, tree in CASES.items()}
    assert {name: reason for name, reason in reasons.items() if reason} == {}


def test_trees_of_blackwell_also_run_on_two_multiprocessors_and_in_a_wider_cluster() -> None:
    two = [tree.case for tree in CASES.values() if tree.case.plain.schedule == "two_sm"]
    assert {case.plain.cluster for case in two} == {(2, 1, 1), (2, 2, 1)}
    kinds = {kind for case in two for kind in case.function.operands}
    assert kinds == {"row", "column", "full", "scalar"}
