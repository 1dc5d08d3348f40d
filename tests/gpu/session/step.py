"""The steps of a session as data, and the decisions about them: which run, in which order, for how long. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["passed", "failed", "hung", "died", "cut", "running"]
Row: TypeAlias = Mapping[str, Any]

BAD: tuple[Status, ...] = ("failed", "hung", "died")
"""A step that ended with a status, was killed at its own limit, or was ended by a signal."""
ALL = "all"
FIRST = "first"
"""The part whose steps run in every session."""

_SUMMARY = re.compile(r"^summary: (.*)$")
_PYTEST = re.compile(
    r"^=*\s*([\d/]+ (?:passed|failed|skipped|error|deselected|tests collected)\b.*? in [\d.]+s.*?)\s*=*$"
)
_LEFT = re.compile(r"^(\d+) \w+ are left ")


@dataclass(frozen=True)
class Step:
    """One process of a session.

    Attributes:
        name: Its name, which the results keep.
        about: What it is for, in a few words.
        command: Arguments of Python: ``("-m", "pytest", ...)``.
        limit_s: Seconds after which it is killed with all that it started.
        part: ``first``, ``tests`` or ``speed``.
        resume: Arguments with which it leaves out what an earlier run has finished.
        anew: Arguments, instead of those, with which it forgets that.
        least_s: With fewer seconds left it is not begun.
        essential: Whether nothing else runs if it does not pass.
        always: Whether it runs in every session, passed or not.
    """

    name: str
    about: str
    command: tuple[str, ...]
    limit_s: float
    part: str = "tests"
    resume: tuple[str, ...] = ()
    anew: tuple[str, ...] = ()
    least_s: float = 20.0
    essential: bool = False
    always: bool = False


@dataclass(frozen=True)
class Todo:
    """A step that runs, and why.

    Attributes:
        step: The step.
        reason: Why it runs; empty where it has not run yet.
        again: Whether it forgets what an earlier run has finished.
    """

    step: Step
    reason: str = ""
    again: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of Python."""
        return (*self.step.command, *(self.step.anew if self.again else self.step.resume))


def todo(
    steps: Sequence[Step], rows: Mapping[str, Row], again: Collection[str], sources: str
) -> list[Todo]:
    """Return the steps that have to run, in order; what has passed does not, unless it is asked for.

    What has not run or was cut comes first, in the order of the steps, then what goes on, then what failed with the
    same sources: one that hangs keeps the others waiting once only.

    Args:
        steps: The steps of the session.
        rows: The rows of earlier runs, by the step's name.
        again: Names of steps that run although they have passed; `ALL` for every one.
        sources: Digest of the sources.
    """
    ordered: list[tuple[int, Todo]] = []
    for step in steps:
        row = rows.get(step.name)
        if step.name in again or ALL in again:
            ordered.append((0, Todo(step, "asked for", again=True)))
        elif row is None or step.always:
            ordered.append((0, Todo(step)))
        elif row["status"] == "running":
            ordered.append((0, Todo(step, "the last session ended in it")))
        elif row["status"] == "cut":
            ordered.append((0, Todo(step, "the last budget ended in it")))
        elif row["status"] in BAD and row.get("sources") != sources:
            ordered.append((0, Todo(step, f"it {row['status']} with other sources")))
        elif row["status"] in BAD:
            ordered.append((2, Todo(step, f"it {row['status']} before")))
        elif row.get("left"):
            ordered.append((1, Todo(step, f"it goes on: {row['left']} are left")))
    return [each for _, each in sorted(ordered, key=lambda pair: pair[0])]


def limit(step: Step, rest_s: float) -> tuple[float, str]:
    """Return the seconds that a step may take, and whose they are: its own ``limit``, or the ``budget``'s rest."""
    return (step.limit_s, "limit") if step.limit_s <= rest_s else (rest_s, "budget")


def status(code: int | None, stopped: str) -> Status:
    """Return how a step ended.

    Args:
        code: Its exit status, negative for a signal; None if it was killed.
        stopped: ``limit`` or ``budget`` if that was over, empty if it ended by itself.
    """
    if stopped:
        return "hung" if stopped == "limit" else "cut"
    if code is None or code < 0 or code > 128:
        return "died"
    return "failed" if code else "passed"


def detail(output: str) -> str:
    """Return what a step's output says of it in one line: its ``summary:``, or that of pytest; empty if neither."""
    lines = [line.strip() for line in output.splitlines()]
    for pattern in (_SUMMARY, _PYTEST):
        for line in reversed(lines):
            if match := pattern.match(line):
                return match[1]
    return ""


def left(output: str) -> int:
    """Return how many rows a benchmark's budget did not suffice for."""
    for line in reversed(output.splitlines()):
        if match := _LEFT.match(line):
            return int(match[1])
    return 0


def exit_status(steps: Sequence[Step], rows: Mapping[str, Row]) -> int:
    """Return 1 if any step failed, 3 if any has not ended yet or goes on, 0 if all passed whole."""
    values = [rows.get(step.name, {"status": ""}) for step in steps]
    if any(row["status"] in BAD for row in values):
        return 1
    whole = all(row["status"] == "passed" and not row.get("left") for row in values)
    return 0 if whole else 3
