"""First compile on a machine whose remote has what another machine tuned: seconds, waits, requests, as JSON.

Each row is a process with empty caches, on the model of `benchmarks.startup.cold_warm`: without a remote; with an empty one, which
it fills; with a copy of that machine's kernel cache, and no remote; then second machines, whose remote has it all. The remote is
moto's S3 server on this machine. Its distance is a delay before each answer; one server answers with errors, and one not at all.

    python -m benchmarks.startup.second_machine --rounds 5 --out benchmarks/results/second_machine_cpu.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.startup.cold_warm import machine, run
from inductor_plugin.cache import open_store
from tests.support.remote.s3_server import BUCKET, S3Server, s3_server

ALONE, FILLS, COPY = "no remote", "empty remote", "copied cache, no remote"
_METHODS = ("GET", "HEAD", "PUT")
_COUNTERS = ("remote_asked", "remote_hits", "remote_sent", "remote_bytes_read", "remote_waited_ms")
_SPENT = ("problems", "record_hits", "compiled", "benchmarked")
_LATE_S = 600.0
"""Longer than any process waits."""


@dataclass(frozen=True)
class Remote:
    """The remote of a second machine.

    Attributes:
        name: Its name in the results.
        fault: What the server does with each request. See `tests.support.remote.s3_server`.
    """

    name: str
    fault: Mapping[str, Any] = field(default_factory=dict[str, Any])


REMOTES = (
    Remote("remote 0 ms away"),
    Remote("remote 20 ms away", {"delay_s": 0.02}),
    Remote("remote 100 ms away", {"delay_s": 0.1}),
    Remote("remote answers 500", {"status": 500}),
    Remote("remote does not answer", {"delay_s": _LATE_S}),
)


def main(given: Sequence[str] | None = None) -> int:
    """Run the rounds, print a line for each process and the medians, and write them to ``--out``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup.second_machine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(given)
    runs: dict[str, list[dict[str, Any]]] = {}
    with s3_server() as server:
        for number in range(arguments.rounds):
            for name, report in round_of(server, number):
                runs.setdefault(name, []).append(report)
                print(f"{number} {name}: {json.dumps(report)}", flush=True)
    result = {"machine": machine(), "summary": summary(runs), "runs": runs}
    print(json.dumps(result["summary"], indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name in late(runs):
        print(
            f"{name}: a second machine compiled or measured what the remote has; its seconds are not those of a warm one."
        )
    return 1 if late(runs) else 0


def round_of(server: S3Server, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the report of each process of a round."""
    url = {"INDUCTOR_PLUGIN_REMOTE_URL": f"s3://{BUCKET}/{number}", **server.environment}
    with tempfile.TemporaryDirectory(prefix="second-machine-") as name:
        folder = Path(name)
        yield ALONE, _report(folder / "alone", server, {})
        yield FILLS, _report(folder / "first", server, url)
        shutil.copytree(folder / "first" / "plugin", folder / "copy" / "plugin")
        open_store(folder / "copy" / "plugin").zero_counters()
        yield COPY, _report(folder / "copy", server, {})
        for remote in REMOTES if number % 2 == 0 else reversed(REMOTES):
            if remote.fault:
                server.fault(methods=_METHODS, **remote.fault)
            try:
                yield remote.name, _report(folder / remote.name.replace(" ", "-"), server, url)
            finally:
                server.fault()


def _report(folder: Path, server: S3Server, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return what a process on this folder spent."""
    before = server.requests()
    report = run("plugin", "cpu", str(folder), variables)
    asked = {name: count - before.get(name, 0) for name, count in server.requests().items()}
    counters = open_store(folder / "plugin").counters()
    return {
        "compile_s": round(report["compile_s"], 3),
        "process_s": round(report["process_s"], 3),
        "error": report["error"],
        **{name: report["stats"][name] for name in _SPENT},
        **{name: counters.get(name, 0) for name in _COUNTERS},
        "requests": {name: count for name, count in asked.items() if count},
    }


def summary(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return medians over the rounds for each kind of process, and its compile seconds in those without a remote."""
    alone = _median(runs[ALONE], "compile_s")
    rows: dict[str, dict[str, float]] = {}
    for name, reports in runs.items():
        rows[name] = {each: _median(reports, each) for each in ("compile_s", "process_s", *_SPENT)}
        rows[name]["ratio"] = round(rows[name]["compile_s"] / alone, 3)
    return rows


def late(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the remotes that answered, and beside which a second machine lacked a record, or compiled or measured candidates all the same."""
    answering = [
        each.name
        for each in REMOTES
        if "status" not in each.fault and each.fault.get("delay_s", 0.0) < _LATE_S
    ]
    return [
        name
        for name in answering
        if any(
            each["record_hits"] < each["problems"] or each["compiled"] or each["benchmarked"]
            for each in runs[name]
        )
    ]


def _median(reports: Sequence[Mapping[str, Any]], name: str) -> float:
    return round(statistics.median(float(each[name]) for each in reports), 3)


if __name__ == "__main__":
    raise SystemExit(main())
