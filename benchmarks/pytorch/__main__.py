"""Runs PyTorch's own Inductor tests with stock max-autotune and with the plugin, and writes where they differ.

    make test-pytorch PYTORCH=/path/to/pytorch ARGS="--limit-s 1800"

The tests are those of a checkout of PyTorch, best of the installed version; of files that need a GPU, copies that name the CPU
run. A test that differs is run once more in both arms; what differs again is reported as a difference, and what does not as
unconfirmed: it is no failure, but the plugin may make it differ at times. Results are kept in ``--work``, in
folders for these sources, this torch and these tests: a run that was ended goes on there, and shards count together.

The status is 1 if a test differs without a known reason, if fewer than ``--least`` tests passed in both arms, if a file is
missing or cannot be collected, or if a test of the shard has no result.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.arms import machine
from benchmarks.harness.repository import RESULTS
from benchmarks.harness.sources import PLUGIN as SOURCES
from benchmarks.pytorch.arm import collected, known, run
from benchmarks.pytorch.cpu_copy import cpu_copy
from benchmarks.pytorch.differences import Difference, counts, differences
from benchmarks.pytorch.journal import Result
from benchmarks.pytorch.place import Place, place_in
from benchmarks.pytorch.reasons import KNOWN
from benchmarks.pytorch.suite import ARMS, PLUGIN, STOCK, SUITES, Suite, environment

LEAST = 400
"""Tests that have to pass in both arms; what fails in both says nothing about the plugin."""
_PART = 25
"""Tests of one process: the limit of time is looked at after each."""
_PART_AGAIN = 5
_AGAIN = "-again"


@dataclass
class Outcome:
    """What became of all files.

    Attributes:
        files: The counts of each file, by its name.
        differences: The tests that differ.
        unconfirmed: Tests that differed once, and not when they were run once more.
        left: Tests of the shard without a result in one of the arms.
        elsewhere: Such tests of other shards.
        refused: Files that cannot be collected, and why.
        missing: Names of files that the checkout does not have, or that are none of the suites.
    """

    files: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    differences: list[Difference] = field(default_factory=list[Difference])
    unconfirmed: list[Difference] = field(default_factory=list[Difference])
    left: int = 0
    elsewhere: int = 0
    refused: dict[str, str] = field(default_factory=dict[str, str])
    missing: list[str] = field(default_factory=list[str])

    @property
    def count(self) -> int:
        """Tests that passed in both arms."""
        return sum(row["passed_in_both"] for row in self.files.values())

    def complaints(self, least: int) -> list[str]:
        """Return why the run has failed.

        Args:
            least: Tests that have to pass in both arms.
        """
        unknown = sum(not difference.why for difference in self.differences)
        complaints = {
            f"{unknown} tests differ": unknown > 0,
            f"{self.count} tests passed in both arms, and {least} have to": self.count < least,
            f"not in the checkout: {', '.join(self.missing)}": bool(self.missing),
            f"cannot be collected: {', '.join(self.refused)}": bool(self.refused),
            f"{self.left} tests have no result; run it again to go on": self.left > 0,
        }
        return [complaint for complaint, applies in complaints.items() if applies]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the files; the exit status is 1 if there are complaints, 2 if there are no tests."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pytorch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("pytorch", type=Path, help="checkout of PyTorch")
    add("--files", nargs="+", default=[suite.name for suite in SUITES])
    each = "each N-th test, from the I-th"
    add("--shard", type=_shard, default=(1, 1), metavar="I/N", help=each)
    add("--limit-s", type=float, default=7200.0, help="seconds after which no tests start")
    add("--least", type=int, default=LEAST, help="tests that have to pass in both arms")
    add("--work", type=Path, default=Path("build/pytorch-tests"))
    add("--out", type=Path, default=RESULTS / "pytorch_tests_cpu.json")
    given = parser.parse_args(arguments)
    folder = given.pytorch / "test" / "inductor"
    if not folder.is_dir():
        parser.error(
            f"{folder} is not a folder; name a checkout of PyTorch, as `git clone` makes it"
        )
    there = {suite.name: suite for suite in SUITES if (folder / suite.file).is_file()}
    suites = [suite for name, suite in there.items() if name in given.files]
    place, until = (
        place_in(given.work.resolve(), folder.resolve()),
        time.monotonic() + given.limit_s,
    )
    outcome = outcome_of(suites, place, given.shard, until)
    if not outcome.files:
        parser.error(f"nothing of {' '.join(given.files)} in {folder} can be run")
    outcome.missing = [name for name in given.files if name not in there]
    complaints = outcome.complaints(given.least)
    _print(outcome, complaints)
    _write(given.out, outcome, complaints)
    return int(bool(complaints))


def outcome_of(
    suites: Sequence[Suite], place: Place, shard: tuple[int, int], until: float
) -> Outcome:
    """Run the tests of a shard in both arms while there is time, and return what is known of all shards.

    Args:
        suites: The files.
        place: The folders.
        shard: Which of how many.
        until: When no more tests start, by ``time.monotonic()``.
    """
    outcome = Outcome()
    for suite in suites:
        try:
            _copy(suite, place)
            results, left, elsewhere = both(suite, place, shard, until)
        except (ValueError, SyntaxError) as error:
            print(error)
            outcome.refused[suite.name] = str(error)[-600:]
            continue
        differing, unconfirmed = confirmed(suite, results, place, shard, until)
        outcome.differences += differing
        outcome.unconfirmed += unconfirmed
        outcome.files[suite.name] = counts(results[STOCK], results[PLUGIN])
        outcome.left += left
        outcome.elsewhere += elsewhere
    return outcome


def both(
    suite: Suite, place: Place, shard: tuple[int, int], until: float
) -> tuple[dict[str, dict[str, Result]], int, int]:
    """Return the results of a file by arm, and how many tests of this and of other shards lack one; runs what there is time for.

    Raises:
        ValueError: The file cannot be collected.
    """
    index, count = shard
    folder, variables = place.folder(suite), _variables(suite, place)
    tests = collected(f"{suite.name}.py", suite.chosen, folder, variables[STOCK])
    mine = tests[index - 1 :: count]
    for start in range(0, len(mine), _PART):
        if time.monotonic() > until:
            break
        for arm in ARMS:
            part = mine[start : start + _PART]
            there = known(part, place.journals(arm, suite))
            missing = [test for test in part if test not in there]
            if missing:
                run(missing, folder, variables[arm], place.journal(arm, suite, shard))
    results = {arm: known(tests, place.journals(arm, suite)) for arm in ARMS}
    lacking = {test for test in tests if any(test not in results[arm] for arm in ARMS)}
    left = len(lacking.intersection(mine))
    return results, left, len(lacking) - left


def confirmed(
    suite: Suite,
    results: Mapping[str, Mapping[str, Result]],
    place: Place,
    shard: tuple[int, int],
    until: float,
) -> tuple[list[Difference], list[Difference]]:
    """Return the tests that differ, and differ again when both arms run them once more, or could not any more; and those that do not."""
    suspects = differences(results[STOCK], results[PLUGIN], KNOWN)
    names, variables = [suspect.test for suspect in suspects], _variables(suite, place)
    for start in range(0, len(names), _PART_AGAIN):
        if time.monotonic() > until:
            break
        for arm in ARMS:
            part = names[start : start + _PART_AGAIN]
            there = known(part, place.journals(arm, suite, _AGAIN))
            missing = [test for test in part if test not in there]
            if missing:
                journal = place.journal(arm, suite, shard, _AGAIN)
                run(missing, place.folder(suite), variables[arm], journal)
    again = {arm: known(names, place.journals(arm, suite, _AGAIN)) for arm in ARMS}
    once = [replace(suspect, is_confirmed=False) for suspect in suspects]
    open_ = [each for each in once if any(each.test not in again[arm] for arm in ARMS)]
    differing = differences(again[STOCK], again[PLUGIN], KNOWN) + open_
    named = {difference.test for difference in differing}
    return differing, [each for each in once if each.test not in named]


def _variables(suite: Suite, place: Place) -> dict[str, dict[str, str]]:
    return {arm: environment(arm, suite, place.arms[arm], place.tests.parent) for arm in ARMS}


def _copy(suite: Suite, place: Place) -> None:
    """Write the copy of a file that names the CPU, where one runs.

    Raises:
        SyntaxError: The file is no Python.
    """
    if suite.is_copied:
        text = (place.tests / suite.file).read_text(encoding="utf-8")
        place.copies.mkdir(parents=True, exist_ok=True)
        (place.copies / f"{suite.name}.py").write_text(cpu_copy(text), encoding="utf-8")


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text} is no I/N with I from 1 to N, as in 2/8")
    return int(index), int(count)


def _write(out: Path, outcome: Outcome, complaints: Sequence[str]) -> None:
    facts = machine((*SOURCES, "benchmarks/pytorch"), dry=True) or {}
    report: dict[str, Any] = {
        "machine": facts,
        "passed_in_both": outcome.count,
        "left": outcome.left,
        "left_to_other_shards": outcome.elsewhere,
        "complaints": list(complaints),
        "files": outcome.files,
        "refused": outcome.refused,
        "missing": outcome.missing,
        "differences": [difference.to_fields() for difference in outcome.differences],
        "unconfirmed": [difference.to_fields() for difference in outcome.unconfirmed],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _print(outcome: Outcome, complaints: Sequence[str]) -> None:
    table = Table("file", "in both", "run", "same", "passed in both", "stock s", "plugin s")
    for name, row in outcome.files.items():
        table.add_row(name, *(str(value) for value in row.values()))
    console = Console()
    console.print(table)
    for difference in outcome.differences:
        kind = "FAULT" if difference.is_fault else "differs"
        outcomes = (
            f"{difference.stock.outcome} without, {difference.plugin.outcome} with the plugin"
        )
        sure = "" if difference.is_confirmed else " (not run once more yet)"
        console.print(f"{kind} {difference.test}: {outcomes} {difference.why}{sure}", markup=False)
    for difference in outcome.unconfirmed:
        console.print(f"differed once, and not again: {difference.test}", markup=False)
    if outcome.elsewhere:
        console.print(f"{outcome.elsewhere} tests are left to other shards.")
    for complaint in complaints:
        console.print(f"FAILED: {complaint}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
