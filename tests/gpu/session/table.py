"""The table at the end of a session, and the list of its steps."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from tests.gpu.session.step import BAD, Row, Step

_WIDTH = 150


def lines(
    steps: Sequence[Step], rows: Mapping[str, Row], not_begun: Mapping[str, str], sources: str
) -> list[str]:
    """Return a line for each step, and one with the counts.

    Args:
        steps: The steps.
        rows: How they went, by name; of this session or an earlier one.
        not_begun: Why a step was not begun, by name.
        sources: Digest of the sources; rows of others are marked.
    """
    width = max((len(step.name) for step in steps), default=0)
    shown: list[str] = []
    states: list[str] = []
    for step in steps:
        row = rows.get(step.name)
        state = str(row["status"]) if row else "not run"
        states.append(state)
        notes = [str(row.get("detail", ""))] if row else []
        notes += [not_begun[step.name]] if step.name in not_begun else []
        notes += ["with other sources"] if row and row.get("sources") != sources else []
        seconds = f"{row.get('seconds', 0.0):6.1f} s" if row else " " * 8
        text = f"{step.name:{width}}  {state:7}  {seconds}  {'; '.join(filter(None, notes))}"
        shown.append(text.rstrip()[:_WIDTH])
    names = dict.fromkeys(["passed", *BAD, "cut", "running", "not run"])
    counts = ", ".join(f"{states.count(name)} {name}" for name in names if name in states)
    return [*shown, f"{len(steps)} steps: {counts}"]


def plan_lines(steps: Sequence[Step]) -> list[str]:
    """Return what `--list` prints: each step with its part, its limit and its command."""
    width = max(len(step.name) for step in steps)
    return [
        f"{step.name:{width}}  {step.part:5}  {step.limit_s:4.0f} s  {step.about}\n"
        f"{'':{width}}  python {shlex.join((*step.command, *step.resume))}"
        for step in steps
    ]
