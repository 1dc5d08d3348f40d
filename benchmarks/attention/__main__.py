"""Benchmarks attentions of known models on this GPU: torch's operators, torch.compile and the plugin.

    python -m benchmarks.attention [--budget-s 170] [--match TEXT] [--fresh] [--dry]

Forward and backward are measured separately, each as a CUDA graph with a cold L2, all arms in turns on the
same inputs (`benchmarks.harness.arms`). The table has TFLOP/s, and the speedup of the plugin over the best
of torch's operators and over stock torch.compile. Each row is written to the JSON file when it is finished;
a later run on the same machine with the same sources continues there. ``--dry`` runs the same code with
tiny sizes on a CPU, to check the benchmark itself.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.attention.shapes import SHAPES
from benchmarks.harness import campaign
from benchmarks.harness.arms import Arm, raced
from benchmarks.harness.attention import Shape
from benchmarks.harness.resume import Budget, Rows
from benchmarks.harness.sources import PLUGIN

ARMS = ("flash", "efficient", "cudnn", "stock", "ours")
ARM_MODULE = "benchmarks.attention.arm"
LIBRARIES = ("flash", "efficient", "cudnn")
MANY = "attentions"
ROUNDS = 10
SOURCES = (*PLUGIN, "benchmarks/harness", "benchmarks/attention", "benchmarks/gemm")
"""Sources a row depends on; if they change, all rows are measured again."""


def main() -> int:
    """Measure the missing rows, write the file after each attention, and print a table at the end."""

    def measure(rows: Rows, arguments: argparse.Namespace, budget: Budget) -> list[str]:
        every = todo()
        names = campaign.chosen(every, arguments)
        return run(rows, {name: every[name] for name in names}, arguments, budget)

    benchmark = campaign.Benchmark("attention", __doc__, MANY, ARMS, SOURCES, 170.0, 120.0, ROUNDS)
    return benchmark.main(measure, show, gain=lambda row, arm: gain(row, (arm,)))


def todo() -> dict[str, tuple[Shape, bool]]:
    """Return all attentions by name, forward and backward."""
    every = [(shape, backward) for shape in SHAPES for backward in (False, True)]
    return {
        name_of(shape, backward=backward): (shape, backward)
        for shape, backward in every
        if shape.backward or not backward
    }


def name_of(shape: Shape, *, backward: bool) -> str:
    """Return the name of one direction of an attention."""
    return f"{shape.name} {'backward' if backward else 'forward'}"


def run(
    rows: Rows, attentions: Mapping[str, tuple[Shape, bool]], arguments: Any, budget: Budget
) -> list[str]:
    """Measure attentions until the budget ends; return the names of the remaining ones."""

    def measure(name: str, processes: Sequence[Arm]) -> tuple[dict[str, Any], bool]:
        shape, backward = attentions[name]
        request = {"do": "prepare", "shape": shape.name, "backward": backward}
        results, whole = raced(request, processes, budget, arguments.arm_s, arguments.rounds)
        facts = {"flops": shape.flops(backward=backward), "accepted": shape.accepted}
        return {"product": name, **facts, **results}, whole

    return campaign.run([*attentions], measure, line, rows, arguments, budget, ARM_MODULE)


def line(row: Mapping[str, Any]) -> str:
    """Return a row in one line."""
    speeds = [f"{name} {_speed(row, name) or 'failed'}" for name in row["arms"]]
    return f"{row['product']:44} " + "  ".join(speeds)


def time_ms(row: Mapping[str, Any], arm: str) -> float | None:
    """Return milliseconds of an arm; None if it failed or its numbers are wrong."""
    answer = row["arms"].get(arm, {})
    right = answer.get("error", 0.0) <= row["accepted"]
    return answer.get("median_ms") if right else None


def _speed(row: Mapping[str, Any], arm: str) -> str:
    """Return TFLOP/s; empty without a time."""
    ms = time_ms(row, arm)
    return f"{row['flops'] / ms / 1e9:.0f}" if ms else ""


def gain(row: Mapping[str, Any], rivals: Iterable[str]) -> float | None:
    """Return the speedup of the plugin over the best of some arms, None if unknown."""
    times = [ms for ms in (time_ms(row, arm) for arm in rivals) if ms]
    ours = time_ms(row, "ours")
    return min(times) / ours if times and ours else None


def show(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the table, and why an arm failed."""
    rich_table: Any = importlib.import_module("rich.table")
    console: Any = importlib.import_module("rich.console").Console(width=150)
    title = "TFLOP/s, cold L2, median; empty: it cannot, or its numbers are wrong (below)"
    table = rich_table.Table(title=title, title_justify="left")
    table.add_column("attention")
    for head in ("flash", "efficient", "cuDNN", "stock", "plugin", "x best of ATen", "x stock"):
        table.add_column(head, justify="right")
    failures: dict[str, None] = {}
    for row in rows:
        gains = (gain(row, LIBRARIES), gain(row, ("stock",)))
        cells = ("" if speedup is None else f"{speedup:.2f}" for speedup in gains)
        table.add_row(row["product"], *(_speed(row, arm) for arm in ARMS), *cells)
        for arm, answer in row["arms"].items():
            if "failed" in answer:
                failures[f"{row['product']}: {arm}: {answer['failed']}"] = None
            elif answer.get("error", 0.0) > row["accepted"]:
                failures[f"{row['product']}: {arm}: wrong by {answer['error']:.3g}"] = None
    console.print(table)
    for failure in failures:
        print(failure)


if __name__ == "__main__":
    sys.exit(main())
