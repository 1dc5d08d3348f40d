"""Runs the programs that the emulator was not written for (`kernels/tutorials.py`), and writes the table of their errors.

    python -m tests.emulator.held_out [--limit-s 600]

A row is a program on an architecture. The table is written after each; a stopped run goes on with what is missing or has another source.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inductor_plugin.problem.target import Target
from tests.emulator.fault import FaultError
from tests.emulator.machine.schedule import Schedule
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.suite.row import replace_file, rounded
from tests.support.repository import REPOSITORY

TABLE = REPOSITORY / "benchmarks" / "results" / "emulator_tutorials.json"
_SOURCES = ("kernels/tutorials.py", "held_out/calls.py")


@dataclass(frozen=True)
class Tutorial:
    """What was seen of a program on an architecture.

    Attributes:
        program: Its name, a key of `calls.PROGRAMS`.
        arch: nvcc's name of the architecture.
        source: Digest of the programs and their calls.
        error: Largest error in any schedule, in units of what is accepted (`calls.TOLERANCES`); None without an answer.
        reason: Why there is no answer: what the emulator refuses.
    """

    program: str
    arch: str
    source: str
    error: float | None
    reason: str = ""

    @property
    def wrong(self) -> bool:
        """Whether its numbers are wrong; a program that is refused is not."""
        return self.error is not None and not self.error <= 1


def source() -> str:
    """Return the digest of the programs and their calls."""
    folder = REPOSITORY / "tests" / "emulator"
    texts = (folder.joinpath(name).read_bytes() for name in _SOURCES)
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]


def read(path: Path = TABLE) -> dict[tuple[str, str], Tutorial]:
    """Return the rows of a table by program and architecture; none if there is no table."""
    if not path.exists():
        return {}
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = [Tutorial(**row) for row in data["rows"]]
    return {(row.program, row.arch): row for row in rows}


def write(rows: Iterable[Tutorial], facts: dict[str, Any], path: Path = TABLE) -> None:
    """Write a table, one row a line."""
    ordered = sorted(rows, key=lambda row: (row.program, row.arch))
    lines = ",\n".join(f"  {json.dumps(asdict(row))}" for row in ordered)
    replace_file(path, f'{{\n "facts": {json.dumps(facts)},\n "rows": [\n{lines}\n ]\n}}\n')


def run(
    wanted: Iterable[tuple[str, Target]],
    error: Callable[[str, Target, Schedule], float],
    schedules: Sequence[Schedule],
    ends: float,
) -> Iterator[Tutorial]:
    """Run programs in all schedules, and yield their rows.

    Args:
        wanted: Programs, each with its GPU.
        error: Returns the error of a program on a GPU in a schedule; raises what the emulator refuses.
        schedules: The schedules.
        ends: Time of `time.monotonic` after which none is begun.
    """
    digest = source()
    for name, gpu in wanted:
        if time.monotonic() > ends:
            return
        try:
            worst = max(error(name, gpu, schedule) for schedule in schedules)
        except (FaultError, PtxError) as refused:
            yield Tutorial(name, gpu.arch, digest, None, str(refused)[:200])
        else:
            yield Tutorial(name, gpu.arch, digest, rounded(worst))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing; return 1 if a program's numbers are wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.held_out", description=__doc__)
    parser.add_argument("--limit-s", type=float, default=1200.0, help="begin no program after it")
    given = parser.parse_args(arguments)
    # It imports Triton, which torch for CPUs comes without: tests of the table do not need it.
    from tests.emulator.held_out.calls import GPUS, PROGRAMS, SCHEDULES, absent, error

    digest = source()
    kept = {key: row for key, row in read().items() if row.source == digest}
    every = [(name, gpu) for name in PROGRAMS for gpu in GPUS if not absent(name, gpu)]
    missing = [(name, gpu) for name, gpu in every if (name, gpu.arch) not in kept]
    facts = {"triton": version("triton"), "schedules": [str(each) for each in SCHEDULES]}
    for row in run(missing, error, SCHEDULES, time.monotonic() + given.limit_s):
        kept[row.program, row.arch] = row
        write(kept.values(), facts)
        print(f"{row.program}, {row.arch}: {row.reason or row.error}", flush=True)
    print(f"{len(every) - len(kept)} of {len(every)} still to run")
    return 1 if any(row.wrong for row in kept.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
