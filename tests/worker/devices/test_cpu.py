"""What distinguishes CPUs of the same name, and what a worker requests before it runs a kernel on one."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import pytest
import torch

from inductor_plugin.worker.devices import cpu, lookup

pytestmark = pytest.mark.compat


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return the answers to two requests for AMX: True, then False. Each request removes its own."""
    left = [False, True]
    monkeypatch.setattr(torch.cpu, "_init_amx", left.pop)
    return left


def test_a_cpu_with_amx_is_another_environment(answers: list[bool]) -> None:
    machine = cpu._machine.__wrapped__
    with_amx, without = machine(), machine()
    assert with_amx == {**without, "amx": True}
    assert "amx" not in without
    assert not answers


def test_a_worker_requests_amx_when_it_starts(answers: list[bool]) -> None:
    lookup.start("cpu")
    assert answers == [False]
