"""What tlparse shows of the plugin: the lines that torch's structured log gets."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch._logging import _internal as torch_logging  # pyright: ignore[reportPrivateUsage]

import inductor_plugin
from inductor_plugin.inductor.graph import torch_trace
from inductor_plugin.tuning.counters import Counters, Stats
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.cache.records import measured
from tests.support.candidates import wrong_in_process
from tests.support.fakes.tasks import offer, problem
from tests.support.lowering import Lab


class Lines(logging.Handler):
    """Keeps what torch writes to the file of ``TORCH_TRACE``."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(torch_logging.TorchLogsFormatter(trace=True))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def trace() -> Iterator[Lines]:
    handler = Lines()
    torch_logging.trace_log.addHandler(handler)
    yield handler
    torch_logging.trace_log.removeHandler(handler)


def ticket(**facts: Any) -> TuningTicket:
    offers = (offer("library", library=True), offer("a"), offer("late"))
    rows = {
        "library": measured("library", 2.0),
        "a": measured("a", None, status="hung", reason="r"),
    }
    selection: Any = Selection.__new__(Selection)
    verdict = Verdict("library", "library", "nothing else ran", 1.0, 1.01)
    return TuningTicket(
        selection, problem(), "d" * 64, offers, rows, {"t": "no"}, verdict=verdict, **facts
    )


def test_the_decisions_of_a_graph_are_an_artifact(trace: Lines) -> None:
    torch_trace.write([ticket(hit=True)], Counters().snapshot())
    (head, *payload) = trace.lines[0].splitlines()
    assert json.loads(head[head.index("{") :])["artifact"] == {
        "name": "inductor_plugin_decisions",
        "encoding": "json",
    }
    content = json.loads("\n".join(payload))
    assert content["from_inductor_cache"] is False
    (known,) = content["problems"]
    assert (known["winner"], known["reason"], known["known"]) == (
        "library",
        "nothing else ran",
        True,
    )
    assert (known["speedup"], known["rejected_speedup"]) == (1.0, 1.01)
    assert {row["candidate"]: row["status"] for row in known["candidates"]} == {
        "library": "ok",
        "a": "hung",
    }
    assert (known["not_measured"], known["rejected"]) == (["late"], {"t": "no"})


def artifacts(trace: Lines) -> list[dict[str, Any]]:
    """Return the contents of the plugin's artifacts, in the order in which they were written."""
    named = [line for line in trace.lines if '"inductor_plugin_decisions"' in line.splitlines()[0]]
    return [json.loads(line.partition("\n")[2]) for line in named]


@pytest.mark.compat
def test_a_graph_out_of_inductors_cache_has_its_decisions_too(
    trace: Lines, cache_dir: Path, inductor_cache: Path
) -> None:
    """It is not lowered, so nobody reports it."""
    options: Any = {"cache_dir": str(cache_dir)}
    a = torch.ones(24, 24)
    lab = Lab(wrong_in_process.first, cache_dir)
    with inductor_config.patch(fx_graph_cache=True), wrong_in_process.offered(), lab.open():
        for _ in range(2):
            torch._dynamo.reset()
            torch.compile(torch.mm, backend="inductor_plugin", options=options)(a, a)
    inductor_plugin.disable()
    torch._dynamo.reset()
    lowered, stored = artifacts(trace)
    assert [each["from_inductor_cache"] for each in (lowered, stored)] == [False, True]
    same = ("op", "key", "winner", "library")
    (first,), (second,) = lowered["problems"], stored["problems"]
    assert {name: second[name] for name in same} == {name: first[name] for name in same}
    assert (second["known"], stored["spent"]) == (True, {})


@pytest.mark.claim
def test_tlparse_makes_a_page_that_links_it(trace: Lines, tmp_path: Path) -> None:
    """What a compile writes beside it is in `tests/end_to_end/test_tlparse.py`, which takes longer."""
    torch_trace.write([ticket(hit=True)], Counters().snapshot())
    log, page = tmp_path / "trace.log", tmp_path / "page"
    log.write_text("\n".join(trace.lines) + "\n", encoding="utf-8")
    tlparse = [str(Path(sys.executable).parent / "tlparse"), "--strict", "--no-browser"]
    command = [*tlparse, "-o", str(page), str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    index = (page / "index.html").read_text(encoding="utf-8")
    (link,) = set(re.findall(r'href="([^"]*inductor_plugin_decisions[^"]*)"', index))
    (problem,) = json.loads((page / link).read_text(encoding="utf-8"))["problems"]
    assert (problem["winner"], problem["reason"]) == ("library", "nothing else ran")


def test_without_a_trace_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(torch_logging.trace_log, "handlers", [])
    monkeypatch.setattr(torch_trace, "decisions", fail)
    torch_trace.write([ticket()], Stats())
