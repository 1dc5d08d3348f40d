"""Run time of ten networks on a CPU: torch.compile, stock max-autotune and the plugin, in turns.

    python -m benchmarks.models [--networks bert gpt2 ...] [--training] [--load "2 busy"] [--rounds 20] [--out FILE]

Each arm is a process with caches of its own; it compiles a network, then all arms are sampled in turns. Of each round the
ratio of two arms is taken; the figure is the median of these, with a confidence interval of 95 % by bootstrap. With
``--load`` other processes compute while a network is compiled and tuned, not while it is sampled: what was chosen on a
busy machine runs on a quiet one. ``OMP_NUM_THREADS`` sets the threads of all arms.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.arms import arms, machine, raced
from benchmarks.harness.load import LOADS
from benchmarks.harness.resume import Budget
from benchmarks.harness.sources import PLUGIN
from benchmarks.models.networks import NETWORKS

ARMS = ("plain", "stock", "ours")
_RATIOS = {
    "to_plain": ("ours", "plain"),
    "to_stock": ("ours", "stock"),
    "stock_to_plain": ("stock", "plain"),
}
"""Ratios by name: an arm's time in that of another."""
_DRAWS = 2000
_LONGEST_S = 600.0


def main() -> int:
    """Measure, print a line for each network, and write ``--out``."""
    parser = argparse.ArgumentParser(prog="benchmarks.models", description=__doc__)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--load", choices=LOADS, default="quiet")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    budget = Budget(2 * _LONGEST_S * len(ARMS) * len(arguments.networks))  # each arm has its limit
    facts = machine((*PLUGIN, "benchmarks/models"), dry=True) or {}
    result: dict[str, Any] = {
        "machine": facts | {"cores": os.cpu_count()},
        "load": arguments.load,
        "networks": {},
    }
    with arms(ARMS, "benchmarks.models.arm", dry=True) as processes:
        for network in arguments.networks:
            request = {"do": "prepare", "network": network, "training": arguments.training}
            began = time.monotonic()
            row, _ = raced(
                request,
                processes,
                budget,
                _LONGEST_S,
                arguments.rounds,
                other_work=arguments.load,
            )
            row |= ratios(row["arms"]) | {"seconds": round(time.monotonic() - began, 1)}
            result["networks"][network] = row
            print(line(network, row), flush=True)
    result["summary"] = summary(result["networks"].values())
    print(json.dumps(result["summary"]))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(any("failed" in a for r in result["networks"].values() for a in r["arms"].values()))


def ratios(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the time of one arm in that of another: median of the rounds, and its interval."""
    samples = {name: report.get("samples_ms", ()) for name, report in reports.items()}
    return {
        name: interval([a / b for a, b in zip(samples[arm], samples[other], strict=False)])
        for name, (arm, other) in _RATIOS.items()
        if samples[arm] and samples[other]
    }


def interval(values: Sequence[float]) -> dict[str, float]:
    """Return the median of some ratios, and between which it lies in 95 % of all draws of as many of them."""
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(values, k=len(values))) for _ in range(_DRAWS))
    low, high = medians[int(0.025 * _DRAWS)], medians[int(0.975 * _DRAWS)]
    middle = statistics.median(values)
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}


def summary(rows: Any) -> dict[str, float]:
    """Return the geometric means of the ratios of all networks, and the largest."""
    means: dict[str, float] = {}
    for name in _RATIOS:
        medians = [row[name]["median"] for row in rows if name in row]
        if medians:
            means[name] = round(math.exp(statistics.fmean(map(math.log, medians))), 4)
            means[f"largest_{name}"] = max(medians)
    return means


def line(network: str, row: Mapping[str, Any]) -> str:
    """Return a row as text."""
    times = "  ".join(
        f"{name} {report['median_ms']:8.3f} ms" if "median_ms" in report else f"{name} failed"
        for name, report in row["arms"].items()
    )
    shown = "  ".join(
        f"{name} {row[name]['median']:.3f} ({row[name]['low']:.3f}..{row[name]['high']:.3f})"
        for name in _RATIOS
        if name in row
    )
    return f"{network:10s} {times}  {shown}"


if __name__ == "__main__":
    sys.exit(main())
