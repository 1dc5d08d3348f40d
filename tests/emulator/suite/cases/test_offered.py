"""The cases against what the project offers: no kernel of a kind that none of them runs."""

from __future__ import annotations

import pytest

from inductor_plugin.templates.cutlass.config import Arch, GemmConfig
from inductor_plugin.templates.cutlass.limits import why_not_buildable
from tests.emulator.suite.cases import heads, offered
from tests.emulator.suite.cases.configs import SM90
from tests.emulator.suite.cases.offered import ARCHS
from tests.emulator.suite.cases.products import CASES

CONFIGS = {name: product.case.config for name, product in CASES.items()}


def run_of(arch: Arch) -> list[GemmConfig]:
    return [config for config in CONFIGS.values() if config.arch == arch]


def test_every_case_of_a_product_has_a_kernel() -> None:
    reasons = {name: why_not_buildable(config) for name, config in CONFIGS.items()}
    assert {name: reason for name, reason in reasons.items() if reason} == {}


@pytest.mark.parametrize("arch", ARCHS)
def test_each_two_facts_that_a_product_may_have_meet_in_a_case(arch: Arch) -> None:
    wanted = set[object]().union(*map(offered.pairs, offered.products(arch)))
    run = set[object]().union(*map(offered.pairs, run_of(arch)))
    assert wanted - run == set()
    assert run - wanted == set()
    assert len(wanted) > 80


@pytest.mark.parametrize("arch", ARCHS)
def test_each_cluster_of_a_schedule_has_a_case(arch: Arch) -> None:
    wanted = set(map(offered.clusters, offered.products(arch)))
    assert wanted - set(map(offered.clusters, run_of(arch))) == set()


@pytest.mark.parametrize("arch", ARCHS)
def test_each_alignment_of_a_and_b_has_a_case(arch: Arch) -> None:
    wanted = set[object]().union(*map(offered.alignments, offered.products(arch)))
    run = set[object]().union(*map(offered.alignments, run_of(arch)))
    assert wanted - run == set()


def test_a_pair_that_no_case_has_is_missing() -> None:
    others = [config for config in run_of("sm_90a") if (config.bias, config.order) != ("row", "tt")]
    run = set[object]().union(*map(offered.pairs, others))
    wanted = set[object]().union(*map(offered.pairs, offered.products("sm_90a")))
    assert wanted - run == {(("bias", "row"), ("order", "tt"))}
    assert (("schedule", "pingpong"), ("numbers", "16 bits")) in offered.pairs(SM90)


def test_every_attention_kernel_has_a_case() -> None:
    run = {offered.shape_of(case.config) for case in heads.CASES.values()}
    wanted = offered.heads()
    assert {config.name for config in wanted - run} == set()
    assert {config.name for config in run - wanted} == set()
    assert len(wanted) == 21


def test_both_forward_schedules_also_run_without_lse() -> None:
    without = {case.config.schedule for case in heads.CASES.values() if not case.lse}
    assert without == {"cooperative", "pingpong"}
