"""The counters of a cache as Prometheus reads them. Pure.

The form is https://prometheus.io/docs/instrumenting/exposition_formats/ (text format, version 0.0.4); node_exporter's textfile
collector reads it from a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inductor_plugin.cache.folder import ALLOWANCE_PREFIX
from inductor_plugin.cache.report import number, plain_text

_METRICS: Mapping[str, tuple[str, str, str]] = {
    "hits": ("hits_total", "counter", "Problems that had a record."),
    "misses": ("misses_total", "counter", "Problems of which something had to be measured."),
    "removed": (
        "damaged_removed_total",
        "counter",
        "Damaged entries that processes have met and removed.",
    ),
    "damaged": ("damaged", "gauge", "Damaged entries that are there now."),
    "records": ("records", "gauge", "Problems with a record."),
    "environments": ("environments", "gauge", "Environments with records."),
    "kernels": ("kernels", "gauge", "Compiled kernels."),
    "packs": ("packs", "gauge", "Packs that were taken over."),
    "pinned": ("pinned_records", "gauge", "Records that are not evicted."),
    "quarantined": ("quarantined", "gauge", "Candidates that are not tried again."),
    "bytes": ("size_bytes", "gauge", "Size of all entries."),
    "kernel_bytes": ("kernels_size_bytes", "gauge", "Size of the kernels."),
    "limit_bytes": ("limit_bytes", "gauge", "Size above which entries are evicted; 0 for none."),
    "leftovers": ("leftovers", "gauge", "Unfinished files of killed processes."),
    "read_records": ("read_records", "gauge", "Records of the second cache, which is only read."),
    "read_kernels": ("read_kernels", "gauge", "Kernels of the second cache, which is only read."),
    "remote_asked": ("remote_asked_total", "counter", "Records that the remote was asked for."),
    "remote_hits": ("remote_hits_total", "counter", "Those of which the remote knew more."),
    "remote_kernels": ("remote_kernels_total", "counter", "Kernels fetched from the remote."),
    "remote_refused": (
        "remote_refused_total",
        "counter",
        "Kernels that nobody trusted has signed.",
    ),
    "remote_sent": ("remote_sent_total", "counter", "Editions written to the remote."),
    "remote_bytes_read": ("remote_read_bytes_total", "counter", "Bytes read from the remote."),
    "remote_bytes_written": ("remote_written_bytes_total", "counter", "Bytes written to it."),
    "remote_corrupt": ("remote_damaged_total", "counter", "Damaged objects of the remote."),
    "remote_failures": ("remote_failures_total", "counter", "Requests without an answer."),
    "remote_unsent": (
        "remote_unsent_total",
        "counter",
        "Records not written: not in time, or the remote cannot be opened or written.",
    ),
    "remote_full": ("remote_full_total", "counter", "Records that the remote took no more of."),
    "remote_saved_ms": (
        "remote_saved_seconds_total",
        "counter",
        "Compiling and measuring that other machines have done for this one.",
    ),
    "remote_waited_ms": ("remote_waited_seconds_total", "counter", "Waiting for the remote."),
}
"""Of each field of ``stats``: the name of the metric, its type and what it counts. Milliseconds become seconds."""
_ALLOWANCE = (
    "graph_allowance_seconds",
    "gauge",
    "What compiles of an environment have saved up to compare graphs and to measure again; below 0 where that took longer than expected.",
)
"""The same of the fields that are there for each environment, which is a label."""


def metrics(fields: Mapping[str, Any]) -> str:
    """Return the fields of ``stats`` as metrics, each with its help, its type and the cache as a label."""
    cache = f'cache_dir="{_escaped(str(fields["cache_dir"]))}"'
    damaged, present = number(fields.get("corrupt")), number(fields.get("damaged"))
    removed = None if damaged is None else damaged - (present or 0)  # `stats` adds up both
    fields = {**fields, "removed": removed}
    lines: list[str] = []
    for field, (name, kind, about) in _METRICS.items():
        value = number(fields.get(field))
        if value is not None:
            value = value / 1e3 if field.endswith("_ms") else value
            lines += _metric(name, kind, about, {cache: value})
    saved = {
        f'{cache},environment="{_escaped(name.removeprefix(ALLOWANCE_PREFIX))}"': value / 1e3
        for name, each in sorted(fields.items())
        if name.startswith(ALLOWANCE_PREFIX) and (value := number(each)) is not None
    }
    if saved:
        lines += _metric(*_ALLOWANCE, saved)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, about: str, values: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines of a metric, whose values are by their labels."""
    metric = f"inductor_plugin_cache_{name}"
    yield f"# HELP {metric} {about}"
    yield f"# TYPE {metric} {kind}"
    yield from (f"{metric}{{{labels}}} {value}" for labels, value in values.items())


def _escaped(text: str) -> str:
    """Return a path as a label. The format is UTF-8, in lines: what is no text, and what a terminal obeys, is shown as Python does."""
    return plain_text(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
