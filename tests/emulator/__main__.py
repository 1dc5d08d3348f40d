"""Runs a recorded candidate on its emulated GPU: whether its numbers are right, and what it moves and computes.

A candidate is a kernel of CUTLASS or Triton, of a product or an attention.

python -m tests.emulator KEY [--cache-dir DIR] [--candidate NAME] [--gpu H100] [--schedule late] [--anyway]
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
from inductor_plugin.problem.target import Target, target
from tests.emulator.fault import FaultError
from tests.emulator.kernels import build
from tests.emulator.machine.schedule import ALL, EAGER, WATCHED
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.recorded.call import Call
from tests.emulator.recorded.candidate import call_of, chosen
from tests.emulator.runtime.devices import NAMES
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.row import counts_of

LONG_S = 1800.0
"""A call that takes longer by its size is run only where that is asked for."""
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
        help="identity of a candidate, its start, or a name; the winner, or the fastest kernel that can be run",
    )
    parser.add_argument(
        "--gpu", default="", choices=("", *NAMES), help="the GPU; that of the record"
    )
    parser.add_argument("--schedule", default=str(EAGER), choices=list(SCHEDULES))
    parser.add_argument(
        "--anyway", action="store_true", help="run a call that is so large that it takes hours"
    )
    options = parser.parse_args(arguments)
    try:
        store = open_cache(options)
        _, record = find_record(store, options.key, "are of one call; see `ls`")
        call = _chosen(store, record, options)
    except (CacheError, TargetError) as error:
        print(f"python -m tests.emulator: error: {error}", file=sys.stderr)
        return 2
    print(f"{record.describe}: {call.kernel} on {call.target.name}, {options.schedule}", flush=True)
    if call.note:
        print(f"note: {call.note}", flush=True)
    started = time.monotonic()
    try:
        verdict = call.run(Runtime(build.CACHE), SCHEDULES[options.schedule])
    except (FaultError, KernelError, PtxError) as error:
        print(f"wrong: {error}", file=sys.stderr)
        return 1
    right = verdict.error <= 1 and not verdict.changed
    print(
        f"{'right' if right else 'WRONG'}: {verdict.error:.3g} of the accepted error against float64, {verdict.changed} bytes "
        f"changed outside of the output, {len(verdict.launches)} launches, {time.monotonic() - started:.1f} s"
    )
    Console().print(counts_table(counts_of(verdict.launches)))
    return 0 if right else 1


def _chosen(store: Store, record: Record, options: argparse.Namespace) -> Call:
    """Return the candidate to run.

    Raises:
        CacheError: The record has none that can be run, or it takes too long.
        TargetError: Its GPU is not emulated.
    """
    row = chosen(record, options.candidate)
    environment = store.environment(record.environment) or {}
    call = call_of(record, row, _gpu(options.gpu, environment), environment)
    if isinstance(call, str):
        raise CacheError(f"cannot run {row.name} of {record.describe}: {call}")
    if call.seconds > LONG_S and not options.anyway:
        raise CacheError(
            f"{record.describe} takes about {call.seconds / 3600:.1f} hours in the emulator; choose a smaller call, "
            "or say --anyway"
        )
    return call


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
