"""What the benchmarks on a GPU share: arguments, the file a run goes on from, and races as far as its budget goes."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.arms import Arm, arms, machine
from benchmarks.harness.repository import RESULTS
from benchmarks.harness.resume import Budget, Rows, is_better, waiting

Measure = Callable[[str, Sequence[Arm]], tuple[dict[str, Any], bool]]
"""Returns the row of what has a name, as the arms say, and whether the budget let all of them end."""


def opened(name: str, sources: Sequence[str], given: argparse.Namespace) -> Rows | None:
    """Return the rows a benchmark goes on with; None, and say so, without a GPU.

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
    # Another file that is not there yet goes on from the usual one.
    rows = Rows(out, facts, () if given.fresh else (out, usual))
    if rows.note:
        print(rows.note)
    return rows


def run(
    names: Sequence[str],
    measure: Measure,
    line: Callable[[Mapping[str, Any]], str],
    rows: Rows,
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
        rows: Gets the rows.
        given: The arguments.
        budget: Of this run.
        module: What answers for an arm.
        seldom: An arm that is asked for some alone, so that the next one does not take its seconds.
    """
    left = waiting(rows.rows, names, given.arms)
    longest_s = 0.0
    begun = 0
    with arms(given.arms, module, dry=given.dry) as processes:
        while left and budget.rest_s() > longest_s:
            before_s = budget.spent_s()
            row, whole = measure(left[0], processes)
            begun += 1
            if not whole and begun > 1:
                break  # the budget ended it, so it says nothing of the arms
            # The first one is kept even so: one that takes all of a run would be begun for ever.
            name, left = left[0], left[1:]
            seldom_s = row["prepare_s"].get(seldom, 0.0)
            longest_s = max(longest_s, budget.spent_s() - before_s - seldom_s)
            earlier = rows.get(name)
            if earlier is None or is_better(row, earlier):
                rows.put(row)
            print(f"[{budget.spent_s():5.0f} s] {line(row)}", flush=True)
    return left


@dataclass(frozen=True)
class Benchmark:
    """A benchmark on a GPU.

    Attributes:
        name: What its file is named by.
        doc: What it is.
        many: What is measured, in the plural.
        arms: Names of its arms.
        sources: What a row is measured with; another version begins anew.
        budget_s: Seconds of a run.
        arm_s: Seconds an arm may compile.
        rounds: Samples of each arm.
    """

    name: str
    doc: str | None
    many: str
    arms: Sequence[str]
    sources: Sequence[str]
    budget_s: float
    arm_s: float
    rounds: int

    def main(
        self,
        run: Callable[[Rows, argparse.Namespace, Budget], list[str]],
        show: Callable[[Sequence[Mapping[str, Any]]], None],
        *,
        dry_arms: Sequence[str] = (),
        more: Callable[[argparse.ArgumentParser], object] | None = None,
    ) -> int:
        """Measure what is not measured yet, write after each row, print a table last.

        Args:
            run: Measures until the budget ends; returns the names of what is left.
            show: Prints the table.
            dry_arms: The arms of a dry run; all of them if not given.
            more: Adds arguments of its own.
        """
        parsed = self.parser()
        if more is not None:
            more(parsed)
        given = parsed.parse_args()
        given.arms = given.arms or list((given.dry and dry_arms) or self.arms)
        budget = Budget(given.budget_s)
        rows = opened(self.name, self.sources, given)
        if rows is None:
            return 0
        left = run(rows, given, budget)
        show(rows.rows)
        closing(self.many, left, rows.path)
        return 0

    def parser(self) -> argparse.ArgumentParser:
        """Return the arguments that all benchmarks have."""
        parsed = argparse.ArgumentParser(
            description=self.doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        left = "seconds of this run; what is left is for the next"
        named = f"only {self.many} whose name has this in it"
        longest = "most seconds an arm compiles"
        parsed.add_argument("--budget-s", type=float, default=self.budget_s, help=left)
        parsed.add_argument("--match", default="", help=named)
        parsed.add_argument("--limit", type=int, default=0, help=f"most {self.many}; 0 for all")
        parsed.add_argument("--arms", nargs="+", choices=self.arms, help="all of them if not given")
        parsed.add_argument("--arm-s", type=float, default=self.arm_s, help=longest)
        parsed.add_argument("--rounds", type=int, default=self.rounds)
        parsed.add_argument("--fresh", action="store_true", help="forget what is finished")
        parsed.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
        parsed.add_argument("--out", type=Path)
        return parsed


def chosen(names: Iterable[str], given: argparse.Namespace) -> list[str]:
    """Return the names that the arguments ``--match`` and ``--limit`` leave."""
    return [name for name in names if given.match in name][: given.limit or None]


def closing(many: str, left: Sequence[str], out: Path) -> None:
    """Say what is left, and where the rest was written."""
    if left:
        print(f"{len(left)} {many} are left ({left[0]} is next); run it again to go on.")
    if out.is_file():
        print(f"Written to {out}.")
