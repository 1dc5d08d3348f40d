"""The cost of an installed plugin that is not switched on, added to `import torch`.

direct  `import torch` looks for entry points, loads the plugin's and calls it: the time of load and
call, measured inside `import torch`. The limit applies to this.
whole   `import torch` with our entry point against the same with it hidden, in alternating
processes: its noise is many times the limit, so it is only a sanity check.

python -m benchmarks.startup.import_time --rounds 15 --out benchmarks/results/import_time_cpu.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.child import child_environment
from benchmarks.startup.cold_warm import machine

LIMIT_MS = 2.0
CHILD = """
import importlib.metadata, json, sys, time

hidden, costs = sys.argv[1] == "without", []
find = importlib.metadata.entry_points


class Timed:
    def __init__(self, point):
        self.name, self.point = point.name, point

    def load(self):
        start = time.perf_counter()
        function = self.point.load()

        def call():
            function()
            costs.append((self.name, (time.perf_counter() - start) * 1e3))

        return call


def entry_points(**filters):
    points = find(**filters)
    if filters != {"group": "torch.backends"}:
        return points
    return [Timed(point) for point in points if not (hidden and point.name == "inductor_plugin")]


importlib.metadata.entry_points = entry_points
start, cpu = time.perf_counter(), time.process_time()
import torch
wall_ms, cpu_ms = (time.perf_counter() - start) * 1e3, (time.process_time() - cpu) * 1e3
own = [cost for name, cost in costs if name == "inductor_plugin"]
loaded = sorted(name for name in sys.modules if name.startswith("inductor_plugin"))
print(json.dumps({"wall_ms": wall_ms, "cpu_ms": cpu_ms, "own_ms": own, "loaded": loaded}))
"""


def main() -> int:
    """Run the rounds, print a verdict, and write the figures to ``--out``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="file for the JSON")
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
    run("with")  # reads torch's files into memory
    for number in range(arguments.rounds):
        for variant in sorted(runs, reverse=number % 2 == 0):
            runs[variant].append(run(variant))
    figures = summary(runs)
    print(json.dumps(figures, indent=2))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"machine": machine(), "summary": figures, "runs": runs}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    passed = figures["direct_ms"] <= LIMIT_MS
    print(
        f"{'PASS' if passed else 'FAIL'}: {figures['direct_ms']:.2f} ms added to `import torch`, "
        f"limit {LIMIT_MS} ms"
    )
    return 0 if passed else 1


def run(variant: str) -> dict[str, Any]:
    """Return what one process reports.

    Raises:
        RuntimeError: `import torch` did not call the plugin, or loaded more than it should.
    """
    environment = child_environment()
    environment.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, variant],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    expected = ["inductor_plugin", "inductor_plugin.autoload"] if variant == "with" else []
    loaded = [name for name in report["loaded"] if not name.startswith("inductor_plugin._")]
    if loaded != expected or len(report["own_ms"]) != (variant == "with"):
        raise RuntimeError(f"{variant} the plugin: {report}; is it installed (pip install -e .)?")
    return report


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return medians over the rounds, in milliseconds."""
    direct = [report["own_ms"][0] for report in runs["with"]]
    figures = {"direct_ms": statistics.median(direct), "direct_worst_ms": max(direct)}
    for field in ("wall_ms", "cpu_ms"):
        for variant, reports in runs.items():
            figures[f"{variant}_{field}"] = statistics.median(r[field] for r in reports)
        pairs = zip(runs["with"], runs["without"], strict=True)
        figures[f"difference_{field}"] = statistics.median(a[field] - b[field] for a, b in pairs)
    return {name: round(value, 3) for name, value in figures.items()}


if __name__ == "__main__":
    raise SystemExit(main())
