"""Runs the cases of kernels in their schedules, and writes the table; what is in it already is not run again.

    python -m tests.emulator.suite [--family sm90 ...] [--case NAME ...] [--limit-s 600] [--again] [--built]

At the end it names the cases that are still to run, by family.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Iterable, Mapping

from inductor_plugin.errors import KernelError
from tests.emulator.fault import FaultError
from tests.emulator.kernels import build
from tests.emulator.machine.schedule import EAGER
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import row as table
from tests.emulator.suite.entry import Entry, entries
from tests.emulator.suite.row import Row, counts_of, rounded, versions

_BATCH = 6
"""Kernels of a unit: more take more memory than two compilers have on a machine of 8 GB."""


def main() -> int:
    """Run what is missing; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.suite", description=__doc__)
    parser.add_argument("--family", action="append", help="only cases of it: sm80, sm90, tree ...")
    parser.add_argument("--case", action="append", help="only this case")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="begin no case after it")
    parser.add_argument("--again", action="store_true", help="run what is in the table, too")
    parser.add_argument("--built", action="store_true", help="only kernels that are compiled")
    arguments = parser.parse_args()
    chosen = [
        entry
        for entry in entries().values()
        if entry.family in (arguments.family or [entry.family])
        and entry.name in (arguments.case or [entry.name])
    ]
    rows = {} if arguments.again else table.read()
    missing = [entry for entry in chosen if not _done(entry, rows.get(entry.name))]
    if arguments.built:
        missing = [each for each in missing if not each.config or build.is_built(each.config)]
    print(f"{len(chosen)} cases, {len(missing)} of them to run", flush=True)
    runtime, ends, wrong = Runtime(build.CACHE), time.monotonic() + arguments.limit_s, 0
    right: set[str] = set()
    for first in range(0, len(missing), _BATCH):
        if time.monotonic() > ends:
            break
        part = missing[first : first + _BATCH]
        build.libraries([entry.config for entry in part if entry.config], runtime.cudart)
        for entry in part:
            if time.monotonic() > ends:
                break
            row, text = row_of(runtime, entry)
            wrong += bool(text)
            right |= set() if text else {entry.name}
            print(f"{entry.name}: {text or row.errors}", flush=True)
            rows = table.read() | {entry.name: row}  # another process may have added some
            table.write(rows.values(), _facts())
    rows = {} if arguments.again else table.read()
    print(*left_lines(chosen, rows, right), sep="\n", flush=True)
    return 1 if wrong else 0


def left_lines(
    chosen: Iterable[Entry], rows: Mapping[str, Row], right: Collection[str]
) -> list[str]:
    """Return a line for each family: which of its chosen cases are still to run, wrong ones included.

    Args:
        chosen: The cases that were asked for.
        rows: The table; empty if its rows do not count.
        right: Names of cases that were run now and are right.
    """
    families: dict[str, list[Entry]] = {}
    for entry in chosen:
        families.setdefault(entry.family, []).append(entry)
    lines: list[str] = []
    for family, cases in families.items():
        left = [
            entry.name
            for entry in cases
            if entry.name not in right and not _done(entry, rows.get(entry.name))
        ]
        named = "".join(f"\n  {name}" for name in left)
        lines.append(f"{family}: {len(left)} of {len(cases)} cases still to run{named}")
    return lines


def _done(entry: Entry, row: Row | None) -> bool:
    wanted = {str(schedule) for schedule in entry.schedules}
    return row is not None and row.source == entry.source and set(row.errors) >= wanted


def row_of(runtime: Runtime, entry: Entry) -> tuple[Row, str]:
    """Return the row of a case, and what is wrong with it."""
    row = Row(entry.family, entry.name, entry.kernel, entry.gpu, entry.source)
    begin = time.monotonic()
    for schedule in entry.schedules:
        try:
            verdict = entry.run(runtime, schedule)
        except (FaultError, KernelError, PtxError) as error:
            return row, f"{schedule}: {error}"
        if not verdict.error <= 1 or verdict.changed:
            # Without this schedule the row is not whole: the case is run again.
            return row, f"{schedule}: error {verdict.error}, {verdict.changed} bytes changed"
        row.errors[str(schedule)] = rounded(verdict.error)
        row.seconds = round(time.monotonic() - begin, 1)
        if schedule == EAGER:
            row.counts = counts_of(verdict.launches)
    return row, ""


def _facts() -> dict[str, str]:
    """Return what the table depends on besides the kernels."""
    unit = "what the product accepts (problem/tolerance.py) against float64"
    return {**versions(), "unit of errors": unit}


if __name__ == "__main__":
    sys.exit(main())
