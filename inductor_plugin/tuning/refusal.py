"""Records why a call has only one candidate: without measurements, shown by `explain`.

No counters change, because nothing was tuned. A record that already says this is not rewritten.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from inductor_plugin.cache import Decision, Record, Store
from inductor_plugin.problem import Problem
from inductor_plugin.tuning.task import problem_digest

REASON = "the only candidate there is; nothing was measured"


def remember(
    store: Store, environment: str, problem: Problem, only: str, rejected: Mapping[str, str]
) -> bool:
    """Record why a problem has only one candidate.

    Args:
        store: Where records are kept.
        environment: Digest of the environment in the store.
        problem: The problem.
        only: The candidate that runs.
        rejected: The templates that refused it, and why.

    Returns:
        False if nothing was written because the record already exists.
    """
    digest = problem_digest(problem)
    record = store.record(environment, problem.op, digest)
    if not rejected or (record is not None and _says(record, only, rejected)):
        return False
    now = time.time()
    store.put_record(
        Record(
            environment=environment,
            op=problem.op,
            digest=digest,
            problem=problem.fields(),
            describe=problem.describe(),
            candidates={},
            rejected=dict(rejected),
            # With 0 candidates, it is replaced by any decision between several.
            decision=Decision(
                winner=only,
                library=None,
                reason=REASON,
                margin=1.0,
                speedup=None,
                decided_at=now,
                candidates=0,
            ),
            created=now,
            updated=now,
        )
    )
    return True


def _says(record: Record, only: str, rejected: Mapping[str, str]) -> bool:
    """Return True if a record already contains this, or the measurements of a race."""
    if record.candidates:
        return True
    winner = record.decision.winner if record.decision else None
    return winner == only and record.rejected == rejected
