"""Which record a kernel in a trace of ``torch.profiler`` is of, and why it runs. Pure.

A chosen kernel is called in a range that names its record (`ops.ranges`). A kernel of a GPU, or of another device, is of the range in
which it was launched.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inductor_plugin.cache import Record
from inductor_plugin.cache.document import is_array, is_object
from inductor_plugin.cache.report import number

_RANGE = re.compile(r"inductor_plugin ([0-9a-f]{12}/[0-9a-f]{12}) (\S+) (.+)", re.DOTALL)
"""A range's name, as `inductor.graph.kernel_ranges` writes it."""
_LAUNCHING = ("_runtime", "_driver")
"""What categories of calls of the host that launch kernels end in: ``cuda_driver``, ``xpu_runtime``, ``privateuse1_runtime``."""
_DIGITS = 12


@dataclass
class ProfiledKernel:
    """The calls of one kernel in a trace.

    Attributes:
        record: Key of its record, ``ENVIRONMENT/KEY``.
        candidate: The candidate that ran.
        problem: The problem in one line.
        runs: Whether the cache's decision is still this candidate; None if the cache has no such record.
        reason: The reason of that decision, None where there is none.
        calls: Number of calls.
        host_ms: Milliseconds of the calls on the host.
        device_ms: Milliseconds of the GPU's kernels that were launched in them, by their names.
    """

    record: str
    candidate: str
    problem: str
    runs: bool | None = None
    reason: str | None = None
    calls: int = 0
    host_ms: float = 0.0
    device_ms: dict[str, float] = field(default_factory=dict[str, float])


def profiled(trace: Any, records: Iterable[Record]) -> list[ProfiledKernel]:
    """Return the kernels of a trace that are of records, those that took the longest first.

    Args:
        trace: The content of a file of ``export_chrome_trace``.
        records: The records of a cache.

    Raises:
        ValueError: It is no trace.
    """
    events: Any = trace.get("traceEvents") if is_object(trace) else None
    if not is_array(events):
        raise ValueError("it has no list `traceEvents`")
    spans = list(_spans(events))
    by_key = {_key(record): record for record in records}
    kernels: dict[str, ProfiledKernel] = {}
    calls: dict[Any, list[tuple[float, float, ProfiledKernel]]] = defaultdict(list)
    for span in spans:
        kernel = _kernel_of(span, kernels, by_key)
        if kernel is not None:
            kernel.calls += 1
            kernel.host_ms += span["dur"] / 1e3
            calls[_thread(span)].append((span["ts"], span["ts"] + span["dur"], kernel))
    _add_device_times(spans, calls)
    took = {
        name: kernel.host_ms + sum(kernel.device_ms.values()) for name, kernel in kernels.items()
    }
    return [kernels[name] for name in sorted(took, key=lambda name: -took[name])]


def _spans(events: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the events with a beginning and a duration, in microseconds, each with its arguments."""
    for event in events:
        if not is_object(event) or not isinstance(event.get("name"), str):
            continue
        if all(number(event.get(name)) is not None for name in ("ts", "dur")):
            arguments: object = event.get("args")
            yield {**event, "args": arguments if is_object(arguments) else {}}


def _key(record: Record) -> str:
    return f"{record.environment[:_DIGITS]}/{record.digest[:_DIGITS]}"


def _kernel_of(
    span: Mapping[str, Any], kernels: dict[str, ProfiledKernel], by_key: Mapping[str, Record]
) -> ProfiledKernel | None:
    """Return the kernel whose call a span is, a new one at its first call; None for other spans."""
    name: str = span["name"]
    named = _RANGE.fullmatch(name)
    if named is None:
        return None
    key, candidate, problem = named.groups()
    record = by_key.get(key)
    decision = record.valid_decision if record else None
    runs = decision.winner == candidate if decision else None
    reason = decision.reason if decision else None
    return kernels.setdefault(name, ProfiledKernel(key, candidate, problem, runs, reason))


def _thread(span: Mapping[str, Any]) -> str:
    return f"{span.get('pid')}/{span.get('tid')}"


def _add_device_times(
    spans: Sequence[Mapping[str, Any]],
    calls: Mapping[Any, list[tuple[float, float, ProfiledKernel]]],
) -> None:
    """Add the GPU's kernels to the calls in which they were launched: both have one correlation."""
    begins: dict[Any, list[float]] = {}
    for thread, own in calls.items():
        own.sort(key=lambda call: call[0])
        begins[thread] = [begin for begin, _, _ in own]
    launched: dict[str, ProfiledKernel] = {}
    for span in spans:
        thread = _thread(span)
        if not str(span.get("cat")).endswith(_LAUNCHING) or thread not in calls:
            continue
        at = bisect_right(begins[thread], span["ts"]) - 1
        if at >= 0 and span["ts"] <= calls[thread][at][1]:
            launched[str(span["args"].get("correlation"))] = calls[thread][at][2]
    for span in spans:
        kernel = launched.get(str(span["args"].get("correlation")))
        if kernel is not None and span.get("cat") == "kernel":
            name: str = span["name"]
            kernel.device_ms[name] = kernel.device_ms.get(name, 0.0) + span["dur"] / 1e3
