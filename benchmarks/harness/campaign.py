"""What the benchmarks on a GPU share: arguments, the file a run goes on from, and races as far as its budget goes."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.arms import Arm, arms, machine, write
from benchmarks.harness.repository import RESULTS
from benchmarks.harness.resume import Budget, finished, put, waiting

Measure = Callable[[str, Sequence[Arm]], tuple[dict[str, Any], bool]]
"""Returns the row of what has a name, as the arms say, and whether the budget let all of them end."""


def parser(
    doc: str | None, many: str, names: Sequence[str], *, budget_s: float, arm_s: float, rounds: int
) -> argparse.ArgumentParser:
    """Return the arguments of a benchmark.

    Args:
        doc: What it is.
        many: What is measured, in the plural.
        names: Its arms.
        budget_s: Seconds of a run.
        arm_s: Seconds an arm may compile.
        rounds: Samples of each arm.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    left = "seconds of this run; what is left is for the next"
    made.add_argument("--budget-s", type=float, default=budget_s, help=left)
    made.add_argument("--match", default="", help=f"only {many} whose name has this in it")
    made.add_argument("--limit", type=int, default=0, help=f"most {many}; 0 for all")
    made.add_argument("--arms", nargs="+", choices=names, help="all of them if not given")
    made.add_argument("--arm-s", type=float, default=arm_s, help="most seconds an arm compiles")
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--fresh", action="store_true", help="forget what is finished")
    made.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    made.add_argument("--out", type=Path)
    return made


def opened(
    name: str, sources: Sequence[str], given: argparse.Namespace
) -> tuple[Path, dict[str, Any]] | None:
    """Return a benchmark's file, and the report it goes on with; None, and say so, without a GPU.

    Args:
        name: What the file is named by.
        sources: What a row is measured with; another version begins anew.
        given: The arguments.
    """
    facts = machine(sources, dry=given.dry)
    if facts is None:
        print("No CUDA device here; --dry checks the benchmark without one.")
        return None
    usual = RESULTS / f"{name}_{facts['gpu'].replace(' ', '_').lower()}.json"
    if given.dry:
        usual = Path(tempfile.gettempdir()) / f"{name}_dry.json"
    out = given.out or usual
    # A file of one's own that is not there yet goes on from the usual one.
    before = out if out.is_file() else usual
    return out, {**facts, "rows": [] if given.fresh else finished(before, facts)}


def run(
    names: Sequence[str],
    measure: Measure,
    line: Callable[[Mapping[str, Any]], str],
    report: dict[str, Any],
    out: Path,
    given: Any,
    budget: Budget,
    module: str,
    seldom: str = "",
) -> list[str]:
    """Measure until the budget ends, write after each row; return the names that are left.

    Args:
        names: What is measured, the first first.
        measure: Measures one.
        line: What is printed of a row.
        report: Gets the rows.
        out: Where it is written.
        given: The arguments.
        budget: Of this run.
        module: What answers for an arm.
        seldom: An arm that is asked for some alone, so that the next one does not take its seconds.
    """
    rows: list[dict[str, Any]] = report["rows"]
    left = waiting(rows, names, given.arms)
    longest_s = 0.0
    begun = 0
    with arms(given.arms, module, dry=given.dry) as processes:
        while left and budget.rest_s() > longest_s:
            before_s = budget.spent_s()
            row, whole = measure(left[0], processes)
            begun += 1
            if not whole and begun > 1:
                break  # the budget ended it, so it says nothing of the arms
            # The first one stands even so: one that takes all of a run would be begun for ever.
            left = left[1:]
            seldom_s = row["prepare_s"].get(seldom, 0.0)
            longest_s = max(longest_s, budget.spent_s() - before_s - seldom_s)
            put(rows, row)
            write(out, report)
            print(f"[{budget.spent_s():5.0f} s] {line(row)}", flush=True)
    return left


def closing(many: str, left: Sequence[str], out: Path) -> None:
    """Say what is left, and where the rest was written."""
    if left:
        print(f"{len(left)} {many} are left ({left[0]} is next); run it again to go on.")
    if out.is_file():
        print(f"Written to {out}.")
