"""Runs a recorded CUTLASS product on its emulated GPU: whether its numbers are right, and what it moves and computes.

python -m tests.emulator KEY [--cache-dir DIR] [--candidate NAME] [--gpu H100] [--schedule late]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from inductor_plugin.cache import Record, Store
from inductor_plugin.cli.verb import find_record, open_cache
from inductor_plugin.errors import CacheError, KernelError, TargetError
from inductor_plugin.problem.definition import problem_in
from inductor_plugin.problem.target import Target, target
from tests.emulator.fault import FaultError
from tests.emulator.kernels import build, recorded
from tests.emulator.kernels.recorded import PREFIX, Recorded
from tests.emulator.machine.schedule import ALL, EAGER, WATCHED
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.runtime.devices import NAMES
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.row import counts_of

SCHEDULES = {str(schedule): schedule for schedule in (*ALL, WATCHED)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if the kernel is wrong, 2 if it cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulator", description=__doc__)
    parser.add_argument(
        "key", metavar="KEY", help="start of a record's key, as `inductor-plugin ls` shows it"
    )
    parser.add_argument(
        "--cache-dir", default="", help="cache of the record; the default one if it is not named"
    )
    parser.add_argument(
        "--candidate",
        default="",
        help="name of a candidate; the winner, or the fastest CUTLASS kernel",
    )
    parser.add_argument(
        "--gpu", default="", choices=("", *NAMES), help="the GPU; that of the record"
    )
    parser.add_argument("--schedule", default=str(EAGER), choices=list(SCHEDULES))
    options = parser.parse_args(arguments)
    try:
        store = open_cache(options)
        _, record = find_record(store, options.key, "are of one call; see `ls`")
        call = _chosen(store, record, options)
    except (CacheError, TargetError) as error:
        print(f"python -m tests.emulator: error: {error}", file=sys.stderr)
        return 2
    print(
        f"{record.describe}: {call.config.name} on {call.target.name}, {options.schedule}",
        flush=True,
    )
    started = time.monotonic()
    try:
        outcome = recorded.run(Runtime(build.CACHE), call, SCHEDULES[options.schedule])
    except (FaultError, KernelError, PtxError) as error:
        print(f"wrong: {error}", file=sys.stderr)
        return 1
    right = outcome.share <= 1 and not outcome.changed
    print(
        f"{'right' if right else 'WRONG'}: {outcome.share:.3g} of the accepted error against float64, {outcome.changed} bytes "
        f"changed outside of the output, {len(outcome.launches)} launches, {time.monotonic() - started:.1f} s"
    )
    Console().print(counts_table(counts_of(outcome.launches)))
    return 0 if right else 1


def _chosen(store: Store, record: Record, options: argparse.Namespace) -> Recorded:
    """Return the candidate to run.

    Raises:
        CacheError: The record has none that can be run.
        TargetError: Its GPU is not emulated.
    """
    name = chosen_name(record, options.candidate)
    gpu = _gpu(options.gpu, store.environment(record.environment) or {})
    call = recorded.recorded(problem_in(record.problem), name, gpu)
    if isinstance(call, str):
        raise CacheError(f"cannot run a candidate of {record.describe}: {call}")
    return call


def chosen_name(record: Record, wanted: str) -> str:
    """Return the name of the candidate to run: the one that is wanted, the winner, or the fastest CUTLASS kernel.

    Raises:
        CacheError: The record has no such candidate.
    """
    names = {
        row.name: row.median_ms for row in record.candidates.values() if row.name.startswith(PREFIX)
    }
    if not names:
        kinds = ", ".join(sorted({row.name for row in record.candidates.values()})) or "none"
        raise CacheError(f"{record.describe} has no CUTLASS candidate; its candidates are: {kinds}")
    if wanted:
        full = wanted if wanted.startswith(PREFIX) else PREFIX + wanted
        if full not in names:
            raise CacheError(f"no candidate {wanted!r}; there are {', '.join(sorted(names))}")
        return full
    decision = record.valid_decision
    winner = record.candidates.get(decision.winner) if decision else None
    if winner is not None and winner.name in names:
        return winner.name
    return min(names, key=lambda name: (names[name] is None, names[name] or 0.0, name))


def _gpu(name: str, environment: Mapping[str, Any]) -> Target:
    """Return the GPU of an environment, unless another is named.

    Raises:
        TargetError: It is not known, or not emulated.
    """
    named = name or str(environment.get("device", {}).get("name", ""))
    gpu = target(named)
    if gpu.name not in NAMES:
        raise TargetError(
            f"{gpu.name} is not emulated; name another with --gpu: {', '.join(NAMES)}"
        )
    return gpu


def counts_table(counts: Mapping[str, int]) -> Table:
    """Return counts as a table."""
    table = Table("count", "of the whole call")
    table.columns[1].justify = "right"
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    return table


if __name__ == "__main__":
    sys.exit(main())
