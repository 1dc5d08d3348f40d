"""Products with an epilogue on this GPU: apart, stock max-autotune, fused in Triton and in CUTLASS.

    python -m benchmarks.fused [--budget-s 120] [--match TEXT] [--fresh] [--dry]

Each arm is a process of its own that stays (`benchmarks.fused_arm`); all get the same inputs. A product
is compiled by one arm after the other, captured in a CUDA graph, and then sampled in turns with a cold
L2. What is finished stands in the JSON file at once: a run that is stopped, or whose budget ends, is
continued by the next one, on the same machine with the same sources.

Beside the times stands what `prune` foretold: registers of the fused kernel beside the compiler's, and
the time of the epilogue as a kernel of its own beside what it took (both kernels less the product).
``--dry`` goes the same way with tiny sizes on a CPU, where nothing is fused, to check the benchmark.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arms import RESULTS, arms, machine, raced, write
from benchmarks.fused_shapes import Fused, fused_products
from benchmarks.resume import Budget, finished, put, waiting
from benchmarks.sources import PLUGIN

ARM_MODULE = "benchmarks.fused_arm"
ARMS = ("apart", "stock", "ours", "triton", "evt")
"""In the order in which they compile: the last two take over what ``ours`` has built and measured."""
DRY_ARMS = ("apart", "ours")
ROUNDS = 15
SOURCES = (
    *PLUGIN,
    *(
        f"benchmarks/{name}.py"
        for name in ("arms", "fused", "fused_arm", "fused_shapes", "gemm_arm")
    ),
    "tests/gpu/fused_forced.py",
)
"""What a row is measured with; another version begins anew."""


def main() -> int:
    """Measure what is not measured yet, write after each product, print a table last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=120.0,
        help="seconds of this run; what is left is for the next",
    )
    parser.add_argument("--match", default="", help="only products whose name has this in it")
    parser.add_argument("--limit", type=int, default=0, help="most products; 0 for all")
    parser.add_argument("--arms", nargs="+", choices=ARMS)
    parser.add_argument("--arm-s", type=float, default=100.0, help="most seconds an arm compiles")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--fresh", action="store_true", help="forget what is finished")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.arms = given.arms or list(DRY_ARMS if given.dry else ARMS)
    budget = Budget(given.budget_s)
    facts = machine(SOURCES, dry=given.dry)
    if facts is None:
        print("No CUDA device here; --dry checks the benchmark without one.")
        return 0
    usual = RESULTS / f"fused_{facts['gpu'].replace(' ', '_').lower()}.json"
    if given.dry:
        usual = Path(tempfile.gettempdir()) / "fused_dry.json"
    out = given.out or usual
    # A file of one's own that is not there yet goes on from the usual one.
    before = out if out.is_file() else usual
    report: dict[str, Any] = {**facts, "rows": [] if given.fresh else finished(before, facts)}
    wanted = [one for one in fused_products() if given.match in one.name]
    left = run(report, wanted[: given.limit or None], out, given, budget)
    show(report["rows"])
    if left:
        print(f"{len(left)} products are left ({left[0]} is next); run it again to go on.")
    print(f"Written to {out}.")
    return 0


def run(
    report: dict[str, Any], wanted: Sequence[Fused], out: Path, given: Any, budget: Budget
) -> list[str]:
    """Measure products until the budget ends; return the names of those that are left."""
    rows: list[dict[str, Any]] = report["rows"]
    named = {one.name: one for one in wanted}
    left = waiting(rows, list(named), given.arms)
    longest_s = 0.0
    begun = 0
    with arms(given.arms, ARM_MODULE, dry=given.dry) as processes:
        while left and budget.rest_s() > longest_s:
            before_s = budget.spent_s()
            shape = named[left[0]]
            request = {"do": "prepare", "shape": shape.name}
            found, whole = raced(request, processes, budget, given.arm_s, given.rounds)
            begun += 1
            if not whole and begun > 1:
                break  # the budget ended it, so it says nothing of the arms
            # The first one stands even so: one that takes all of a run would be begun for ever.
            left = left[1:]
            longest_s = max(longest_s, budget.spent_s() - before_s)
            sizes = {"m": shape.m, "n": shape.n, "k": shape.k, "epilogue": shape.epilogue}
            put(rows, {"product": shape.name, **sizes, **found})
            write(out, report)
            print(f"[{budget.spent_s():5.0f} s] {line(rows, shape.name)}", flush=True)
    return left


def line(rows: Iterable[Mapping[str, Any]], name: str) -> str:
    """Return a product's row in one line."""
    row = next(one for one in rows if one["product"] == name)
    shown = [f"{arm} {_cell(row, arm) or 'failed'}" for arm in row["arms"]]
    return f"{name:40} " + "  ".join(shown)


def time_us(row: Mapping[str, Any], arm: str) -> float | None:
    """Return microseconds of an arm; None where it has failed or its numbers are wrong."""
    answer = row["arms"].get(arm, {})
    ms = answer.get("median_ms") if is_right(answer) else None
    return None if ms is None else 1e3 * ms


def is_right(answer: Mapping[str, Any]) -> bool:
    """Return whether an arm's numbers are accepted; one that is not a number is not."""
    return answer.get("error", 0.0) <= answer.get("accepted", 0.0)


def _cell(row: Mapping[str, Any], arm: str) -> str:
    answer = row["arms"].get(arm, {})
    if "failed" in answer:
        return "failed"
    if answer and not is_right(answer):
        return "wrong"
    us = time_us(row, arm)
    return "" if us is None else f"{us:.1f}"


def gain(row: Mapping[str, Any], arm: str) -> float | None:
    """Return how many times as fast as an arm the plugin is, None where unknown."""
    theirs, mine = time_us(row, arm), time_us(row, "ours")
    return theirs / mine if theirs and mine else None


def fusion_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the plugin noted of the fusion; empty where it failed."""
    return row["arms"].get("ours", {}).get("fusion", {})


def separate_us(row: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return what the epilogue apart was foretold to take, and what both kernels took over the product."""
    noted = fusion_of(row)
    spans = [one["separate_us"] for one in noted.get("predicted", ())]
    low, expected, high = spans[0] if spans else (None, None, None)
    foretold = "" if expected is None else f"{expected:.1f} ({low:.1f} to {high:.1f})"
    known = noted.get("measured_us", {})
    if "product" not in known or "unfused" not in known:
        return foretold, None
    return foretold, known["unfused"] - known["product"]


def registers(row: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return registers foretold and found of each compiled kernel, and the largest relative error."""
    pairs = [
        (one["registers_predicted"], one["registers"])
        for one in fusion_of(row).get("compiled", ())
        if one.get("registers")
    ]
    text = " ".join(dict.fromkeys(f"{told}/{found}" for told, found in pairs))
    return text, max((abs(told - found) / found for told, found in pairs), default=None)


def show(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the table, and why an arm failed."""
    rich_table: Any = importlib.import_module("rich.table")
    console: Any = importlib.import_module("rich.console").Console(width=170)
    title = "microseconds, cold L2, median; separate: the epilogue as a kernel of its own, foretold and found"
    table = rich_table.Table(title=title, title_justify="left")
    table.add_column("product and epilogue")
    heads = ("apart", "stock", "plugin", "Triton", "EVT", "chosen", "x apart", "x stock")
    for head in (*heads, "separate", "found", "registers"):
        table.add_column(head, justify="right")
    failures: dict[str, None] = {}
    for row in rows:
        foretold, found = separate_us(row)
        gains = [
            "" if one is None else f"{one:.2f}" for one in (gain(row, "apart"), gain(row, "stock"))
        ]
        table.add_row(
            row["product"],
            *(_cell(row, arm) for arm in ARMS),
            fusion_of(row).get("winner", "").removeprefix("fused.")[:24],
            *gains,
            foretold,
            "" if found is None else f"{found:.1f}",
            registers(row)[0],
        )
        for arm, answer in row["arms"].items():
            if "failed" in answer:
                failures[f"{row['product']}: {arm}: {answer['failed']}"] = None
            elif answer and not is_right(answer):
                failures[f"{row['product']}: {arm}: wrong by {answer['error']:.3g}"] = None
    console.print(table)
    for failure in failures:
        print(failure)


if __name__ == "__main__":
    sys.exit(main())
