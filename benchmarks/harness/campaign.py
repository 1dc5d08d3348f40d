"""Shared by the benchmarks on a GPU: arguments, resuming from a result file, and measuring within a budget."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.arms import Arm, arms, cut_by_budget, machine
from benchmarks.harness.repository import RESULTS
from benchmarks.harness.resume import CUT, Budget, Rows, failed_arms, is_better, waiting

Gain = Callable[[Mapping[str, Any], str], "float | None"]
Measure = Callable[[str, Sequence[Arm]], tuple[dict[str, Any], bool]]
"""Returns the row of a name, and whether all arms finished within the budget."""


def opened(name: str, sources: Sequence[str], arguments: argparse.Namespace) -> Rows | None:
    """Return the rows of earlier runs to resume from; without a GPU, print that and return None.

    Args:
        name: Name of the benchmark, and of its file.
        sources: Sources that rows depend on; if they changed, all rows are measured again.
        arguments: The arguments.
    """
    facts = machine(sources, dry=arguments.dry)
    if facts is None:
        print("No CUDA device here; --dry checks the benchmark without one.")
        return None
    default = RESULTS / f"{name}_{facts['gpu'].replace(' ', '_').lower()}.json"
    if arguments.dry:
        default = Path(tempfile.gettempdir()) / f"{name}_dry.json"
    out = arguments.out or default
    # A new file given by --out resumes from the default one.
    rows = Rows(out, facts, () if arguments.fresh else (out, default))
    if rows.rejection:
        print(rows.rejection)
    return rows


def run(
    names: Sequence[str],
    measure: Measure,
    line: Callable[[Mapping[str, Any]], str],
    rows: Rows,
    arguments: Any,
    budget: Budget,
    module: str,
    seldom: str = "",
) -> list[str]:
    """Measure until the budget ends, write after each row; return the remaining names.

    Args:
        names: Names to measure, in this order.
        measure: Measures a name.
        line: Formats a row for printing.
        rows: Collects the rows.
        arguments: The arguments.
        budget: The budget of this run.
        module: The module that each arm runs.
        seldom: An arm that measures only some names, so that its time does not predict that of the next.
    """
    left = waiting(rows.rows, names, arguments.arms)
    longest_s = 0.0
    started = 0
    with arms(arguments.arms, module, dry=arguments.dry) as processes:
        while left and budget.rest_s() > longest_s:
            before_s = budget.spent_s()
            row, whole = measure(left[0], processes)
            started += 1
            if not whole:
                cut = _cut(row, budget)
                print(f"[{budget.spent_s():5.0f} s] {left[0]}: {cut}", flush=True)
                if started > 1:
                    break  # the next run has more time for it, and begins with it
                # It had a whole run: others come first, or it would be all that is ever measured.
                name, left = left[0], left[1:]
                earlier = rows.get(name)
                if earlier is None or CUT in earlier:
                    rows.put({"product": name, CUT: cut, "arms": {}})
                continue
            name, left = left[0], left[1:]
            seldom_s = row["prepare_s"].get(seldom, 0.0)
            longest_s = max(longest_s, budget.spent_s() - before_s - seldom_s)
            earlier = rows.get(name)
            if earlier is None or is_better(row, earlier):
                rows.put(row)
            print(f"[{budget.spent_s():5.0f} s] {line(row)}", flush=True)
    return left


def _cut(row: Mapping[str, Any], budget: Budget) -> str:
    """Return why a row is no result, and what happens to it."""
    arms = ", ".join(cut_by_budget(row))
    spent = f"after {budget.spent_s():.0f} of the run's {budget.seconds:.0f} s"
    return f"{arms} had no more time {spent}; it is tried again by the next run"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark on a GPU.

    Attributes:
        name: Name of the benchmark, and of its file.
        doc: Description for ``--help``.
        many: Noun for the measured names, in the plural.
        arms: Names of its arms.
        sources: Sources that rows depend on; if they changed, all rows are measured again.
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
        gain: Gain | None = None,
    ) -> int:
        """Measure all missing rows, write after each row, print a table at the end.

        Args:
            run: Measures until the budget ends; returns the remaining names.
            show: Prints the table.
            dry_arms: The arms of a dry run; all of them if not given.
            more: Adds arguments of this benchmark.
            gain: Returns how many times as fast as an arm the plugin is in a row, for the last line.

        Returns:
            2 without a GPU, 1 if the plugin's arm, or the last one without it, has no result at all, 0 otherwise.
        """
        parser = self.parser()
        if more is not None:
            more(parser)
        arguments = parser.parse_args()
        arguments.arms = arguments.arms or list((arguments.dry and dry_arms) or self.arms)
        budget = Budget(arguments.budget_s)
        rows = opened(self.name, self.sources, arguments)
        if rows is None:
            return 2
        left = run(rows, arguments, budget)
        show([row for row in rows.rows if CUT not in row])
        for row in rows.rows:
            if CUT in row:
                print(f"{row['product']}: {row[CUT]}")
        closing(self.many, left, rows.path)
        results = [row for row in rows.rows if CUT not in row]
        print(summary(self.many, results, [arm for arm in arguments.arms if arm != "ours"], gain))
        ours = "ours" if "ours" in arguments.arms else arguments.arms[-1]
        return 0 if any(ours in r["arms"] and not failed_arms(r, [ours]) for r in rows.rows) else 1

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of the arguments that all benchmarks have."""
        parser = argparse.ArgumentParser(
            description=self.doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        budget = "seconds of this run; what is left is for the next"
        match = f"only {self.many} whose name has this in it"
        longest = "most seconds an arm compiles"
        parser.add_argument("--budget-s", type=float, default=self.budget_s, help=budget)
        parser.add_argument("--match", default="", help=match)
        parser.add_argument("--limit", type=int, default=0, help=f"most {self.many}; 0 for all")
        parser.add_argument("--arms", nargs="+", choices=self.arms, help="all of them if not given")
        parser.add_argument("--arm-s", type=float, default=self.arm_s, help=longest)
        parser.add_argument("--rounds", type=int, default=self.rounds)
        parser.add_argument("--fresh", action="store_true", help="forget what is finished")
        parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
        parser.add_argument("--out", type=Path)
        return parser


def chosen(names: Iterable[str], arguments: argparse.Namespace) -> list[str]:
    """Return the names selected by the arguments ``--match`` and ``--limit``."""
    return [name for name in names if arguments.match in name][: arguments.limit or None]


def summary(
    many: str, rows: Sequence[Mapping[str, Any]], rivals: Iterable[str], gain: Gain | None
) -> str:
    """Return the results in one line: how many, the plugin's failures, and its gains as geometric means.

    Args:
        many: Noun for the rows, in the plural.
        rows: The rows; those that were cut are none.
        rivals: The arms that the plugin is compared with.
        gain: Returns how many times as fast as an arm the plugin is in a row, None where unknown.
    """
    failed = sum(bool(failed_arms(row, ["ours"])) for row in rows)
    parts = [f"{len(rows)} {many}"] + ([f"the plugin failed in {failed}"] if failed else [])
    for arm in rivals:
        ratios = [ratio for row in rows if gain and (ratio := gain(row, arm))]
        if ratios:
            parts.append(f"x{statistics.geometric_mean(ratios):.2f} of {arm} ({len(ratios)})")
    return f"summary: {', '.join(parts)}"


def closing(many: str, left: Sequence[str], out: Path) -> None:
    """Print the remaining names, and the file with the results."""
    if left:
        print(f"{len(left)} {many} are left ({left[0]} is next); run it again to go on.")
    if out.is_file():
        print(f"Written to {out}.")
