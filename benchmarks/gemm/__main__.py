"""Matrix products of known models on this GPU: cuBLAS, stock max-autotune, stock CUTLASS, the plugin.

    python -m benchmarks.gemm [--budget-s 450] [--kinds bf16 e4m3_row] [--match TEXT] [--fresh] [--dry]

Each arm is a separate long-lived process; all get the same inputs. A product is compiled by one arm
after the other (nothing else runs meanwhile), captured in a CUDA graph, and then sampled in turns with
a cold L2. Products are measured in the order of interest (`shapes.by_interest`). Finished rows are written
to the JSON file immediately: the next run resumes a run that was stopped, or whose budget ended, on
the same machine with the same sources. Products with a failed arm are tried again, last. What the budget
cut is no result and is tried again, too; no arm may spend what the arms after it need.

``first call`` is the first call's seconds, tuning included; caches fill up along the list, as they
do in use. Stock CUTLASS takes minutes per product, so that it is sampled: one product of each type and
class of M (`M_CLASSES`), within ``--cutlass-s`` seconds of a run; ``sampled`` in the file describes that,
and the other rows have no such arm. ``built`` counts kernels compiled up to the first
within 1 % of the arm's own best, in the arm's own order. ``--dry`` runs the same steps with tiny sizes on a CPU, to check the benchmark itself.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gemm.products import kind, missing_call
from benchmarks.gemm.shapes import Shape, by_interest
from benchmarks.harness import campaign
from benchmarks.harness.arms import Arm, raced
from benchmarks.harness.resume import Budget, Rows
from benchmarks.harness.sources import PLUGIN

ARM_MODULE = "benchmarks.gemm.arm"
ARMS = ("cublas", "stock", "ours", "stock_cutlass")
SHOWN = {
    "cublas": "cuBLAS",
    "stock": "stock",
    "stock_cutlass": "st.CUTLASS (sample)",
    "ours": "plugin",
}
"""The arms in the order of the table, with their columns' heads."""
KINDS = ("bf16", "e4m3_row")
MANY = "products"
ROUNDS = 15
SAMPLED = "stock_cutlass"
"""The arm that measures only some products."""
M_CLASSES = (("decode", 16), ("batch", 256), ("prefill", 1 << 30))
"""Names of the classes of M, and the most rows of each."""
ACCEPTED = 0.05
"""Largest accepted error: fp8 with fast accumulation has 0.02."""
SOURCES = (*PLUGIN, "benchmarks/harness", "benchmarks/gemm")
"""Sources that rows depend on; if they changed, all rows are measured again."""


def main() -> int:
    """Measure all missing products, write after each, print a table at the end."""

    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kinds", nargs="+", default=list(KINDS))
        parser.add_argument(
            "--cutlass-s", type=float, default=150.0, help="seconds of stock CUTLASS"
        )

    def measure_all(rows: Rows, arguments: argparse.Namespace, budget: Budget) -> list[str]:
        rows.facts |= {"sampled": {SAMPLED: sampling(arguments.kinds)}}
        products = {name_of(*product): product for product in todo(arguments.kinds)}
        names = campaign.chosen(products, arguments)
        return run(rows, [products[name] for name in names], arguments, budget)

    benchmark = campaign.Benchmark("gemm", __doc__, MANY, ARMS, SOURCES, 450.0, 180.0, ROUNDS)
    return benchmark.main(measure_all, show, more=more, gain=gain)


def run(
    rows: Rows, products: Sequence[tuple[Shape, str]], arguments: Any, budget: Budget
) -> list[str]:
    """Measure products until the budget ends; return the names of the remaining ones."""
    named = {name_of(*product): product for product in products}
    cutlass_s = 0.0

    def measure(name: str, processes: Sequence[Arm]) -> tuple[dict[str, Any], bool]:
        nonlocal cutlass_s
        others = [row for row in rows.rows if row["product"] != name]
        sampled = is_sampled(*named[name], others) and cutlass_s < arguments.cutlass_s
        participants = [arm for arm in processes if sampled or arm.name != SAMPLED]
        row, whole = measured(*named[name], participants, budget, arguments.arm_s, arguments.rounds)
        cutlass_s += row["prepare_s"].get(SAMPLED, 0.0)
        return row, whole

    return campaign.run(
        [*named], measure, line, rows, arguments, budget, ARM_MODULE, seldom=SAMPLED
    )


def m_class(m: int) -> str:
    """Return the name of the class a number of rows belongs to."""
    return next(name for name, most in M_CLASSES if m <= most)


def is_sampled(shape: Shape, types: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the sampled arm measures a product: if it is the first of its type and class."""
    current = (types, m_class(shape.m))
    measured_kinds = {(row["kind"], m_class(row["m"])) for row in rows if SAMPLED in row["arms"]}
    return current not in measured_kinds


def sampling(kinds: Sequence[str]) -> str:
    """Return how the sampled arm's products are chosen."""
    classes = ", ".join(f"{name} (M up to {most})" for name, most in M_CLASSES[:-1])
    return (
        f"one product of each type ({', '.join(kinds)}) and class of M ({classes}, "
        f"{M_CLASSES[-1][0]}), the first in the order of interest, as far as --cutlass-s goes"
    )


def measured(
    shape: Shape,
    types: str,
    processes: Sequence[Arm],
    budget: Budget,
    arm_s: float,
    rounds: int,
) -> tuple[dict[str, Any], bool]:
    """Return one product's row, and whether all arms finished within the budget."""
    request = {"do": "prepare", "shape": shape.label, "kind": types}
    result, whole = raced(request, processes, budget, arm_s, rounds, seldom=SAMPLED)
    sizes = {"m": shape.m, "n": shape.n, "k": shape.k, "groups": shape.layer.groups}
    return {"product": name_of(shape, types), "kind": types, **sizes, **result}, whole


def todo(kinds: Sequence[str]) -> list[tuple[Shape, str]]:
    """Return all products torch has a call for, the most interesting first."""
    pairs = [(shape, types) for shape in by_interest() for types in kinds]
    return [(shape, types) for shape, types in pairs if missing_call(shape, kind(types)) is None]


def name_of(shape: Shape, types: str) -> str:
    """Return a product's name."""
    return f"{shape.label} {types}"


def line(row: Mapping[str, Any]) -> str:
    """Return a row in one line."""
    shown = [
        f"{name} {_cell(answer, 'median_ms', lambda ms: f'{ms * 1e3:.1f} us')}"
        for name, answer in row["arms"].items()
    ]
    return f"{row['product']:40} " + "  ".join(shown)


def _cell(answer: Mapping[str, Any] | None, field: str, text: Callable[[Any], str]) -> str:
    if answer is None:
        return ""
    if "failed" in answer:
        return "failed"
    if not is_right(answer):
        return "wrong"
    return "" if answer.get(field) is None else text(answer[field])


def is_right(answer: Mapping[str, Any]) -> bool:
    """Return whether an arm's error is accepted; NaN is not."""
    return answer.get("error", 0.0) <= ACCEPTED


def show(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the table, and why an arm failed."""
    rich_table: Any = importlib.import_module("rich.table")
    console: Any = importlib.import_module("rich.console").Console(width=150)
    rows = list(rows)
    count = sum(SAMPLED in row["arms"] for row in rows)
    title = "microseconds, cold L2, median; st.CUTLASS is a sample"
    title = f"{title}: {count} of {len(rows)} products"
    table = rich_table.Table(title=title, title_justify="left")
    table.add_column("product")
    heads = (*SHOWN.values(), "x cuBLAS", "x stock")
    more = ("first call s: stock", "plugin", "built: stock", "plugin")
    for head in (*heads, *more):
        table.add_column(head, justify="right")
    failures: dict[str, None] = {}
    for row in rows:
        reports: dict[str, Any] = row["arms"]
        times = [
            _cell(reports.get(arm), "median_ms", lambda ms: f"{ms * 1e3:.1f}") for arm in SHOWN
        ]
        ratios = (gain(row, arm) for arm in ("cublas", "stock"))
        gains = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        pair = [reports.get(arm) for arm in ("stock", "ours")]
        calls = [_cell(report, "first_call_s", lambda s: f"{s:.0f}") for report in pair]
        built = [_cell(report, "built_to_99", str) for report in pair]
        table.add_row(row["product"], *times, *gains, *calls, *built)
        for arm, answer in reports.items():
            if "failed" in answer:
                failures[f"{row['product']}: {arm}: {answer['failed']}"] = None
    console.print(table)
    for failure in failures:
        print(failure)


def gain(row: Mapping[str, Any], arm: str) -> float | None:
    """Return how many times as fast as an arm the plugin is; None where either failed or is wrong."""
    answers = [row["arms"].get(name, {}) for name in (arm, "ours")]
    times: list[Any] = [answer.get("median_ms") if is_right(answer) else None for answer in answers]
    return times[0] / times[1] if all(times) else None


if __name__ == "__main__":
    sys.exit(main())
