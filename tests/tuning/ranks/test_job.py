"""The job that a process is a rank of, by what torch.distributed says."""

# torch does not export its stores' names.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import os
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from inductor_plugin.config import Config
from inductor_plugin.tuning.ranks import job
from inductor_plugin.tuning.ranks.store import StoreLostError

untyped: Any = job


class Group:
    """A process group."""


class Distributed:
    """What is asked of torch.distributed; a test changes it."""

    def __init__(self) -> None:
        self.store: Any = HashStore()
        self.world, self.backend, self.initialized = 2, "gloo", True
        self.group: Any = Group()
        self.rank = 1
        self.distributed_c10d = SimpleNamespace(
            _get_default_store=lambda: self.store, _get_default_group=lambda: self.group
        )

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialized

    def get_world_size(self) -> int:
        return self.world

    def get_backend(self) -> str:
        return self.backend

    def get_rank(self) -> int:
        return self.rank


@pytest.fixture
def dist(monkeypatch: pytest.MonkeyPatch) -> Distributed:
    distributed = Distributed()
    monkeypatch.setattr(job, "dist", distributed)
    process: Any = untyped._MEMBERSHIP
    begun: Any = untyped._Membership()
    for name, value in begun.__dict__.items():
        monkeypatch.setattr(process, name, value)
    return distributed


def current(**options: Any) -> job.Job | None:
    return job.current(Config.load(options, environ={}))


def test_a_process_has_one_job_for_each_store(dist: Distributed) -> None:
    first = current()
    assert first is not None
    assert (first.rank, first.world) == (1, 2)
    assert current() is first
    dist.store, dist.group = HashStore(), Group()  # initialized again
    later = current()
    assert later is not None
    assert later.token != first.token


def test_a_store_goes_with_its_process_group(dist: Distributed) -> None:
    kept, gone = current(), (weakref.ref(dist.store), weakref.ref(dist.group))
    dist.store = dist.group = None
    assert kept is not None
    assert [each() for each in gone] == [None, None]
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
    assert job.has_no_store() == ("store" in alone)


def test_a_group_without_a_store_is_warned_of_once_where_ranks_would_share(
    dist: Distributed, caplog: pytest.LogCaptureFixture
) -> None:
    """As with MPI: otherwise ranks would run different kernels without a word."""
    dist.store = None
    assert job.joined() is current(ranks="off") is current(policy="build") is None
    assert not caplog.records
    assert job.has_no_store()
    for _ in range(2):
        assert current() is None
    (warning,) = (each.message for each in caplog.records)
    assert "has no store (as with backend mpi), so each rank tunes alone" in warning


@pytest.mark.parametrize(("policy", "shares"), [("tune", True), ("cached", True), ("build", False)])
def test_only_policies_that_decide_by_measurements_share(
    dist: Distributed, policy: str, shares: bool
) -> None:
    assert dist.initialized
    assert (current(policy=policy) is not None) == shares
    assert current(policy=policy, ranks="off") is None


def test_a_process_group_on_the_same_store_is_another_job(dist: Distributed) -> None:
    former = current()
    assert former is not None
    former.store.put("decision/problem", "of the former")
    dist.group, dist.world, dist.rank = Group(), 3, 2
    later = current()
    assert later is not None
    assert (later.rank, later.world) == (2, 3)
    assert later.token != former.token
    assert later.store.get("decision/problem") is None
    with pytest.raises(StoreLostError, match="was destroyed"):
        former.store.get("decision/problem")


def test_a_store_has_its_own_limit_whatever_time_out_ranks_have(
    dist: Distributed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that answers late must not be lost for good because silent ranks are given up early."""
    limits, connect = list[float](), job.C10dStore

    def connected(store: Any, prefix: str, limit_s: float) -> Any:
        limits.append(limit_s)
        return connect(store, prefix, limit_s)

    monkeypatch.setattr(job, "C10dStore", connected)
    jobs = [current(ranks_timeout_s=limit_s) for limit_s in (5, 600)]
    assert dist.initialized
    assert jobs[0] is not None
    assert jobs[1] is jobs[0]  # one process, one connection
    assert limits == [30.0]


def test_a_group_that_is_destroyed_meanwhile_is_no_error(dist: Distributed) -> None:
    def gone() -> None:
        raise ValueError("Default process group has not been initialized")

    vars(dist).update(get_rank=gone)
    assert current() is None


def test_a_forked_child_is_no_rank_before_it_joins_a_group_of_its_own(dist: Distributed) -> None:
    assert current() is not None
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        inherited = current()
        dist.group = Group()
        own = current()
        os.write(write, b"apart" if inherited is None and own is not None else b"joined")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"apart"
    assert current() is not None


@pytest.mark.parametrize(
    ("facts", "launcher", "rank"),
    [
        ({}, None, 1),
        ({"rank": 0}, ("7", "8"), 0),
        ({"store": None}, None, 1),  # MPI has none, and ranks all the same
        ({"world": 1}, None, None),
        ({"world": 1}, ("7", "8"), 7),
        ({"backend": "fake"}, None, None),
        ({"initialized": False}, None, None),
        ({"initialized": False}, ("7", "8"), 7),
    ],
)
def test_the_rank_is_that_of_the_process_group_or_of_the_launcher(
    dist: Distributed,
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any],
    launcher: tuple[str, str] | None,
    rank: int | None,
) -> None:
    for index, name in enumerate(("RANK", "WORLD_SIZE")):
        monkeypatch.delenv(name, raising=False)
        if launcher is not None:
            monkeypatch.setenv(name, launcher[index])
    vars(dist).update(facts)
    assert job.rank_here() == rank
