"""Runs the steps that are left, one after the other, and keeps how each went in ``session.json``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.repository import REPOSITORY
from benchmarks.harness.resume import Budget, Rows
from tests.gpu.session import process, step, table
from tests.gpu.session.step import Row, Step, Todo

FILE, LOG = "session.json", "session.log"
END_S = 3.0
"""Seconds of the budget that are kept for ending: the table, and the last processes."""
_SHOWN_LINES = 15
_KEPT_CHARACTERS = 6000

Say = Callable[[str], object]


@dataclass(frozen=True)
class Session:
    """What a session works with.

    Attributes:
        steps: Its steps, in the order in which they tell most.
        results: The folder of ``session.json``, ``session.log`` and what the steps write.
        environment: Variables of the steps.
        sources: Digest of the sources.
        python: The interpreter of the steps, and its options.
        grace_s: Seconds that a step has to end after its limit.
        repository: The folder in which the steps run.
    """

    steps: Sequence[Step]
    results: Path
    environment: Mapping[str, str]
    sources: str
    python: tuple[str, ...] = (sys.executable,)
    grace_s: float = process.GRACE_S
    repository: Path = REPOSITORY


def opened(results: Path, facts: Mapping[str, Any]) -> Rows:
    """Return the rows of earlier sessions in a folder; those of another machine do not count.

    Args:
        results: The folder.
        facts: The machine's: GPU, driver, torch, triton (`benchmarks.harness.resume.SAME`).
    """
    results.mkdir(parents=True, exist_ok=True)
    path = results / FILE
    return Rows(path, facts, (path,), many="steps", key="step")


def by_name(rows: Rows) -> dict[str, Row]:
    """Return the rows by their step."""
    return {row["step"]: row for row in rows.rows}


def run(
    session: Session, rows: Rows, budget: Budget, again: Collection[str] = (), say: Say = print
) -> int:
    """Run what is left until the budget ends, write after each step, and print the table.

    Returns:
        See `step.exit_status`.
    """
    not_begun: dict[str, str] = {}
    stopped = ""
    if pids := process.end_abandoned():
        say(f"Ended what a killed session had left running: {', '.join(map(str, pids))}")
    for each in step.todo(session.steps, by_name(rows), again, session.sources):
        rest_s = budget.rest_s() - END_S
        if stopped or rest_s < each.step.least_s:
            seconds = f"{max(0.0, rest_s):.0f} s of the budget are left"
            not_begun[each.step.name] = stopped or seconds
            continue
        row = _ran(session, rows, each, rest_s, say)
        if each.step.essential and row["status"] != "passed":
            stopped = f"{each.step.name} {row['status']}"
        elif row.get("survivors"):  # what it computes would be in all figures after it
            stopped = f"{each.step.name} cannot be killed: process {row['survivors'][0]}"
    say("")
    for line in table.lines(session.steps, by_name(rows), not_begun, session.sources):
        say(line)
    say(f"Written to {rows.path}; what the steps printed is in {session.results / LOG}.")
    return step.exit_status(session.steps, by_name(rows))


def _ran(session: Session, rows: Rows, each: Todo, rest_s: float, say: Say) -> Row:
    """Run a step, and write its row before and after."""
    name, log = each.step.name, session.results / LOG
    limit_s, whose = step.limit(each.step, rest_s)
    reason = f" ({each.reason})" if each.reason else ""
    say(f"{name}: {each.step.about}, at most {limit_s:.0f} s{reason}")
    row: dict[str, Any] = {"step": name, "status": "running", "limit_s": round(limit_s, 1)}
    row |= {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "sources": session.sources}
    rows.put(row)
    command = (*session.python, *each.arguments)
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"\n=== {name}: {' '.join(command)}\n")
    ended = process.run(
        command,
        limit_s=limit_s,
        log=log,
        folder=session.repository,
        environment=session.environment,
        grace_s=session.grace_s,
    )
    state = step.status(ended.code, whose if ended.code is None else "")
    row |= {"status": state, "seconds": round(ended.seconds, 1), "code": ended.code}
    row |= {"detail": step.detail(ended.output), "left": step.left(ended.output)}
    if ended.survivors:
        row["survivors"] = list(ended.survivors)
    if state != "passed":
        row["output"] = ended.output[-_KEPT_CHARACTERS:]
        for line in ended.output.splitlines()[-_SHOWN_LINES:]:
            say(f"    {line}")
    rows.put(row)
    say(f"  {state} after {ended.seconds:.1f} s {row['detail']}")
    return row


def environment(kernels: Path, repository: Path = REPOSITORY) -> dict[str, str]:
    """Return the variables of the steps: this checkout first, one kernel cache for all.

    Args:
        kernels: The cache directory of what the steps build.
        repository: The checkout.
    """
    path = os.pathsep.join(filter(None, (str(repository), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the machine's plugins are not this project's
        "INDUCTOR_PLUGIN_CACHE_DIR": str(kernels),
    }
