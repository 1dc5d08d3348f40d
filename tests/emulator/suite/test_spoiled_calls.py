"""Faults of our own in the arguments of a call (`host_faults`): all are noticed, and all but a few by what the kernel does."""

from __future__ import annotations

from typing import cast

import pytest

from inductor_plugin.errors import KernelError
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.machine.schedule import EAGER
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import host_faults, mutations
from tests.emulator.suite.cases import heads, products
from tests.emulator.suite.host_faults import CHECKED, NAMES

LAUNCHED = [name for name in NAMES if name not in CHECKED]
NO_RUNTIME = cast("Runtime", None)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHED)
def test_a_call_with_a_wrong_argument_is_taken_and_is_wrong(runtime: Runtime, name: str) -> None:
    try:
        assert not host_faults.right(runtime, name)
    except UnmodelledError:
        raise
    except FaultError:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CHECKED))
def test_a_call_that_host_code_checks_is_refused(runtime: Runtime, name: str) -> None:
    with pytest.raises(KernelError):
        host_faults.right(runtime, name)


def test_there_are_at_least_twenty_that_are_launched_of_cases_that_exist() -> None:
    assert len(set(LAUNCHED)) == len(LAUNCHED) >= 20
    assert set(NAMES) > CHECKED
    cases = {host_faults.case_of(name) for name in NAMES}
    assert cases <= {*products.CASES, *heads.CASES}


@pytest.mark.parametrize(
    ("name", "error", "noticed"),
    [
        (LAUNCHED[0], KernelError("refused"), False),
        (LAUNCHED[0], FaultError("outside"), True),
        (LAUNCHED[0], None, False),
        (min(CHECKED), KernelError("refused"), True),
        (min(CHECKED), None, False),
    ],
)
def test_a_refusal_counts_only_where_the_host_code_checks(
    monkeypatch: pytest.MonkeyPatch, name: str, error: Exception | None, noticed: bool
) -> None:
    def right(_runtime: Runtime, _name: str) -> bool:
        if error is not None:
            raise error
        return True

    monkeypatch.setattr(host_faults, "right", right)
    (change,) = mutations.host_changes(NO_RUNTIME)[name]
    assert change.run() == (str(EAGER) if noticed else "", "")
