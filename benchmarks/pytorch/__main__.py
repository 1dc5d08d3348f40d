"""Runs PyTorch's own Inductor tests with stock max-autotune and with the plugin, and writes where they differ.

    make test-pytorch PYTORCH=/path/to/pytorch ARGS="--limit-s 1800"

The tests are those of a checkout of PyTorch, best of the installed version. A test that differs is run once more in
both arms; what differs again is reported. Results are kept in ``--work``: a run that was ended goes on there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.arms import machine
from benchmarks.harness.sources import PLUGIN as SOURCES
from benchmarks.pytorch.arm import collected, run
from benchmarks.pytorch.differences import Difference, counts, differences
from benchmarks.pytorch.journal import Result
from benchmarks.pytorch.suite import ARMS, KNOWN, PLUGIN, STOCK, SUITES, Suite, environment

_PART = 25
"""Tests of one process: the limit of time is looked at after each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the files; the exit status is 1 if the plugin is at fault, 2 if there are no tests."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pytorch", description=__doc__)
    parser.add_argument("pytorch", type=Path, help="checkout of PyTorch")
    parser.add_argument("--files", nargs="+", default=[suite.name for suite in SUITES])
    parser.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="I/N", help="each N-th test, from the I-th"
    )
    parser.add_argument(
        "--limit-s", type=float, default=7200.0, help="seconds after which no tests start"
    )
    parser.add_argument("--work", type=Path, default=Path("build/pytorch-tests"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    folder = given.pytorch / "test" / "inductor"
    if not folder.is_dir():
        parser.error(
            f"{folder} is not a folder; name a checkout of PyTorch, as `git clone` makes it"
        )
    work, until = given.work.resolve(), time.monotonic() + given.limit_s
    summary: dict[str, Any] = {}
    differences: list[Difference] = []
    for suite in SUITES:
        if suite.name in given.files and (folder / suite.file).is_file():
            try:
                results = both(suite, folder.resolve(), work, given.shard, until)
            except ValueError as error:
                print(error)
                continue
            differences += confirmed(suite, results, folder.resolve(), work)
            summary[suite.name] = counts(*results)
    if not summary:
        parser.error(f"nothing of {' '.join(given.files)} in {folder} can be run")
    _print(summary, differences)
    if given.out:
        facts = machine((*SOURCES, "benchmarks/pytorch"), dry=True) or {}
        report = {
            "machine": facts,
            "files": summary,
            "differences": [difference.to_fields() for difference in differences],
        }
        given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(any(difference.is_fault for difference in differences))


def both(
    suite: Suite, folder: Path, work: Path, shard: tuple[int, int], until: float
) -> tuple[dict[str, Result], dict[str, Result]]:
    """Return the results of a file in both arms, of as many tests as the time suffices for."""
    index, count = shard
    variables = {arm: environment(arm, suite, work, folder.parent) for arm in ARMS}
    tests = collected(suite.file, suite.chosen, folder, variables[STOCK])[index - 1 :: count]
    results: dict[str, dict[str, Result]] = {arm: {} for arm in ARMS}
    for start in range(0, len(tests), _PART):
        if time.monotonic() > until:
            break
        for arm in ARMS:
            journal = work / arm / f"{suite.name}.jsonl"
            results[arm] |= run(tests[start : start + _PART], folder, variables[arm], journal)
    return results[STOCK], results[PLUGIN]


def confirmed(
    suite: Suite, results: tuple[dict[str, Result], dict[str, Result]], folder: Path, work: Path
) -> list[Difference]:
    """Return the tests that differ, and differ again when both arms run them once more."""
    suspects = [difference.test for difference in differences(*results, KNOWN)]
    again = {
        arm: run(
            suspects,
            folder,
            environment(arm, suite, work, folder.parent),
            work / arm / f"{suite.name}-again.jsonl",
        )
        for arm in ARMS
    }
    return differences(again[STOCK], again[PLUGIN], KNOWN)


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text} is no I/N with I from 1 to N, as in 2/8")
    return int(index), int(count)


def _print(summary: dict[str, Any], differences: Sequence[Difference]) -> None:
    table = Table("file", "in both", "same", "passed in both", "stock s", "plugin s")
    for name, row in summary.items():
        table.add_row(name, *(str(value) for value in row.values()))
    console = Console()
    console.print(table)
    for difference in differences:
        kind = "FAULT" if difference.is_fault else "differs"
        outcomes = (
            f"{difference.stock.outcome} without, {difference.plugin.outcome} with the plugin"
        )
        console.print(f"{kind} {difference.test}: {outcomes} {difference.why}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
