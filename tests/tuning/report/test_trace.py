"""The trace that Perfetto reads."""

from __future__ import annotations

import fcntl
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning.report import trace as trace_module
from inductor_plugin.tuning.report.trace import SpanTrace
from tests.support.fakes.waiting import LIMIT_S


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["traceEvents"]


def test_spans_are_written_in_microseconds_on_named_tracks(tmp_path: Path) -> None:
    trace = SpanTrace(str(tmp_path / "t.json"))
    trace.add("compile 1", "k", 5_000, 8_000, problem="mm")
    trace.add("measure cpu", "k", 9_000, 9_500)
    trace.add("compile 1", "l", 9_000, 9_100)
    trace.write()
    names = {e["args"]["name"]: e["tid"] for e in events(tmp_path / "t.json") if e["ph"] == "M"}
    first, second, third = (e for e in events(tmp_path / "t.json") if e["ph"] == "X")
    assert (first["ts"], first["dur"], first["args"]) == (5.0, 3.0, {"problem": "mm"})
    assert first["tid"] == third["tid"] == names["compile 1"]
    assert second["tid"] == names["measure cpu"] != first["tid"]
    assert (first["cat"], second["cat"]) == ("compile", "measure")


def test_a_block_that_fails_is_drawn_too(tmp_path: Path) -> None:
    trace = SpanTrace(str(tmp_path / "t.json"))
    with pytest.raises(ValueError, match="inside"), trace.span("measure cpu", "k"):
        raise ValueError("inside")
    trace.write()
    assert [e["name"] for e in events(tmp_path / "t.json") if e["ph"] == "X"] == ["k"]


def test_without_a_path_nothing_is_collected() -> None:
    trace = SpanTrace()
    with trace.span("measure cpu", "k"):
        pass
    trace.write()
    assert trace._events == []  # pyright: ignore[reportPrivateUsage]


def test_later_graphs_add_to_the_file(tmp_path: Path) -> None:
    trace = SpanTrace(str(tmp_path / "t.json"))
    for name in ("a", "b"):
        trace.add("compile 1", name, 0, 1)
        trace.write()
    assert [e["name"] for e in events(tmp_path / "t.json") if e["ph"] == "X"] == ["a", "b"]


def test_a_process_that_tuned_nothing_leaves_the_file_alone(tmp_path: Path) -> None:
    first = SpanTrace(str(tmp_path / "t.json"))
    first.add("compile 1", "k", 0, 1)
    first.write()
    before = (tmp_path / "t.json").read_bytes()
    SpanTrace(str(tmp_path / "t.json")).write()
    assert (tmp_path / "t.json").read_bytes() == before
    SpanTrace(str(tmp_path / "new.json")).write()
    assert not (tmp_path / "new.json").exists()


def test_processes_add_to_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (11, 12):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        trace = SpanTrace(str(tmp_path / "t.json"))
        for name in ("a", "b"):
            trace.add("compile 1", name, 0, 1)
            trace.write()
    spans = [(e["pid"], e["name"]) for e in events(tmp_path / "t.json") if e["ph"] == "X"]
    assert spans == [(11, "a"), (11, "b"), (12, "a"), (12, "b")]
    processes = [e["pid"] for e in events(tmp_path / "t.json") if e["name"] == "process_name"]
    assert processes == [11, 12]


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", '{"traceEvents": 3}', '{"traceEvents": [3]}']
)
def test_a_file_that_is_no_trace_is_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    trace = SpanTrace(str(path))
    trace.add("compile 1", "k", 0, 1)
    trace.write()
    assert [e["name"] for e in events(path) if e["ph"] == "X"] == ["k"]


def test_a_path_that_cannot_be_written_is_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = SpanTrace(str(tmp_path / "none" / "t.json"))
    for _ in range(2):
        trace.add("compile 1", "k", 0, 1)
        trace.write()
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_a_process_waits_for_another_that_writes_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    first = SpanTrace(str(path))
    first.add("compile 1", "a", 0, 1)
    first.write()
    other = SpanTrace(str(path))
    other._pid = -1  # pyright: ignore[reportPrivateUsage]
    other.add("compile 1", "b", 0, 1)
    writing = threading.Thread(target=other.write)
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        writing.start()
        writing.join(0.05)
        file.seek(0)
        file.truncate()
        file.write(text.replace(b'"a"', b'"c"'))
    writing.join(LIMIT_S)
    assert [e["name"] for e in events(path) if e["ph"] == "X"] == ["c", "b"]


def test_a_file_that_another_process_keeps_for_long_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "_LOCK_S", 0.02)
    path = tmp_path / "t.json"
    trace = SpanTrace(str(path))
    trace.add("compile 1", "a", 0, 1)
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        trace.write()
    assert [e["name"] for e in events(path) if e["ph"] == "X"] == ["a"]


def test_spans_that_overlap_have_tracks_of_their_own_and_later_ones_a_free_track() -> None:
    trace = SpanTrace("t.json")
    for start_ns, end_ns in ((0, 10), (5, 20), (10, 30), (15, 40)):
        trace.add_parallel("compile", "k", start_ns, end_ns)
    assert trace._tracks == {"compile 1": 1, "compile 2": 2, "compile 3": 3}  # pyright: ignore
    tracks = [event["tid"] for event in trace._events]  # pyright: ignore
    assert tracks == [1, 2, 1, 3]
