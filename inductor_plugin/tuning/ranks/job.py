"""The job that this process is a rank of, as torch.distributed knows it."""

from __future__ import annotations

import secrets
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from inductor_plugin.config import Config
from inductor_plugin.tuning.ranks.store import C10dStore, JobStore

_PREFIX = "inductor_plugin/1/"
"""Of all keys, with the number of the protocol: ranks with another one do not read each other."""
_ANSWER_S = 30.0
"""Seconds in which a store answers, at most; a server in Python's process needs none of its threads."""
_SHARING = ("tune", "cached")
"""Policies that decide by what a rank has measured or remembers; the others decide the same on all ranks by themselves."""

_GUARD = threading.Lock()
_KNOWN: list[tuple[weakref.ref[Any], float, Job]] = []
"""Jobs by their stores, which nothing here keeps alive: see `C10dStore`."""


@dataclass(frozen=True)
class Job:
    """A rank's view of its job.

    Attributes:
        rank: This rank.
        world: Number of ranks.
        store: What they share.
        token: Names this process in claims: a rank may be started again.
    """

    rank: int
    world: int
    store: JobStore
    token: str = field(default_factory=lambda: secrets.token_hex(8))


def current(config: Config) -> Job | None:
    """Return the job with whose ranks a compile agrees; None where it decides alone."""
    return None if config.ranks == "off" or config.policy not in _SHARING else joined(config)


def joined(config: Config) -> Job | None:
    """Return the job of this process; None where it has none, or one without a store.

    Args:
        config: The options, for the time-out.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    untyped: Any = dist
    # "fake" has one process and the size of many: a model is compiled as if for them.
    if untyped.get_world_size() < 2 or untyped.get_backend() == "fake":
        return None
    try:
        store: Any = untyped.distributed_c10d._get_default_store()
    except (AttributeError, ValueError, RuntimeError):
        return None
    if store is None:  # MPI
        return None
    limit_s = min(_ANSWER_S, config.ranks_timeout_s)
    with _GUARD:
        for known, limit, job in _KNOWN:
            if known() is store and limit == limit_s:
                return job
        # Those of a process group that was destroyed are of no use any more.
        _KNOWN[:] = [row for row in _KNOWN if row[0]() is store]
        job = Job(untyped.get_rank(), untyped.get_world_size(), C10dStore(store, _PREFIX, limit_s))
        _KNOWN.append((weakref.ref(store), limit_s, job))
        return job
