"""Lists of records and kernels: their rows as plain values, and as text. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inductor_plugin.cache import report
from inductor_plugin.cache.entry import KernelEntry
from inductor_plugin.cache.record import is_noisy
from inductor_plugin.cache.trust.listing import Voucher
from inductor_plugin.errors import printable


def record_row(fields: Mapping[str, Any], problem: str = "") -> dict[str, Any]:
    """Return one line of the list of records from the fields of its document.

    Args:
        fields: The document.
        problem: The problem in full; the document's own description if it is empty.
    """
    decision: dict[str, Any] = fields["decision"] or {}
    candidates: dict[str, dict[str, Any]] = fields["candidates"]
    winner = decision.get("winner")
    measured = candidates.get(str(winner), {})
    stays = winner is not None and winner == decision.get("library")
    speedup, rejected = (
        report.number(decision.get(name)) for name in ("speedup", "rejected_speedup")
    )
    if stays and rejected is None and speedup != 1.0:  # so wrote an earlier version
        rejected = speedup
    return {
        "key": str(fields["digest"]),
        "op": str(fields["op"]),
        "describe": str(fields["describe"]),
        "problem": problem or str(fields["describe"]),
        "winner": winner,
        "kind": measured.get("kind"),
        "library_stays": stays,
        "median_ms": report.number(measured.get("median_ms")),
        # Of what runs. Where the library kernel stays, the best rival was not faster by the margin.
        "speedup": 1.0 if stays else speedup,
        "rejected_speedup": rejected if stays else None,
        "candidates": len(candidates),
        "environment": str(fields["environment"]),
        "updated": report.number(fields["updated"]) or 0.0,
        "pinned": fields["pinned"] is True,
        "noisy": any(
            is_noisy(
                report.number(row.get("median_ms")),
                report.number(row.get("spread_ms")),
                row.get("provenance"),
            )
            for row in (
                candidates.get(str(decision.get(name)), {}) for name in ("winner", "library")
            )
        ),
    }


def _marks(row: Mapping[str, Any]) -> str:
    return "".join(f" {mark}" for mark in ("pinned", "noisy") if row[mark])


def records_text(rows: Iterable[Mapping[str, Any]], width: int = 0) -> str:
    """Return the list of records as text.

    Args:
        rows: As from `record_row`.
        width: Columns of the terminal: what matters most, the problem wrapped; 0 for everything on one line.
    """
    rows = list(rows)
    if width:
        return _narrow(rows, width)
    heads = ("KEY", "ENVIRONMENT", "UPDATED", "MS", "SPEEDUP", "CANDIDATES", "WINNER", "PROBLEM")
    return report.columns(
        heads,
        (
            (
                row["key"][:12],
                row["environment"][:8],
                report.time_text(row["updated"]),
                report.number_text(row["median_ms"]),
                report.number_text(row["speedup"], "x"),
                f"{row['candidates']}{_marks(row)}",
                f"{row['winner'] or '-'}{' (library)' if row['library_stays'] else ''}",
                row["problem"],
            )
            for row in rows
        ),
    )


def _narrow(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    heads = ("KEY", "MS", "SPEEDUP", "RUNS", "PROBLEM")
    cells = [
        (
            row["key"][:10],
            report.number_text(row["median_ms"]),
            report.number_text(row["speedup"], "x"),
            "library" if row["library_stays"] else str(row["kind"] or "-")[:8],
            printable(f"{row['problem']}{_marks(row)}"),
        )
        for row in rows
    ]
    start = len(report.columns(heads, [(*cell[:-1], "") for cell in cells]).splitlines()[0]) - 7
    wrapped = [textwrap.wrap(cell[-1], max(width - start, 20)) or [""] for cell in cells]
    lines: list[tuple[str, ...]] = []
    for cell, parts in zip(cells, wrapped, strict=True):
        lines += [(*cell[:-1], parts[0]), *(("", "", "", "", f"  {part}") for part in parts[1:])]
    return report.columns(heads, lines)


def kernel_row(entry: KernelEntry, voucher: Voucher) -> dict[str, Any]:
    """Return one line of the list of kernels.

    Args:
        entry: The kernel.
        voucher: Who vouches for it.
    """
    return {
        "key": entry.digest,
        **entry.key.fields(),
        "files": sorted(entry.files),
        "bytes": entry.bytes,
        "registers": entry.resources.registers,
        "spills": entry.resources.spills,
        "shared_bytes": entry.resources.shared_bytes,
        "created": entry.created,
        "vouched": voucher.text(),
        "refusal": voucher.reason or None,
    }


def kernels_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the list of kernels as text."""
    figures = ("REGISTERS", "SPILLS", "SHARED")
    heads = ("KEY", "CREATED", "SIZE", *figures, "TARGET", "VOUCHED", "TEMPLATE")
    return report.columns(
        heads,
        (
            (
                row["key"][:12],
                report.time_text(row["created"]),
                report.size_text(row["bytes"]),
                *(
                    "-" if row[name] is None else str(row[name])
                    for name in ("registers", "spills", "shared_bytes")
                ),
                row["target"],
                row["vouched"],
                _template_text(row["template"], row["config"]),
            )
            for row in rows
        ),
    )


def _template_text(template: str, config: str) -> str:
    """Return a kernel's template and configuration, which may begin with the template's name."""
    return config if config.startswith(template) else f"{template} {config}"
