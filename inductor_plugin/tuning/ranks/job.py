"""The job that this process is a rank of, as torch.distributed knows it."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.distributed as dist

from inductor_plugin.config import Config, launched_rank
from inductor_plugin.errors import warn_once
from inductor_plugin.tuning.ranks.roll import Roll
from inductor_plugin.tuning.ranks.store import C10dStore, JobStore

logger = logging.getLogger(__name__)

_PREFIX = "inductor_plugin/2"
"""Of all keys, with the number of the protocol: ranks with another one do not read each other. The number of ranks follows."""
_ANSWER_S = 30.0
"""Seconds in which a store answers, at most; a server in Python's process needs none of its threads. One that is busy may take
longer than a rank that is given up is silent: without it a rank decides nothing more."""
_SHARING = ("tune", "cached")
"""Policies that decide by what a rank has measured or remembers; the others decide the same on all ranks by themselves."""
_NO_STORE = (
    "the process group of this job has no store (as with backend mpi), so each rank tunes alone, and ranks may run different kernels; use "
    "init_process_group with gloo or nccl, or tune before the job and run it with policy='pinned'"
)


@dataclass(frozen=True)
class Job:
    """A rank's view of its job.

    Attributes:
        rank: This rank.
        world: Number of ranks.
        store: What they share.
        token: Names this process in claims: a rank may be started again.
        roll: The groups in which this process decides.
    """

    rank: int
    world: int
    store: JobStore
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    roll: Roll = field(default_factory=Roll)


class _Joined(NamedTuple):
    """A job of this process group; nothing here keeps the group or its store alive (see `C10dStore`)."""

    group: weakref.ref[Any]
    job: Job
    close: Callable[[str], None]


class _Membership:
    """The process group of this process, and its job."""

    def __init__(self) -> None:
        """Begin with no job."""
        self._guard = threading.Lock()
        self._joined: _Joined | None = None
        self._inherited: weakref.ref[Any] | None = None

    def job(self) -> Job | None:
        """Return the job of the process group that there is now; None if there is none with two ranks and a store."""
        untyped: Any = dist
        try:
            group: Any = untyped.distributed_c10d._get_default_group()
            store: Any = untyped.distributed_c10d._get_default_store()
            rank, world = untyped.get_rank(), untyped.get_world_size()
            has_others = _has_others()
        except (AttributeError, ValueError, RuntimeError):  # it may be destroyed meanwhile
            return None
        if not has_others or store is None:  # MPI has none
            return None
        with self._guard:
            if self._inherited is not None and self._inherited() is group:
                return None
            here = self._joined
            if here is not None and here.group() is not group:
                here.close("the process group was destroyed")
                here = None
            if here is None:
                own = C10dStore(store, f"{_PREFIX}/{world}/", _ANSWER_S)
                here = _Joined(weakref.ref(group), Job(rank, world, own), own.close)
            self._joined = here
            return here.job

    def after_fork(self) -> None:
        """Be no rank in a forked child: the connections, and the name of the rank, are the parent's."""
        untyped: Any = dist
        self._guard = threading.Lock()
        self._joined = None
        try:
            self._inherited = weakref.ref(untyped.distributed_c10d._get_default_group())
        except (AttributeError, ValueError, RuntimeError):
            self._inherited = None


def current(config: Config) -> Job | None:
    """Return the job with whose ranks a compile agrees; None where it decides alone."""
    if config.ranks == "off" or config.policy not in _SHARING:
        return None
    job = joined()
    if job is None and has_no_store():
        warn_once(logger, _NO_STORE)
    return job


def joined() -> Job | None:
    """Return the job of this process; None where it has none, or one without a store."""
    is_member = dist.is_available() and dist.is_initialized()
    return _MEMBERSHIP.job() if is_member else None


def has_no_store() -> bool:
    """Return whether this process has other ranks, in a process group without a store."""
    untyped: Any = dist
    try:
        is_member = dist.is_available() and dist.is_initialized() and _has_others()
        return is_member and untyped.distributed_c10d._get_default_store() is None
    except (AttributeError, ValueError, RuntimeError):  # the group may be destroyed meanwhile
        return False


def _has_others() -> bool:
    """Return whether the process group has other ranks; "fake" has one process and the size of many, to compile as if for them."""
    untyped: Any = dist
    return untyped.get_world_size() > 1 and untyped.get_backend() != "fake"


def rank_here() -> int | None:
    """Return the rank of this process: in its process group, else what its launcher says; None without other ranks."""
    untyped: Any = dist
    try:
        is_member = dist.is_available() and dist.is_initialized()
        if is_member and _has_others():
            return int(untyped.get_rank())
    except (AttributeError, ValueError, RuntimeError):  # the group may be destroyed meanwhile
        pass
    return launched_rank()


_MEMBERSHIP = _Membership()
os.register_at_fork(after_in_child=_MEMBERSHIP.after_fork)
