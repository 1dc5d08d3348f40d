from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.report.page import timeline as module
from inductor_plugin.tuning.report.page.gather import read_json
from inductor_plugin.tuning.report.page.texts import Texts
from inductor_plugin.tuning.report.page.timeline import timeline
from inductor_plugin.tuning.report.trace import MAIN_TRACK, SpanTrace


def written(tmp_path: Path) -> Any:
    """Return the trace of a compile that waits 40 ms for three jobs, of which two are compiled side by side."""
    trace = SpanTrace(str(tmp_path / "trace.json"))
    began = time.perf_counter_ns()

    def at(ms: float) -> int:
        return began + int(ms * 1e6)

    trace.add_parallel("compile", "a", at(0), at(20), problem="mm(1x2)")
    trace.add_parallel("compile", "b", at(10), at(30), problem="mm(1x2)")
    trace.add("measure cpu", "a", at(20), at(25), problem="mm(1x2)", step="screen")
    trace.add(MAIN_TRACK, "wait mm(1x2)", at(0), at(40), problem="mm(1x2)")
    trace.write()
    return read_json(Path(trace.path))


def test_a_trace_becomes_lanes_of_waiting_compiling_and_measuring(tmp_path: Path) -> None:
    texts = Texts()
    known = timeline(written(tmp_path), texts)
    names: list[str] = [texts.values[lane["name"]] for lane in known["lanes"]]
    assert names == ["waiting", "compile 1", "compile 2", "measure cpu"]
    start, took, kind, name, problem = known["lanes"][2]["spans"][0]
    assert (start, took) == (pytest.approx(10, abs=0.1), pytest.approx(20, abs=0.1))
    assert [texts.values[place] for place in (kind, name, problem)] == ["compile", "b", "mm(1x2)"]
    assert known["span_ms"] == pytest.approx(40, abs=0.1)


def test_time_side_by_side_counts_once_and_its_sum_twice(tmp_path: Path) -> None:
    totals = timeline(written(tmp_path), Texts())["totals"]
    assert totals["compile"]["count"] == 2
    assert totals["compile"]["sum_ms"] == pytest.approx(40, abs=0.1)
    assert totals["compile"]["open_ms"] == pytest.approx(30, abs=0.1)
    assert totals["wait"]["open_ms"] == pytest.approx(40, abs=0.1)


def test_of_too_many_spans_the_longest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 2)
    texts = Texts()
    known = timeline(written(tmp_path), texts)
    assert known["left_out"] == 2
    assert {texts.values[lane["name"]] for lane in known["lanes"]} == {"waiting", "compile 1"}


def test_several_processes_keep_their_lanes_apart(tmp_path: Path) -> None:
    source = written(tmp_path)
    other = [{**event, "pid": event["pid"] + 1} for event in source["traceEvents"]]
    texts = Texts()
    known = timeline({"traceEvents": [*source["traceEvents"], *other]}, texts)
    assert len(known["lanes"]) == 8
    assert all(" · " in texts.values[lane["name"]] for lane in known["lanes"])


@pytest.mark.parametrize(
    "event",
    [3, {}, {"ph": "X"}, {"ph": "X", "ts": "1", "dur": 2}, {"ph": "X", "ts": 1, "dur": -2},
     {"ph": "X", "ts": 1e999, "dur": 2}, {"ph": "M", "args": 3}],
)  # fmt: skip
def test_events_that_are_none_are_left_out(event: Any) -> None:
    assert timeline({"traceEvents": [event]}, Texts())["lanes"] == []


@pytest.mark.parametrize("content", [[], {}, {"traceEvents": 3}, "x"])
def test_another_file_is_no_trace(content: Any) -> None:
    with pytest.raises(CacheError, match="trace_path"):
        timeline(content, Texts())


def test_times_of_a_trace_are_finite_whatever_it_says() -> None:
    events = [{"ph": "X", "ts": 0, "dur": 1.7e308, "tid": index} for index in range(2000)]
    totals = timeline({"traceEvents": events}, Texts())["totals"]
    assert totals["compile"]["sum_ms"] == sys.float_info.max
