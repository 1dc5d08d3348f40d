"""Attention of known models on this GPU: each of torch's operators, torch.compile, the plugin.

    python -m benchmarks.attention [--budget-s 170] [--match TEXT] [--fresh] [--dry]

Forward and backward are measured apart, each as a CUDA graph with a cold L2, all arms in turns on the
same inputs (`benchmarks.arms`). The table gives TFLOP/s, and how much faster the plugin is than the
best of torch's operators and than stock torch.compile. What is finished stands in the JSON file at
once; the next run goes on from there, on the same machine with the same sources. ``--dry`` goes the
same way with tiny sizes on a CPU, to check the benchmark itself.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.arms import RESULTS, arms, machine, raced, write
from benchmarks.attention_shapes import SHAPES, Shape
from benchmarks.resume import Budget, finished, put, waiting
from benchmarks.sources import PLUGIN

ARMS = ("flash", "efficient", "cudnn", "stock", "ours")
ARM_MODULE = "benchmarks.attention_arm"
LIBRARIES = ("flash", "efficient", "cudnn")
ROUNDS = 10
ACCEPTED = 0.05
"""Largest error of a row that counts as right; bfloat16 gradients of long rows have 0.02."""
SOURCES = (
    *PLUGIN,
    *(
        f"benchmarks/{name}.py"
        for name in (
            "arms", "attention", "attention_arm", "attention_check", "attention_shapes", "gemm_arm",
        )
    ),
)  # fmt: skip
"""What a row is measured with; another version begins anew."""


def main() -> int:
    """Measure what is not measured yet, write after each attention, print a table last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget-s", type=float, default=170.0, help="seconds of this run")
    parser.add_argument("--match", default="", help="only attentions whose name has this in it")
    parser.add_argument("--limit", type=int, default=0, help="most attentions; 0 for all")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--arm-s", type=float, default=120.0, help="most seconds an arm compiles")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--fresh", action="store_true", help="forget what is finished")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    budget = Budget(given.budget_s)
    facts = machine(SOURCES, dry=given.dry)
    if facts is None:
        print("No CUDA device here; --dry checks the benchmark without one.")
        return 0
    usual = RESULTS / f"attention_{facts['gpu'].replace(' ', '_').lower()}.json"
    if given.dry:
        usual = Path(tempfile.gettempdir()) / "attention_dry.json"
    out = given.out or usual
    # A file of one's own that is not there yet goes on from the usual one.
    before = out if out.is_file() else usual
    report: dict[str, Any] = {**facts, "rows": [] if given.fresh else finished(before, facts)}
    wanted = {name: one for name, one in todo().items() if given.match in name}
    names = list(wanted)[: given.limit or None]
    left = run(report, {name: wanted[name] for name in names}, out, given, budget)
    show(report["rows"])
    if left:
        print(f"{len(left)} attentions are left ({left[0]} is next); run it again to go on.")
    print(f"Written to {out}.")
    return 0


def todo() -> dict[str, tuple[Shape, bool]]:
    """Return all attentions by name, forward and backward."""
    every = [(one, backward) for one in SHAPES for backward in (False, True)]
    return {
        name_of(shape, backward=backward): (shape, backward)
        for shape, backward in every
        if shape.backward or not backward
    }


def name_of(shape: Shape, *, backward: bool) -> str:
    """Return the name of one direction of an attention."""
    return f"{shape.name} {'backward' if backward else 'forward'}"


def run(
    report: dict[str, Any],
    wanted: Mapping[str, tuple[Shape, bool]],
    out: Path,
    given: Any,
    budget: Budget,
) -> list[str]:
    """Measure attentions until the budget ends; return the names of those that are left."""
    rows: list[dict[str, Any]] = report["rows"]
    left = waiting(rows, list(wanted), given.arms)
    longest_s = 0.0
    begun = 0
    with arms(given.arms, ARM_MODULE, dry=given.dry) as processes:
        while left and budget.rest_s() > longest_s:
            before_s = budget.spent_s()
            shape, backward = wanted[left[0]]
            request = {"do": "prepare", "shape": shape.name, "backward": backward}
            found, whole = raced(request, processes, budget, given.arm_s, given.rounds)
            begun += 1
            if not whole and begun > 1:
                break  # the budget ended it, so it says nothing of the arms
            # The first one stands even so: one that takes all of a run would be begun for ever.
            left = left[1:]
            longest_s = max(longest_s, budget.spent_s() - before_s)
            flops = shape.flops(backward=backward)
            row = {"product": name_of(shape, backward=backward), "flops": flops, **found}
            put(rows, row)
            write(out, report)
            print(f"[{budget.spent_s():5.0f} s] {line(row)}", flush=True)
    return left


def line(row: Mapping[str, Any]) -> str:
    """Return a row in one line."""
    shown = [f"{name} {_speed(row, name) or 'failed'}" for name in row["arms"]]
    return f"{row['product']:44} " + "  ".join(shown)


def time_ms(row: Mapping[str, Any], arm: str) -> float | None:
    """Return milliseconds of an arm; None where it has failed or its numbers are wrong."""
    answer = row["arms"].get(arm, {})
    right = answer.get("error", 0.0) <= ACCEPTED
    return answer.get("median_ms") if right else None


def _speed(row: Mapping[str, Any], arm: str) -> str:
    """Return TFLOP/s; empty where there is no time."""
    ms = time_ms(row, arm)
    return f"{row['flops'] / ms / 1e9:.0f}" if ms else ""


def gain(row: Mapping[str, Any], rivals: Iterable[str]) -> float | None:
    """Return how many times as fast the plugin is as the best of some arms, None where unknown."""
    known = [ms for ms in (time_ms(row, one) for one in rivals) if ms]
    mine = time_ms(row, "ours")
    return min(known) / mine if known and mine else None


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
        shown = ("" if one is None else f"{one:.2f}" for one in gains)
        table.add_row(row["product"], *(_speed(row, arm) for arm in ARMS), *shown)
        for arm, answer in row["arms"].items():
            if "failed" in answer:
                failures[f"{row['product']}: {arm}: {answer['failed']}"] = None
            elif answer.get("error", 0.0) > ACCEPTED:
                failures[f"{row['product']}: {arm}: wrong by {answer['error']:.3g}"] = None
    console.print(table)
    for failure in failures:
        print(failure)


if __name__ == "__main__":
    sys.exit(main())
