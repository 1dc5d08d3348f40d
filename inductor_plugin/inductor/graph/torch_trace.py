"""Decisions among the structured logs of torch: an artifact of ``TORCH_TRACE``, which tlparse links beside the graph's code."""

from __future__ import annotations

import json
from collections.abc import Sequence

from torch._logging import trace_structured  # pyright: ignore[reportPrivateImportUsage]

from inductor_plugin.tuning.counters import Stats
from inductor_plugin.tuning.report.decisions import decisions
from inductor_plugin.tuning.ticket import TuningTicket

ARTIFACT = "inductor_plugin_decisions"


def write(tickets: Sequence[TuningTicket], spent: Stats) -> None:
    """Write the decisions of the graph that is being compiled; nothing is computed where torch keeps no trace."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": ARTIFACT, "encoding": "json"},
        payload_fn=lambda: json.dumps(decisions(tickets, spent), indent=1),
        expect_trace_id=False,
    )
