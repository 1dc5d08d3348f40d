"""Reports of the command line about a cache, as plain values and as text. Pure."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from inductor_plugin.cache.entry import KernelEntry
from inductor_plugin.cache.key import Difference, differences
from inductor_plugin.cache.record import Measured, Record
from inductor_plugin.errors import printable

_SHOWN = 8


@dataclass(frozen=True)
class Outline:
    """The part of a record that is compared with others.

    Attributes:
        digest: Digest of the problem.
        describe: The problem in one line.
        problem: Its fields.
    """

    digest: str
    describe: str
    problem: Mapping[str, Any]


def plain_text(text: str) -> str:
    """Return several lines as `printable` does, with their newlines and tabs."""
    return re.sub(r"[^\n\t]+", lambda match: printable(match[0]), text)


def shown(value: Any) -> Any:
    """Return plain values with every text in them made `printable`, names included."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[Any, Any]", value)
        return {shown(name): shown(inner) for name, inner in fields.items()}
    if isinstance(value, list | tuple):
        return [shown(inner) for inner in cast("Sequence[Any]", value)]
    return value


def columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned columns of `printable` cells; the last is not padded, and nothing is truncated."""
    lines = [list(heads), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    widths[-1] = 0
    padded = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def size_text(size_bytes: int) -> str:
    """Return bytes in a readable unit: ``1.5 MB``."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def time_text(when: float) -> str:
    """Return a time in seconds since 1970 as local date and time; ``-`` for what is none."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    except (OverflowError, ValueError, OSError, TypeError):
        return "-"


def kernel_fields(entry: KernelEntry) -> dict[str, Any]:
    """Return the resources of a kernel as plain values."""
    return {"key": entry.digest, **entry.resources.fields()}


def kernel_text(fields: Mapping[str, Any]) -> str:
    """Return `kernel_fields` as one line, without unknown values."""
    forms = (
        ("registers", "{} registers a thread"),
        ("spills", "{} bytes spilled a thread"),
        ("shared_bytes", "{} bytes of shared memory a block"),
        ("threads", "{} threads a block"),
    )
    texts = [form.format(fields[name]) for name, form in forms if fields[name] is not None]
    return f"{fields['key'][:12]}, " + (
        ", ".join(texts) or "its registers and memory are not known"
    )


def candidates_text(record: Record) -> str:
    """Return every candidate of a record, fastest first, then those that failed."""
    return columns(
        ("", "MEDIAN MS", "IQR MS", "OF BEST", "SAMPLES", "STATUS", "CANDIDATE"),
        [_candidate_row(record, measured, _best(record)) for measured in _ranked(record)],
    )


def explanation(
    record: Record,
    others: Iterable[Outline],
    environments: Mapping[str, Mapping[str, Any]],
    elsewhere: Collection[str],
    kernel: KernelEntry | None = None,
) -> dict[str, Any]:
    """Return why a record's winner won, and what would make the same call a miss, as plain values.

    Args:
        record: The record.
        others: Other records of the same operator in the same environment.
        environments: The fields of each environment, by digest.
        elsewhere: Digests of the environments that have a record of the same problem.
        kernel: The winner's kernel, if it is in the cache.
    """
    near, decision = nearest(record, others), record.valid_decision
    return {
        "key": record.digest,
        "op": record.op,
        "describe": record.describe,
        "environment": record.environment,
        "winner": decision.winner if decision else None,
        "reason": decision.reason if decision else _undecided(record),
        "decided_from": decision.candidates if decision else 0,
        "kernel": kernel and kernel_fields(kernel),
        "candidates": [
            {
                "candidate": measured.candidate,
                "name": measured.name,
                "status": measured.status,
                "median_ms": measured.median_ms,
                "spread_ms": measured.spread_ms,
                "samples": len(measured.samples_ms),
                "reason": measured.reason,
                "description": measured.description,
            }
            for measured in _ranked(record)
        ],
        "rejected": dict(record.rejected),
        "nearest": near
        and {
            "key": near.digest,
            "describe": near.describe,
            "differences": _plain(differences(near.problem, record.problem)),
        },
        "environments": [
            {
                "environment": digest,
                "has_this_problem": digest in elsewhere,
                "differences": _plain(
                    differences(fields, environments.get(record.environment) or {})
                ),
            }
            for digest, fields in environments.items()
            if digest != record.environment
        ],
    }


def giving_up(graph: Record) -> dict[str, str]:
    """Return the record of a graph that gives up a choice, as plain values: its key, what it is, and why it does."""
    reason = graph.decision.reason if graph.decision else ""
    return {"graph": graph.digest, "describe": graph.describe, "reason": reason}


def explanation_text(record: Record, explained: Mapping[str, Any]) -> str:
    """Return an `explanation` as text."""
    explained = shown(explained)
    lines = [
        f"{explained.get('problem', explained['describe'])}   {explained['op']}, key {explained['key'][:12]}",
        f"environment {explained['environment'][:12]}",
        "",
        f"Runs: {explained['winner'] or 'nothing decided'}",
        f"Why:  {explained['reason']}{_decided_from(explained['decided_from'])}",
        *([f"Kernel: {kernel_text(explained['kernel'])}"] if explained["kernel"] else []),
        *(
            f"But:  the library kernel runs in graph {graph['graph'][:12]} ({graph['describe']}), which is slower with it: {graph['reason']}"
            for graph in explained.get("given_up_by", ())
        ),
    ]
    if record.candidates:
        lines += ["", candidates_text(record)]
    if explained["rejected"]:
        lines += ["", "Not offered for this problem, and why:"]
        lines += [f"  {line}" for line in _rejected_text(explained["rejected"]).splitlines()]
    lines += [
        "",
        "A call is a miss if a field of its problem or environment differs from a record's.",
    ]
    near = explained["nearest"]
    if near is None:
        lines.append(f"There is no other record of {explained['op']} in this environment.")
    else:
        lines.append(f"Nearest other problem here, {near['describe']} ({near['key'][:12]}):")
        lines += _difference_lines(near["differences"])
    for other in explained["environments"]:
        has = "also has" if other["has_this_problem"] else "does not have"
        lines.append(f"Environment {other['environment'][:12]} {has} this problem; it differs in:")
        lines += _difference_lines(other["differences"])
    return "\n".join(lines)


def _decided_from(candidates: int) -> str:
    return f" (from {candidates} candidates)" if candidates else ""


def _rejected_text(rejected: Mapping[str, str]) -> str:
    return columns(("TEMPLATE", "REASON"), sorted(rejected.items()))


def nearest(record: Record, others: Iterable[Outline]) -> Outline | None:
    """Return the other record whose problem differs in the fewest fields."""
    return min(
        (other for other in others if other.digest != record.digest),
        key=lambda other: (len(differences(other.problem, record.problem)), other.digest),
        default=None,
    )


def _difference_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"  {row['field']}: {row['left']!r} -> {row['right']!r}" for row in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        lines.append(f"  and {len(rows) - _SHOWN} more")
    return lines or ["  nothing"]


def _plain(changed: Iterable[Difference]) -> list[dict[str, Any]]:
    return [
        {"field": difference.path, "left": difference.left, "right": difference.right}
        for difference in changed
    ]


def _undecided(record: Record) -> str:
    """Return why a record has no decision that is valid."""
    if record.decision is None:
        return "nothing is decided yet"
    winner = record.candidates[record.decision.winner]
    return f"{winner.candidate} was chosen on one machine and is {winner.status} on another; the next compile chooses among the others"


def _ranked(record: Record) -> list[Measured]:
    def rank(measured: Measured) -> tuple[bool, float, str]:
        median = number(measured.median_ms)
        usable = measured.status == "ok" and median is not None
        return not usable, median or 0.0, measured.candidate

    return sorted(record.candidates.values(), key=rank)


def _best(record: Record) -> float:
    measured = record.candidates.values()
    medians = [number(candidate.median_ms) for candidate in measured if candidate.status == "ok"]
    return min((value for value in medians if value is not None), default=0.0)


def _candidate_row(record: Record, measured: Measured, best: float) -> tuple[str, ...]:
    decision = record.valid_decision
    mark = "runs" if decision and decision.winner == measured.candidate else ""
    if decision and decision.library == measured.candidate:
        mark = f"{mark} lib".strip()
    median = number(measured.median_ms)
    slower = f"{median / best:.2f}x" if median and best else "-"
    about = " ".join(text for text in (measured.candidate, measured.description) if text)
    return (
        mark,
        number_text(measured.median_ms),
        number_text(measured.spread_ms),
        slower,
        str(len(measured.samples_ms)),
        f"{measured.status}, noisy" if measured.noisy else measured.status,
        f"{about}: {measured.reason}" if measured.reason else about,
    )


def number(value: object) -> float | None:
    """Return a finite number of a document, None for anything else: no field has to be what it should be."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # 10**400 is a whole number in JSON, and no float
            return value if math.isfinite(value) else None
    return None


def number_text(value: object, unit: str = "") -> str:
    """Return a number of a document with four digits and its unit; ``-`` if it is none."""
    digits = number(value)
    return "-" if digits is None else f"{digits:.4g}{unit}"
