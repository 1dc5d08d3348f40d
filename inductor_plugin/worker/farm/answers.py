"""What a node's answer is worth: the outcomes of a job, or a reason to compile it elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from inductor_plugin.errors import WorkerError, warn_once
from inductor_plugin.worker.failure import one_line
from inductor_plugin.worker.farm.flight import MOST_FAULTS, Flight, skipped
from inductor_plugin.worker.farm.parcel import Delivery, unpacked
from inductor_plugin.worker.farm.refusals import NodeRefusals
from inductor_plugin.worker.jobs import OUT_OF_TIME, Compiled

logger = logging.getLogger(__name__)


def judged(flight: Flight, answer: Delivery, now: float) -> list[Compiled] | Delivery:
    """Return a job's outcomes, with their files where it would have put them; or a refusal, if it is to be compiled elsewhere.

    A node has refused a job, too, if it has skipped kernels for what it lacks, or has sent what cannot be of the job. All kernels of
    the job are compiled again then: together they take little longer than those that are missing.

    Args:
        flight: The job.
        answer: What its node has sent.
        now: ``time.monotonic()``. Once the job's time is over, nothing is compiled again.
    """
    if answer.refusal:
        return answer
    is_late = now >= flight.ends
    try:
        if not is_late:
            _check(answer)
        return unpacked(flight.job, answer)
    except Exception as error:  # noqa: BLE001  whatever a node has sent, somebody waits for the job
        reason = one_line(str(error)) or type(error).__name__
        if not isinstance(error, WorkerError):
            reason = f"what it sent is not kept: {reason}"
        if is_late:
            return skipped(flight.job, f"{answer.host}: {reason}")
        refusal = replace(answer, compiled=(), files={}, refusal=reason, passing=True)
        if isinstance(error, OSError):  # of this machine's disk: no node is at fault
            return replace(refusal, node="")
        flight.faults += 1
        said = f"a node of the farm gets no such jobs for a while: {answer.host}: {reason}"
        warn_once(logger, said, "farm node")
        return refusal


def _check(answer: Delivery) -> None:
    """Check that a node has lacked nothing: what a compiler refuses is not skipped.

    Raises:
        WorkerError: It has.
    """
    for each in answer.compiled:
        if each.status == "skipped" and each.reason != OUT_OF_TIME:
            raise WorkerError(each.reason)


def refuses(
    flight: Flight, answer: Delivery, refusals: NodeRefusals, names: Collection[str], now: float
) -> bool:
    """Keep a refusal, and return whether another node may be tried.

    Args:
        flight: The job.
        answer: Why it is refused, and by whom.
        refusals: Of all jobs.
        names: The nodes; empty if they are not known.
        now: ``time.monotonic()``.
    """
    logger.debug("%s refuses a job: %s", answer.host, answer.refusal)
    is_new = bool(answer.node) and answer.node not in flight.refused
    flight.refused.add(answer.node)
    if answer.node:
        refusals.add(flight.needs, answer.node, now, passing=answer.passing)
        if names:
            refusals.keep({*names, answer.node})
    return is_new and flight.faults < MOST_FAULTS
