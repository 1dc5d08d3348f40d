"""Faults of our own in the arguments of a call (`host_faults`): all are noticed."""

from __future__ import annotations

import pytest

from tests.emulator.kernels.mutants import noticed
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import heads, host_faults, products


@pytest.mark.slow
@pytest.mark.parametrize("name", host_faults.PRODUCTS)
def test_a_wrong_argument_of_a_product_is_noticed(runtime: Runtime, name: str) -> None:
    assert noticed(lambda: host_faults.right(runtime, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", host_faults.ATTENTIONS)
def test_a_wrong_argument_of_an_attention_is_noticed(runtime: Runtime, name: str) -> None:
    assert noticed(lambda: host_faults.right(runtime, name))


def test_there_are_at_least_twenty_of_cases_that_exist() -> None:
    assert len(set(host_faults.NAMES)) == len(host_faults.NAMES) >= 20
    cases = {host_faults.case_of(name) for name in host_faults.NAMES}
    assert cases <= {*products.CASES, *heads.CASES}
