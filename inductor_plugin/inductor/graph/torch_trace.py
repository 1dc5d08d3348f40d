"""Decisions among the structured logs of torch: an artifact of ``TORCH_TRACE``, which tlparse links beside the graph's code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch._logging import trace_structured  # pyright: ignore[reportPrivateImportUsage]

from inductor_plugin.tuning.counters import Stats
from inductor_plugin.tuning.report.decisions import decisions, stored_decisions
from inductor_plugin.tuning.ticket import TuningTicket

ARTIFACT = "inductor_plugin_decisions"


def write(tickets: Sequence[TuningTicket], spent: Stats) -> None:
    """Write the decisions of the graph that is being compiled; nothing is computed where torch keeps no trace."""
    _write(lambda: decisions(tickets, spent))


def write_stored(carried: Iterable[tuple[str, str, str | None]]) -> None:
    """Write the decisions of a graph that comes out of Inductor's cache, as of `stored_decisions`."""
    _write(lambda: stored_decisions(carried))


def _write(content: Callable[[], dict[str, Any]]) -> None:
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": ARTIFACT, "encoding": "json"},
        payload_fn=lambda: json.dumps(content(), indent=1),
        expect_trace_id=False,
    )
