"""How often the fastest kernel is chosen, on a quiet machine and beside other work, and what a wrong choice costs.

The plugin and Inductor's own max-autotune tune sixteen frozen linear layers in processes with empty caches, beside each load.
What is the fastest is measured for itself, on the quiet machine: library kernel and rival in turns, some dozens each.

    python -m benchmarks.choices.regret --rounds 2 --out benchmarks/results/regret_cpu.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.arms import machine
from benchmarks.harness.load import LOADS, load
from benchmarks.harness.repository import REPOSITORY
from benchmarks.harness.sources import PLUGIN

_NEAR = 1.02
_RESAMPLED = 400


def main() -> int:
    """Tune beside each load, print what was chosen, and write it to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    reference = costs(run("reference", "quiet", arguments.turns)["problems"])
    tunings: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        for name in arguments.loads:
            for arm in ("ours", "stock"):
                answer = run(arm, name, 0)
                tunings.append({"arm": arm, "load": name, "round": number, **answer})
                print(summary_line(tunings[-1], reference), flush=True)
    summary = {
        f"{arm}, {name}": regret(
            [t["problems"] for t in tunings if (t["arm"], t["load"]) == (arm, name)], reference
        )
        for name in arguments.loads
        for arm in ("ours", "stock")
    }
    print(json.dumps(summary, indent=2))
    if arguments.out:
        facts = machine((*PLUGIN, "benchmarks/choices"), dry=True) or {}
        result = {"machine": facts, "summary": summary, "reference": reference, "tunings": tunings}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def run(arm: str, load_name: str, turns: int) -> dict[str, Any]:
    """Return what one arm answers in a process with empty caches, beside a load."""
    with tempfile.TemporaryDirectory(prefix="regret-", ignore_cleanup_errors=True) as folder:
        environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TORCHINDUCTOR_FREEZING": "1",
            "INDUCTOR_PLUGIN_CACHE_DIR": f"{folder}/plugin",
        }
        command = [sys.executable, "-m", "benchmarks.choices.arm", arm, "--turns", str(turns)]
        with load(load_name):
            done = subprocess.run(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
    return json.loads(done.stdout.splitlines()[-1])


def costs(problems: Mapping[str, Any]) -> dict[str, Any]:
    """Return by problem how many times longer than the fastest each choice takes, with its 95 % interval.

    Problems without a rival, or without calm samples, are left out: there is nothing to choose, or nothing is known.
    """
    by_problem: dict[str, Any] = {}
    for name, problem in problems.items():
        samples = problem["samples_ms"]
        if samples.keys() == {"library", "rival"}:
            ratio, low, high = paired_ratio(samples["library"], samples["rival"])
            by_problem[name] = {
                "library": max(ratio, 1.0),
                "rival": max(1.0 / ratio, 1.0),
                "library_over_rival": [round(value, 4) for value in (ratio, low, high)],
                "library_ms": round(median(samples["library"]), 4),
            }
    return by_problem


def paired_ratio(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of the ratios of samples taken in the same turns, and its 95 % interval (bootstrap)."""
    ratios = [a / b for a, b in zip(first, second, strict=False)]
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLED))
    return median(ratios), medians[_RESAMPLED // 40], medians[-1 - _RESAMPLED // 40]


def regret(tunings: Sequence[Mapping[str, Any]], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Return what choices cost: the share within 2 % of the fastest, time lost on average and at most, and how many are firm."""
    chosen = [
        (choice["firm"], reference[name][choice["choice"]])
        for problems in tunings
        for name, choice in problems.items()
        if name in reference
    ]
    if not chosen:
        return {"choices": 0}
    lost = [cost for _, cost in chosen]
    firm = [cost for is_firm, cost in chosen if is_firm]
    return {
        "choices": len(chosen),
        "near_the_fastest": _share(lost),
        "firm": len(firm),
        "firm_near_the_fastest": _share(firm),
        "mean_time": round(math.exp(sum(map(math.log, lost)) / len(lost)), 4),
        "most_time": round(max(lost), 3),
    }


def summary_line(tuning: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Return one tuning in one line."""
    facts = regret([tuning["problems"]], reference)
    return f"{tuning['arm']:>5} beside {tuning['load']:<9} {tuning['compile_s']:6.1f} s  {facts}"


def _share(costs_of: Sequence[float]) -> float | None:
    """Return the share of choices that take at most 2 % longer than the fastest; None of no choice."""
    near = sum(cost <= _NEAR for cost in costs_of)
    return round(near / len(costs_of), 3) if costs_of else None


if __name__ == "__main__":
    raise SystemExit(main())
