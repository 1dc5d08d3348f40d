"""The job that a process is a rank of, by what torch.distributed says."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.config import Config
from inductor_plugin.tuning.ranks import job
from tests.support.ranks.simulated import MemoryStore


class Distributed:
    """What is asked of torch.distributed; a test changes it."""

    def __init__(self) -> None:
        self.store: Any = MemoryStore()
        self.world, self.backend, self.initialized = 2, "gloo", True
        self.distributed_c10d = SimpleNamespace(_get_default_store=lambda: self.store)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialized

    def get_world_size(self) -> int:
        return self.world

    def get_backend(self) -> str:
        return self.backend

    def get_rank(self) -> int:
        return 1


@pytest.fixture
def dist(monkeypatch: pytest.MonkeyPatch) -> Distributed:
    distributed = Distributed()
    monkeypatch.setattr(job, "dist", distributed)
    monkeypatch.setattr(job, "_KNOWN", [])
    return distributed


def current(**options: Any) -> job.Job | None:
    return job.current(Config.load(options, environ={}))


def test_a_process_has_one_job_for_each_store(dist: Distributed) -> None:
    first = current()
    assert first is not None
    assert (first.rank, first.world) == (1, 2)
    assert current() is first
    dist.store = MemoryStore()  # another process group
    later = current()
    assert later is not None
    assert later.token != first.token


def test_a_store_goes_with_its_process_group(dist: Distributed) -> None:
    kept, group = current(), weakref.ref(dist.store)
    dist.store = None
    assert kept is not None
    assert group() is None
    assert current() is None


@pytest.mark.parametrize(
    "alone",
    [{"world": 1}, {"backend": "fake"}, {"store": None}, {"initialized": False}],
)
def test_a_process_without_ranks_or_a_store_decides_alone(
    dist: Distributed, alone: dict[str, Any]
) -> None:
    vars(dist).update(alone)
    assert current() is None


@pytest.mark.parametrize(("policy", "shares"), [("tune", True), ("cached", True), ("build", False)])
def test_only_policies_that_decide_by_measurements_share(
    dist: Distributed, policy: str, shares: bool
) -> None:
    assert dist.initialized
    assert (current(policy=policy) is not None) == shares
    assert current(policy=policy, ranks="off") is None
