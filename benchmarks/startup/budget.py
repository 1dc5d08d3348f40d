"""What a tuning budget buys and the check of numbers costs: ten frozen linear layers, each time in a process with empty caches.

A round is: without a budget, and with one. The gain of a problem is the time of its
library kernel less that of what runs; what the budget keeps of it is counted with the times of the round's run without one.

    python -m benchmarks.startup.budget --budget-s 3 --rounds 3 --out benchmarks/results/budget_cpu.json
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.arms import machine
from benchmarks.harness.child import child_environment
from benchmarks.harness.repository import REPOSITORY
from benchmarks.harness.sources import PLUGIN

LAYERS = 10


def main() -> int:
    """Run both, print what the budget keeps, and write it to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-s", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(child(arguments.child)))
        return 0
    rounds = [
        {
            "whole": run(0.0),
            "limited": run(arguments.budget_s),
        }
        for _ in range(arguments.rounds)
    ]
    summary = {
        "budget_s": arguments.budget_s,
        "problems_measured": [each["limited"]["measured"] for each in rounds],
        "gain_kept": [kept(r["whole"]["problems"], r["limited"]["problems"]) for r in rounds],
        "waited_s": [each["whole"]["waited_s"] for each in rounds],
        "check_share": check_share(rounds),
    }
    print(json.dumps(summary, indent=2))
    if arguments.out:
        facts = machine((*PLUGIN, "benchmarks/startup"), dry=True) or {}
        result = {"machine": facts, "summary": summary, "rounds": rounds}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def check_share(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of tuning that the check of numbers takes, the median of the rounds without a budget."""
    shares = (each["whole"]["check_s"] / each["whole"]["waited_s"] for each in rounds)
    return round(statistics.median(shares), 3)


def run(budget_s: float) -> dict[str, Any]:
    """Return what a process with empty caches reports; a budget of 0 is none."""
    with tempfile.TemporaryDirectory(prefix="budget-", ignore_cleanup_errors=True) as folder:
        environment = child_environment(
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
            TORCHINDUCTOR_FREEZING="1",
            INDUCTOR_PLUGIN_CACHE_DIR=f"{folder}/plugin",
        )
        command = [sys.executable, "-m", "benchmarks.startup.budget", "--child", str(budget_s)]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return json.loads(done.stdout.splitlines()[-1])


def child(budget_s: float) -> dict[str, Any]:
    """Compile the layers in one graph; return seconds, and the times of each problem."""
    import torch

    import inductor_plugin

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64 + 32 * i, 96 + 32 * i).eval() for i in range(LAYERS)]
    rows = [torch.randn(64, 64 + 32 * i) for i in range(LAYERS)]
    tickets: list[Any] = []
    options: dict[str, Any] = {"tune_budget_s": budget_s, "progress": "off", "table": "off"}
    compiled = torch.compile(
        lambda *operands: [layer(x) for layer, x in zip(layers, operands, strict=True)],
        backend="inductor_plugin",
        options=options,
    )
    started = time.perf_counter()
    with torch.no_grad(), inductor_plugin.observe(tickets.extend):
        compiled(*rows)
    problems = {
        ticket.problem.describe(): {
            "winner": ticket.verdict.winner,
            "library": ticket.verdict.library,
            "ms": {n: m.median_ms for n, m in ticket.measured.items() if m.status == "ok"},
        }
        for ticket in tickets
    }
    return {
        "first_call_s": round(time.perf_counter() - started, 2),
        "waited_s": round(inductor_plugin.stats().wall_s, 2),
        "measuring_s": round(inductor_plugin.stats().benchmark_s, 3),
        "check_s": round(inductor_plugin.stats().check_s, 3),
        "measured": sum(len(problem["ms"]) > 1 for problem in problems.values()),
        "problems": problems,
    }


def kept(whole: Mapping[str, Any], limited: Mapping[str, Any]) -> float | None:
    """Return the share of the gain of all problems that the choices under a budget have; None without any gain."""
    total = had = 0.0
    for name, problem in whole.items():
        times_ms, library = problem["ms"], problem["library"]
        total += times_ms[library] - times_ms[problem["winner"]]
        chosen = limited.get(name, {}).get("winner")
        had += times_ms[library] - times_ms.get(chosen, times_ms[library])
    return round(had / total, 3) if total > 0 else None


if __name__ == "__main__":
    raise SystemExit(main())
