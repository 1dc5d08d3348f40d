"""Products with an epilogue on this GPU: apart, stock max-autotune, fused in Triton and in CUTLASS.

    python -m benchmarks.fusion.fused [--budget-s 120] [--match TEXT] [--fresh] [--dry]

Each arm is a separate, persistent process (`benchmarks.fusion.fused_arm`); all get the same inputs. A
product is compiled by one arm after the other, captured in a CUDA graph, and then sampled in turns with
a cold L2. Results are written to the JSON file at once: a run that is stopped, or whose budget ends, is
continued by the next run on the same machine with the same sources.

Next to the times the table has the predictions of `prune`: registers of the fused kernel and those of
the compiler, and the time of the epilogue as a separate kernel and the measured one (both kernels less
the product). ``--dry`` runs the same code with tiny sizes on a CPU, where nothing is fused, to check
the benchmark.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.fusion.shapes import Fused, fused_products
from benchmarks.harness import campaign
from benchmarks.harness.arms import Arm, raced
from benchmarks.harness.resume import Budget, Rows
from benchmarks.harness.sources import PLUGIN

ARM_MODULE = "benchmarks.fusion.fused_arm"
ARMS = ("apart", "stock", "ours", "triton", "evt")
"""In the order in which they compile: the last two reuse the kernels and records of ``ours``."""
DRY_ARMS = ("apart", "ours")
MANY = "products"
ROUNDS = 15
SOURCES = (*PLUGIN, "benchmarks/harness", "benchmarks/fusion", "benchmarks/gemm")
"""Sources a row depends on; if one changes, rows are measured again."""


def main() -> int:
    """Measure missing products, write after each, print a table last."""

    def wanted(rows: Rows, options: argparse.Namespace, budget: Budget) -> list[str]:
        products = {product.name: product for product in fused_products()}
        names = campaign.chosen(products, options)
        return run(rows, [products[name] for name in names], options, budget)

    benchmark = campaign.Benchmark("fused", __doc__, MANY, ARMS, SOURCES, 120.0, 100.0, ROUNDS)
    return benchmark.main(wanted, show, dry_arms=DRY_ARMS, gain=gain)


def run(rows: Rows, products: Sequence[Fused], options: Any, budget: Budget) -> list[str]:
    """Measure products until the budget ends; return the names of those that are left."""
    named = {product.name: product for product in products}

    def measure(name: str, processes: Sequence[Arm]) -> tuple[dict[str, Any], bool]:
        shape = named[name]
        request = {"do": "prepare", "shape": name}
        result, whole = raced(request, processes, budget, options.arm_s, options.rounds)
        sizes = {"m": shape.m, "n": shape.n, "k": shape.k, "epilogue": shape.epilogue}
        return {"product": name, **sizes, **result}, whole

    return campaign.run([*named], measure, line, rows, options, budget, ARM_MODULE)


def line(row: Mapping[str, Any]) -> str:
    """Return a row in one line."""
    shown = [f"{arm} {_cell(row, arm) or 'failed'}" for arm in row["arms"]]
    return f"{row['product']:40} " + "  ".join(shown)


def time_us(row: Mapping[str, Any], arm: str) -> float | None:
    """Return microseconds of an arm; None where it has failed or its numbers are wrong."""
    answer = row["arms"].get(arm, {})
    ms = answer.get("median_ms") if is_right(answer) else None
    return None if ms is None else 1e3 * ms


def is_right(answer: Mapping[str, Any]) -> bool:
    """Return whether an arm's error is accepted; NaN is not."""
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
    """Return the plugin's facts about the fusion; empty where it failed."""
    return row["arms"].get("ours", {}).get("fusion", {})


def separate_us(row: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the predicted time of the separate epilogue, and the measured one (both less the product)."""
    fusion = fusion_of(row)
    spans = [prediction["separate_us"] for prediction in fusion.get("predicted", ())]
    low, expected, high = spans[0] if spans else (None, None, None)
    foretold = "" if expected is None else f"{expected:.1f} ({low:.1f} to {high:.1f})"
    measured = fusion.get("measured_us", {})
    if "product" not in measured or "unfused" not in measured:
        return foretold, None
    return foretold, measured["unfused"] - measured["product"]


def registers(row: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return predicted and actual registers of each compiled kernel, and the largest relative error."""
    pairs = [
        (kernel["registers_predicted"], kernel["registers"])
        for kernel in fusion_of(row).get("compiled", ())
        if kernel.get("registers")
    ]
    text = " ".join(dict.fromkeys(f"{predicted}/{actual}" for predicted, actual in pairs))
    return text, max(
        (abs(predicted - actual) / actual for predicted, actual in pairs), default=None
    )


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
        predicted, actual = separate_us(row)
        gains = [
            "" if ratio is None else f"{ratio:.2f}"
            for ratio in (gain(row, "apart"), gain(row, "stock"))
        ]
        table.add_row(
            row["product"],
            *(_cell(row, arm) for arm in ARMS),
            fusion_of(row).get("winner", "").removeprefix("fused.")[:24],
            *gains,
            predicted,
            "" if actual is None else f"{actual:.1f}",
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
