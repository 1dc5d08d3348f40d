"""Run time of ten networks on a CPU: torch.compile, stock max-autotune and the plugin, tuned first and sampled in later processes.

    python -m benchmarks.models [--only "training, 2 threads" bert ...] [--minutes 60] [--out FILE]

A run is one network, frozen or trained, on one or two threads, tuned on a quiet machine or beside two busy processes. Each
arm tunes it in a process with empty caches; then, on the quiet machine, each arm starts anew with what it has in its caches,
and all arms are sampled in turns, with what a call leaves in the caches for the next. That is one launch; there are three, and
six where the interval of three leaves open whether a network takes 1.02x of another arm's time. Of each round the ratio of two arms is taken. Frozen, on two threads and tuned on a quiet
machine, a fourth arm always compares its graphs with those of library kernels.

Each run is a row, written as it comes: what is finished is not measured again, also on another machine: a row names its processor.
The status is 1 if an arm failed or nothing was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.arms import SAMPLE_S, Arm, arms, machine, turned
from benchmarks.harness.load import load
from benchmarks.harness.repository import RESULTS
from benchmarks.harness.resume import Budget, Rows
from benchmarks.harness.sources import PLUGIN
from benchmarks.models.figures import (
    LOOKS,
    RATIOS,
    by_configuration,
    claims,
    is_settled,
    ratios,
    summary,
)
from benchmarks.models.networks import NETWORKS
from benchmarks.models.plan import GUARDED, Run, chosen, planned

_SOURCES = (*PLUGIN, "benchmarks/models", "benchmarks/harness/load.py")
_MODULE = "benchmarks.models.arm"
_LONGEST_S = 900.0
"""Longest time an arm may take to compile a network, tuning included."""
_DIGITS = 5


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print a line for each run, and write ``--out``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", nargs="+", default=[], metavar="TEXT", help="runs with all parts of one of these")
    add("--minutes", type=float, default=1e6, help="after which no run starts")
    add("--rounds", type=int, default=30, help="samples of each arm in a launch")
    least, most = LOOKS
    add("--launches", type=int, default=least)
    add("--most-launches", type=int, default=most, help="where an interval leaves it open")
    add("--fresh", action="store_true", help="forget what is finished")
    add("--out", type=Path, default=RESULTS / "models_cpu.json")
    arguments = parser.parse_args(given)
    try:
        runs = chosen(planned(list(NETWORKS)), arguments.only)
    except ValueError as error:
        parser.error(str(error))
    facts = (machine(_SOURCES, dry=True) or {}) | {"cores": os.cpu_count()}
    rows = opened(arguments.out, facts, fresh=arguments.fresh)
    left = measured(runs, rows, Budget(60 * arguments.minutes), arguments)
    print(json.dumps({name: rows.facts[name] for name in ("claims", "summary")}, indent=1))
    if left:
        print(f"{len(left)} runs are left ({left[0].name} is next); run it again to go on.")
    if arguments.out.is_file():
        print(f"Written to {arguments.out}.")
    return int(not rows.rows or any(failures(row) for row in rows.rows))


def opened(out: Path, facts: Mapping[str, Any], *, fresh: bool) -> Rows:
    """Return the rows of earlier runs, and their samples among the facts."""
    rows = Rows(out, facts, () if fresh else (out,), key="name")
    if rows.rejection:
        print(rows.rejection)
    earlier: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if rows.rows else {}
    rows.facts["samples"] = earlier.get("samples", {})
    describe(rows)
    return rows


def measured(runs: Sequence[Run], rows: Rows, budget: Budget, arguments: Any) -> list[Run]:
    """Measure the runs without a row, and those with a failure, until the budget ends; return those that are left.

    Args:
        runs: The runs.
        rows: Collects the rows, and the figures of all rows.
        budget: What may be spent.
        arguments: ``rounds``, ``launches`` and ``most_launches``.
    """
    left = [run for run in runs if (row := rows.get(run.name)) is None or failures(row)]
    longest_s = 0.0
    while left and budget.rest_s() > longest_s:
        run, *left = left
        before_s = budget.spent_s()
        row, samples = compared(run, arguments)
        row["processor"] = processor(rows.facts)
        longest_s = max(longest_s, budget.spent_s() - before_s)
        rows.facts["samples"][run.name] = samples
        rows.put(row)
        describe(rows)
        rows.write()
        print(f"[{budget.spent_s():6.0f} s] {line(row)}", flush=True)
    return left


def processor(facts: Mapping[str, Any]) -> str:
    """Return what a row was measured on: runs of one file may be of several machines, the arms of a run never are."""
    device = facts["environment"]["device"]
    return f"{device['name']}, {device['capability']}, {facts['cores']} cores"


def compared(run: Run, arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tune one network in all arms, and sample it in later processes; return its row, and its samples by arm."""
    began = time.monotonic()
    request = {"do": "prepare", "network": run.network, "training": run.mode == "training"}
    launches: list[dict[str, list[float]]] = []
    later: list[dict[str, Any]] = []
    environment = {"OMP_NUM_THREADS": str(run.threads)}
    with arms(run.arms, _MODULE, dry=True, environment=environment) as processes:
        tuning = tuned(processes, request, run.load)
        while not is_enough(launches, arguments.launches, arguments.most_launches):
            working = [arm for arm in processes if is_working(arm.name, tuning, later)]
            ordered = turned(working, len(launches))
            reports, samples = launched(ordered, request, arguments.rounds)
            later.append(reports)
            launches.append(samples)
    every = {name: [s for each in launches for s in each.get(name, ())] for name in run.arms}
    row: dict[str, Any] = {
        "name": run.name,
        "configuration": run.configuration,
        "network": run.network,
        "seconds": round(time.monotonic() - began, 1),
        "launches": len(launches),
        "rounds": arguments.rounds,
        "tuning": tuning,
        "later": later[0],
        "later_guard_s": round(sum(each.get("ours", {}).get("guard_s", 0.0) for each in later), 3),
        "failed": sorted({text for each in (tuning, *later) for text in reasons(each)}),
        "median_ms": {n: statistics.median(values) for n, values in every.items() if values},
        **ratios(launches),
    }
    return row, {name: {"samples_ms": values} for name, values in every.items() if values}


def is_enough(launches: Sequence[Mapping[str, Sequence[float]]], least: int, most: int) -> bool:
    """Return True if no further launch is wanted: there are as many as may be, or the fewest and no claim is open.

    It is looked twice only: an interval that is looked at after each launch ends on the wrong side oftener than it says.
    """
    count = len(launches)
    return count >= most or (count == least and is_settled(ratios(launches)))


def is_working(name: str, tuning: Mapping[str, Any], later: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if an arm has compiled the network whenever it was asked to."""
    return all("failed" not in reports.get(name, {}) for reports in (tuning, *later))


def tuned(processes: Sequence[Arm], request: Mapping[str, Any], load_name: str) -> dict[str, Any]:
    """Compile a network in each arm beside a load; return the reports, and let the processes end."""
    reports: dict[str, Any] = {}
    for arm in processes:
        begun([arm])
        with load(load_name):
            reports[arm.name] = arm.ask(request, _LONGEST_S)
        arm.end()
    return reports


def begun(processes: Sequence[Arm]) -> None:
    """Start the processes of arms, all at the same time, and wait until they have loaded what they need."""
    for arm in processes:
        arm.start()
    for arm in processes:
        arm.ask({"do": "begin"}, _LONGEST_S)


def launched(
    processes: Sequence[Arm], request: Mapping[str, Any], rounds: int
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Compile a network in a new process of each arm, one after the other, then sample all in turns; return the reports, and the samples.

    Who starts first is slower for as long as it runs: of four processes of one arm the first took 2 % more than the others
    (BERT on two cores, medians of three launches). So each launch begins with another arm.
    """
    begun(processes)
    reports = {arm.name: arm.ask(request, _LONGEST_S) for arm in processes}
    working = [arm for arm in processes if "failed" not in reports[arm.name]]
    samples: dict[str, list[float]] = {arm.name: [] for arm in working}
    for arm in [arm for number in range(rounds) for arm in turned(working, number)]:
        if "failed" in reports[arm.name]:
            continue
        answer = arm.ask({"do": "sample"}, SAMPLE_S)
        if "failed" in answer:
            reports[arm.name] = answer
            del samples[arm.name]
        else:
            samples[arm.name].append(float(f"{answer['ms']:.{_DIGITS}g}"))
    for arm in processes:
        arm.end()
    return reports, samples


def reasons(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return why arms failed."""
    return [f"{name}: {report['failed']}" for name, report in reports.items() if "failed" in report]


def failures(row: Mapping[str, Any]) -> list[str]:
    """Return why arms failed in a run."""
    return list(row["failed"])


def describe(rows: Rows) -> None:
    """Set the figures of all rows above them."""
    figures = by_configuration(rows.rows)
    rows.facts |= {
        "summary": summary(figures),
        "claims": claims(figures),
        "configurations": figures,
    }


def line(row: Mapping[str, Any]) -> str:
    """Return a row as text."""
    times = "  ".join(f"{name} {ms:.3f} ms" for name, ms in row["median_ms"].items())
    shown = "  ".join(
        f"{name} {row[name]['median']:.3f} ({row[name]['low']}..{row[name]['high']}, {row[name]['verdict']})"
        for name in RATIOS
        if name in row
    )
    always = row["tuning"].get(GUARDED, {})
    guard = (
        f"guard {row['tuning'].get('ours', {}).get('guard_s')} s, later {row['later_guard_s']} s, "
        f"always {always.get('guard_s', '-')} s of {always.get('first_call_s', '-')} s"
    )
    return "  ".join([row["name"], times, shown, guard, *failures(row)])


if __name__ == "__main__":
    sys.exit(main())
