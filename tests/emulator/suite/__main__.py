"""Runs the cases of kernels in their schedules, and writes the table; what is in it already is not run again.

    python -m tests.emulator.suite [--family sm90 ...] [--case NAME ...] [--limit-s 600] [--again] [--recheck] [--built] [--accept-counts]

Of a row with another source only the eager schedule is run where its launches run the same PTX as before. A case that moves or computes
much more or less than its row says is wrong, and the row stays; `--accept-counts` takes the new counts. `--recheck` runs the watched schedule
of rows that an earlier emulator has run: it computes all numbers, and looks for races. At the end the command
names the cases that are wrong, which else have no row, and those that are still to run, by family.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from inductor_plugin.errors import KernelError
from tests.emulator.fault import FaultError
from tests.emulator.kernels import build
from tests.emulator.machine.schedule import EAGER, WATCHED, Schedule
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import row as row_module
from tests.emulator.suite.entry import Entry, entries
from tests.emulator.suite.row import (
    Row,
    Verdict,
    counts_of,
    differing,
    emulator_of_today,
    ptx_of,
    rounded,
    versions,
)

_BATCH = 6
"""Kernels of a unit: more take more memory than two compilers have on a machine of 8 GB."""
_SHORTEST_S = 0.1
"""Written for a case that is faster: 0 is a time that nobody has measured."""


def main(arguments: Sequence[str] | None = None, path: Path = row_module.TABLE) -> int:
    """Run what is missing in the table of a path; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.suite", description=__doc__)
    parser.add_argument("--family", action="append", help="only cases of it: sm80, sm90, tree ...")
    parser.add_argument("--case", action="append", help="only this case")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="begin no case after it")
    parser.add_argument("--again", action="store_true", help="run what is in the table, too")
    parser.add_argument(
        "--recheck", action="store_true", help="watch what an earlier emulator has run"
    )
    parser.add_argument("--built", action="store_true", help="only kernels that are compiled")
    parser.add_argument(
        "--accept-counts",
        action="store_true",
        help="take what cases move and compute now, however far from their rows",
    )
    given = parser.parse_args(arguments)
    chosen = [
        entry
        for entry in entries().values()
        if entry.family in (given.family or [entry.family])
        and entry.name in (given.case or [entry.name])
    ]
    able = chosen
    if given.built:
        able = [each for each in chosen if not each.config or build.is_built(each.config)]
    rows = {} if given.again else row_module.read(path)
    missing = [entry for entry in able if not is_done(entry, rows.get(entry.name))]
    print(f"{len(chosen)} cases, {len(missing)} of them to run", flush=True)
    ends = time.monotonic() + given.limit_s
    options = {"again": given.again, "accept": given.accept_counts}
    runtime = Runtime(build.CACHE)
    right, wrong = run(runtime, missing, ends, path, **options)
    if given.recheck:
        wrong |= recheck(runtime, able, ends, path)
    rows = {} if given.again else row_module.read(path)
    print(*left_lines(chosen, rows, right), sep="\n")
    if older := older_of(chosen, path):
        print(f"{len(older)} rows are of an earlier emulator: --recheck")
    print(*(f"wrong: {name}: {text}" for name, text in wrong.items()), sep="\n", flush=True)
    return 1 if wrong else 0


def run(
    runtime: Runtime,
    missing: Sequence[Entry],
    ends: float,
    path: Path = row_module.TABLE,
    *,
    again: bool = False,
    accept: bool = False,
) -> tuple[set[str], dict[str, str]]:
    """Run cases and write the table after each: a row of what is right, none of what is wrong.

    A case that is right and whose counts are far from those of its row keeps that row.

    Args:
        runtime: Runs them.
        missing: The cases.
        ends: Time of `time.monotonic` after which none is begun.
        path: The table.
        again: Whether no row of the table counts, but for what it says that the case moves and computes.
        accept: Whether that does not count, either.

    Returns:
        The names of those that are right, and what is wrong with the others that were run.
    """
    right, wrong = set[str](), dict[str, str]()
    for first in range(0, len(missing), _BATCH):
        if time.monotonic() > ends:
            break
        part = missing[first : first + _BATCH]
        compiled = _compiled(runtime, part)
        for entry in part:
            if time.monotonic() > ends:
                break
            old = row_module.read(path).get(entry.name)
            row, text = row_of(runtime, entry, None if again else old)
            row.compile_s = compiled.get(entry.name, old.compile_s if old else 0.0)
            rows = row_module.read(path)  # another process may have added some
            far = "" if text or accept else _far(old, row)
            if text:
                rows.pop(entry.name, None)
            elif not far:
                right.add(entry.name)
                rows[entry.name] = row
            if text or far:
                wrong[entry.name] = text or far
            print(f"{entry.name}: {text or far or row.errors}", flush=True)
            row_module.write(rows.values(), _facts(), path)
    return right, wrong


def older_of(chosen: Iterable[Entry], path: Path = row_module.TABLE) -> list[Entry]:
    """Return the cases with a whole row of an earlier emulator."""
    rows, today = row_module.read(path), emulator_of_today()
    return [
        entry
        for entry in chosen
        if is_done(entry, rows.get(entry.name)) and rows[entry.name].emulator != today
    ]


def recheck(
    runtime: Runtime, chosen: Sequence[Entry], ends: float, path: Path = row_module.TABLE
) -> dict[str, str]:
    """Run the watched schedule of cases whose rows are of an earlier emulator; return what is wrong, whose rows are removed."""
    wrong: dict[str, str] = {}
    older = older_of(chosen, path)
    for place, entry in enumerate(older):
        if place % _BATCH == 0:
            _compiled(runtime, older[place : place + _BATCH])
        if time.monotonic() > ends:
            break
        seen, text = row_of(runtime, replace(entry, schedules=(WATCHED,)))
        rows = row_module.read(path)  # another process may have added some
        if text:
            wrong[entry.name] = text
            rows.pop(entry.name, None)
        else:
            row = rows[entry.name]
            row.errors, row.emulator = {**row.errors, **seen.errors}, seen.emulator
        print(f"{entry.name}: {text or seen.errors}", flush=True)
        row_module.write(rows.values(), _facts(), path)
    return wrong


def _compiled(runtime: Runtime, part: Sequence[Entry]) -> dict[str, float]:
    """Compile the kernels of some cases that are not there; return nvcc's seconds of a CPU, shared out among their cases, by name."""
    configs = {entry.name: entry.config for entry in part if entry.config}
    missing = [name for name, config in configs.items() if not build.is_built(config)]
    begin = _seconds_of_children()
    if configs:
        build.libraries(list(configs.values()), runtime.cudart)
    return {name: round((_seconds_of_children() - begin) / len(missing), 1) for name in missing}


def _seconds_of_children() -> float:
    """Return the seconds of a CPU of all processes that this one has waited for: those of nvcc, whatever else runs on the machine."""
    used = os.times()
    return used.children_user + used.children_system


def _far(old: Row | None, row: Row) -> str:
    """Return which counts are far from those of an old row; empty if none are."""
    far = {} if old is None else differing(old, row.counts)
    listed = ", ".join(f"{name} {before} before, {now} now" for name, (before, now) in far.items())
    return f"{listed}; its row stays: --accept-counts takes the new counts" if far else ""


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
            if entry.name not in right and not is_done(entry, rows.get(entry.name))
        ]
        named = "".join(f"\n  {name}" for name in left)
        lines.append(f"{family}: {len(left)} of {len(cases)} cases still to run{named}")
    return lines


def is_done(entry: Entry, row: Row | None) -> bool:
    """Return whether a case has a whole row of its source."""
    return row is not None and row.source == entry.source and _is_whole(entry, row)


def _is_whole(entry: Entry, row: Row) -> bool:
    """Return whether a row has a verdict of each schedule of its case, and a time."""
    return set(row.errors) >= {str(each) for each in entry.schedules} and row.seconds > 0


def row_of(runtime: Runtime, entry: Entry, old: Row | None = None) -> tuple[Row, str]:
    """Return the row of a case, and what is wrong with it.

    Args:
        runtime: Runs it.
        entry: The case.
        old: Its row of another source: its verdicts stay where the eager schedule is right and runs the same PTX.
    """
    row = Row(entry.family, entry.name, entry.kernel, entry.gpu, entry.source)
    row.emulator = emulator_of_today()
    begin = time.process_time()  # as on a quiet machine, whatever else runs on it
    for schedule in sorted(entry.schedules, key=lambda each: each != EAGER):
        try:
            verdict = entry.run(runtime, schedule)
        except (FaultError, KernelError, PtxError) as error:
            return row, f"{schedule}: {error}"
        if text := _wrong(entry, schedule, verdict):
            return row, text
        row.errors[str(schedule)] = rounded(verdict.error)
        row.seconds = max(_SHORTEST_S, round(time.process_time() - begin, 1))
        if schedule == EAGER:
            row.counts, row.ptx = counts_of(verdict.launches), ptx_of(verdict.launches)
            if old is not None and row.ptx and old.ptx == row.ptx and _is_whole(entry, old):
                errors = {str(each): old.errors[str(each)] for each in entry.schedules}
                kept = replace(row, seconds=old.seconds, emulator=old.emulator)
                return replace(kept, errors={**errors, **row.errors}), ""
    return row, ""


def _wrong(entry: Entry, schedule: Schedule, verdict: Verdict) -> str:
    """Return what is wrong with a case in a schedule; empty if nothing is."""
    if not verdict.error <= 1 or verdict.changed:
        return f"{schedule}: error {verdict.error}, {verdict.changed} bytes changed"
    left = entry.undone(verdict)
    return f"{schedule}: {left[0]}" if left else ""


def _facts() -> dict[str, str]:
    """Return what the table depends on besides the kernels."""
    return {
        **versions(),
        "torch": _version("torch"),
        "triton": _version("triton"),
        "unit of errors": "what the product accepts (problem/tolerance.py) against float64; of Triton's templates the tolerance "
        "of their tests in the interpreter (tests/support)",
    }


def _version(package: str) -> str:
    """Return the version of a package, empty if it is not installed: torch for CPUs comes without Triton."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
