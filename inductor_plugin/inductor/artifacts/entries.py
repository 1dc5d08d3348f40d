"""Which entries of the cache become artifacts: those that a second process needs to compile the same graphs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from inductor_plugin.cache import Store
from inductor_plugin.cache.transfer import parcel
from inductor_plugin.inductor.artifacts import artifact
from inductor_plugin.inductor.facts.scope import active_config
from inductor_plugin.ops import launch
from inductor_plugin.ops.native import source
from inductor_plugin.tuning.ticket import TuningTicket


def add_decisions(store: Store, environment: str, tickets: Iterable[TuningTicket]) -> None:
    """Record the decisions of a graph, made now or before, and the kernels of their winners.

    Args:
        store: The cache.
        environment: Digest of the environment of the problems in it.
        tickets: The problems.
    """
    for ticket in tickets:
        if ticket.verdict is None or not ticket.measured:
            continue  # nothing is known of it
        add_record(store, environment, ticket.problem.op, ticket.digest)
        winner = ticket.measured.get(ticket.verdict.winner or "")
        if winner is not None and winner.kernel is not None:
            add_kernel(winner.kernel)


def add_record(store: Store, environment: str, op: str, digest: str) -> None:
    """Record a problem's record; it is read when artifacts are saved."""
    read = partial(parcel.of_record, store, environment, op, digest)
    artifact.add(f"{artifact.RECORD}{environment}/{op}/{digest}", read)


def add_kernel(digest: str) -> None:
    """Record a kernel; it is read when artifacts are saved, from the first cache of this process that has it."""
    artifact.add(f"{artifact.KERNEL}{digest}", partial(_kernel, digest))


def add_called(kernel: str) -> None:
    """Record what a call site of generated code needs, which may come from Inductor's cache without a decision.

    Args:
        kernel: ``SYMBOL@DIGEST``; a library that is named by its path is not in a cache.
    """
    config = active_config()
    _, _, digest = kernel.partition("@")
    if config is None or config.cache == "off" or not digest or digest.startswith("/"):
        return
    add_kernel(digest)
    add_kernel(source.key().digest)  # the library of call sites


def _kernel(digest: str) -> bytes | None:
    kernels = (cache.kernel(digest) for cache in launch.opened_caches())
    kernel = next((kernel for kernel in kernels if kernel is not None), None)
    return None if kernel is None else parcel.of_kernel(kernel)
