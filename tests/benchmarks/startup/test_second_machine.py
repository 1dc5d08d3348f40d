"""What the benchmark of second machines asks of the remote, and says of its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.startup import second_machine
from benchmarks.startup.second_machine import ALONE, COPY, FILLS, REMOTES
from tests.support.repository import REPOSITORY


class Processes:
    """Stands in for processes: keeps what the server does meanwhile, and the variables of each."""

    def __init__(self, late: str = "", spent: str = "benchmarked") -> None:
        self.server = mock.Mock(environment={"AWS_ENDPOINT_URL": "http://server"})
        self.server.requests.return_value = {"GET": 3}
        self.seen: dict[str, tuple[str, Any]] = {}
        self._late, self._spent = late, spent

    def run(self, variant: str, _device: str, folder: str, variables: Mapping[str, str]) -> Any:
        """Report a compile; each takes a second longer than that before."""
        assert variant == "plugin"
        (Path(folder) / "plugin").mkdir(parents=True, exist_ok=True)
        name = Path(folder).name
        assert " " not in folder  # Inductor's command of g++ is split at blanks
        fault = self.server.fault.call_args
        self.seen[name] = (
            variables.get("INDUCTOR_PLUGIN_REMOTE_URL", ""),
            fault.kwargs if fault else {},
        )
        counts = {"problems": 4, "record_hits": 4, "compiled": 0, "benchmarked": 0}
        if name == self._late.replace(" ", "-"):
            counts[self._spent] = 2
        seconds = float(len(self.seen))
        return {"compile_s": seconds, "process_s": seconds + 1, "error": 0.0, "stats": counts}


def started(processes: Processes, monkeypatch: pytest.MonkeyPatch, out: Path) -> int:
    monkeypatch.setattr(second_machine, "run", processes.run)
    monkeypatch.setattr(second_machine, "s3_server", lambda: nullcontext(processes.server))
    return second_machine.main(["--rounds", "1", "--out", str(out)])


def test_each_second_machine_has_the_remote_of_the_first_and_its_own_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, out = Processes(), tmp_path / "out.json"
    assert started(processes, monkeypatch, out) == 0
    url = processes.seen["first"][0]
    assert url.startswith("s3://")
    assert (processes.seen["alone"][0], processes.seen["copy"][0]) == ("", "")
    for remote in REMOTES:
        address, fault = processes.seen[remote.name.replace(" ", "-")]
        assert address == url
        assert {name: fault.get(name) for name in remote.fault} == remote.fault
    assert processes.server.fault.call_args.kwargs == {}  # the next round begins without
    written = json.loads(out.read_text())
    assert list(written["runs"]) == [ALONE, FILLS, COPY, *(each.name for each in REMOTES)]
    assert written["summary"][COPY]["ratio"] == 3.0
    assert written["summary"][REMOTES[0].name]["process_s"] == 5.0


@pytest.mark.parametrize("spent", ["benchmarked", "compiled", "record_hits"])
@pytest.mark.parametrize(
    ("name", "code"), [(REMOTES[0].name, 1), ("remote answers 500", 0), ("first", 0)]
)
def test_figures_of_a_second_machine_that_compiled_or_measured_are_named(
    name: str,
    code: int,
    spent: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert started(Processes(name, spent), monkeypatch, tmp_path / "out.json") == code
    assert (f"{name}: a second machine compiled" in capsys.readouterr().out) is bool(code)


def test_the_page_has_the_committed_figures() -> None:
    committed = REPOSITORY / "benchmarks/results/second_machine_cpu.json"
    summary = json.loads(committed.read_text(encoding="utf-8"))["summary"]
    near, far, farther, broken, silent = REMOTES
    texts = {
        ALONE: "none",
        FILLS: "empty",
        near.name: "filled by another machine, 0 ms away",
        far.name: "20 ms away",
        farther.name: "100 ms away",
        COPY: "none, with a copy of that machine's cache",
        broken.name: "answers 500",
        silent.name: "does not answer",
    }
    lines = [
        f"| {text} | {row['compile_s']:.1f} s | {row['compiled']:.0f} | {row['benchmarked']:.0f} |"
        for row, text in ((summary[name], text) for name, text in texts.items())
    ]
    assert "\n".join(lines) in (REPOSITORY / "docs/fleet.md").read_text(encoding="utf-8")
