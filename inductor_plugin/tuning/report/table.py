"""The AUTOTUNE table in Inductor's format, and the plugin's summary line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from inductor_plugin.tuning.counters import Counters, Stats
from inductor_plugin.tuning.ticket import TuningTicket

_SHOWN = 10

NOISY = " (noisy: the samples vary by more than their median)"
"""What follows a timing that other work on the machine was part of."""


def table(ticket: TuningTicket, shown: int = _SHOWN) -> str:
    """Return one problem's table, in the format of Inductor's table (parsers exist for it)."""
    problem = ticket.problem
    lines = [
        f"AUTOTUNE {problem.describe()}",
        "strides: " + ", ".join(str(list(operand.stride)) for operand in problem.inputs),
        "dtypes: " + ", ".join(f"torch.{operand.dtype}" for operand in problem.inputs),
    ]
    measured = [m for m in ticket.measured.values() if m.status == "ok" and m.median_ms is not None]
    measured.sort(key=lambda m: m.median_ms or 0.0)
    best = (measured[0].median_ms or 0.0) if measured else 0.0
    for row in measured[:shown]:
        time_ms = row.median_ms or 0.0
        share = best / time_ms if time_ms else 1.0
        noisy = NOISY if row.noisy else ""
        line = f"  {row.name} {time_ms:.4f} ms {share:.1%} {row.description}".rstrip()
        lines.append(f"{line}{noisy}")
    lines += [
        f"  {row.name} {row.status}: {row.reason}"
        for row in ticket.measured.values()
        if row.status != "ok"
    ]
    verdict = ticket.verdict
    if verdict is not None and verdict.winner is not None:
        source = "known" if ticket.hit else "measured"
        lines.append(f"  -> {verdict.winner} ({source}): {verdict.reason}")
    return "\n".join(lines)


def spent_on(tickets: Sequence[TuningTicket]) -> Stats:
    """Return what was done for the problems of a graph, counted where ``stats()`` counts it."""
    total = Counters()
    for ticket in tickets:
        if ticket.task is not None:
            total.add(**ticket.task.spent.snapshot().to_dict())
    return total.snapshot()


def summary(tickets: Sequence[TuningTicket], spent: Stats) -> str:
    """Return the plugin's summary line at the end of a compile."""
    hits = sum(ticket.hit for ticket in tickets)
    rest = [
        f", {count} {what}"
        for count, what in (
            (sum(map(_quarantined, tickets)), "in quarantine"),
            (sum(map(_not_reached, tickets)), "not reached"),
        )
        if count
    ]
    return (
        f"inductor-plugin: {_count(len(tickets), 'problem')}, {hits} known; "
        f"{_count(spent.compiled, 'kernel')} compiled, "
        f"{_count(spent.benchmarked, 'candidate')} measured, "
        f"{spent.failed} failed{''.join(rest)}; {spent.compile_s:.2f} s compiling, "
        f"{spent.benchmark_s:.2f} s measuring, {spent.wall_s:.2f} s waited for"
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _quarantined(ticket: TuningTicket) -> int:
    """Return how many candidates were left out because they failed before."""
    tried = {entry.candidate_id for entry in ticket.task.entries} if ticket.task else set[str]()
    rows = ticket.measured.items()
    return sum(
        row.status not in ("ok", "skipped", "pruned") and name not in tried for name, row in rows
    )


def _not_reached(ticket: TuningTicket) -> int:
    """Return how many candidates would be measured by the next process."""
    measures = ticket.task is None or ticket.task.measured
    return sum(row.status == "skipped" for row in ticket.measured.values()) if measures else 0
