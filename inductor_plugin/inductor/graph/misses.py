"""The misses of this process: logged when they happen, and kept for ``explain --last``."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from inductor_plugin.cache import Store
from inductor_plugin.config import Config
from inductor_plugin.errors import warn_once
from inductor_plugin.tuning.report.miss import Miss, explained
from inductor_plugin.tuning.ticket import TuningTicket

logger = logging.getLogger(__name__)

_MOST = 1000
"""Misses that are kept of one process and cache, the last ones."""

_GUARD = threading.Lock()
_MISSES: dict[Path, list[Miss]] = {}


def add(ticket: TuningTicket, store: Store, environment: str) -> None:
    """Log in one line why a ticket was a miss, and keep it."""
    problem = ticket.problem
    miss = explained(
        store,
        environment,
        problem.op,
        ticket.digest,
        problem.describe(),
        problem.fields(),
        [offer.candidate_id for offer in ticket.offers],
        ticket.void,
        ticket.selection.policy,
    )
    logger.info("%s", miss.text())
    with _GUARD:
        kept = _MISSES.setdefault(store.root, [])
        kept.append(miss)
        del kept[:-_MOST]


def keep(store: Store, config: Config) -> None:
    """Write the misses of this process into the cache, for ``explain --last``."""
    with _GUARD:
        kept = list(_MISSES.get(store.root, ()))
    if kept:
        store.put_misses(
            {
                "pid": os.getpid(),
                "time": time.time(),
                "program": sys.argv[0] if sys.argv else "",
                "policy": config.policy,
                "misses": [miss.to_dict() for miss in kept],
            }
        )


def warn_of_cached(
    tickets: Sequence[TuningTicket], config: Config, store: Store, environment: str
) -> None:
    """Warn, once a process and cache, of misses for which nothing is measured.

    Args:
        tickets: The problems of a graph on one device.
        config: Its options.
        store: The cache.
        environment: Digest of the device's environment.
    """
    missed = [ticket for ticket in tickets if not ticket.hit]
    if config.policy != "cached" or not missed:
        return
    where = f"{config.cache_dir} has no record of this machine and software"
    if store.has_records(environment):
        where = _where(missed, len(tickets), config.cache_dir)
    warn_once(
        logger,
        f"policy is 'cached', and {where}; library kernels run there; "
        "`inductor-plugin explain --last` says what differs",
        topic=f"cached {config.cache_dir}",
    )


def _where(missed: Sequence[TuningTicket], total: int, cache_dir: Path) -> str:
    """Return how many problems have no record, and how many one that is not used."""
    void = [ticket.void for ticket in missed if ticket.void]
    parts: list[str] = []
    if len(missed) > len(void):
        parts.append(f"{len(missed) - len(void)} of {total} problems have no record in {cache_dir}")
    if void:
        reasons = ", ".join(sorted({why for rows in void for why in rows.values()}))
        parts.append(
            f"{len(void)} of {total} problems have measurements in {cache_dir} that are not used ({reasons})"
        )
    return ", ".join(parts)


def hint_of_freezing() -> None:
    """Say, once a process, why nothing is tuned on a CPU whose weights are not frozen."""
    warn_once(
        logger,
        "nothing was tuned: on a CPU other kernels than the library's need frozen weights; for "
        "inference set TORCHINDUCTOR_FREEZING=1 and compile under torch.no_grad()",
    )
