"""Faults of our own in the arguments of a call (`host_faults`): all are noticed, and all but a few by what the kernel does."""

from __future__ import annotations

from typing import cast

import pytest

from inductor_plugin.errors import KernelError
from inductor_plugin.ops.gemm_abi import GemmOperand, new_call
from inductor_plugin.templates.cutlass.config import GemmConfig
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.machine.schedule import EAGER
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import host_faults, mutations
from tests.emulator.suite.entry import entries
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


@pytest.mark.parametrize("name", host_faults.TRITON)
def test_a_wrong_argument_of_triton_is_noticed(name: str) -> None:
    pytest.importorskip("triton", reason="torch for CPUs comes without Triton")
    assert mutations.host_changes(NO_RUNTIME)[name][0].run() == (str(EAGER), "")


def test_half_a_workspace_is_behind_what_was_planned_and_aligned() -> None:
    call = new_call(workspace=1 << 20, workspace_bytes=1000)
    host_faults.PLANNED["half a workspace, stream-K"][1](call)
    assert (call.workspace, call.workspace_bytes) == ((1 << 20) + 384, 1000)


def test_two_operands_as_large_as_d_are_swapped_with_their_strides_and_no_others() -> None:
    call = new_call()
    for place, (pointer, along_m, along_n) in enumerate(((16, 0, 1), (32, 80, 1), (48, 88, 1))):
        call.operands[place] = GemmOperand(pointer=pointer, along_m=along_m, along_n=along_n)
    host_faults.TREES["operands of an epilogue swapped"][1](call)
    slots = [(slot.pointer, slot.along_m) for slot in call.operands[:4]]
    assert slots == [(16, 0), (48, 88), (32, 80), (None, 0)]


def test_there_are_at_least_twenty_that_are_launched_of_cases_that_exist() -> None:
    assert len(set(LAUNCHED)) == len(LAUNCHED) >= 20
    assert set(NAMES) > CHECKED
    cases, all_cases = {host_faults.case_of(name) for name in NAMES}, entries()
    assert cases <= set(all_cases)
    families = {all_cases[name].family for name in cases}
    assert families == {case.family for case in all_cases.values()}
    schedules = {
        config.schedule
        for name in cases
        if isinstance(config := all_cases[name].config, GemmConfig)
    }
    assert schedules >= {"multistage", "pingpong", "cooperative", "stream_k", "one_sm"}


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
