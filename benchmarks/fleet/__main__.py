"""How tuning scales with workers, candidates and failures, by the product's own scheduling in simulated time, as JSON.

python -m benchmarks.fleet [--workers 1,10] [--candidates 100,1000] [--only grid] [--ranks 8,64] [--cache DIR] [--out FILE]

The bound of a row is the larger of compile seconds for each worker and measuring seconds for each GPU. ``chain_s`` is the longest
chain of dependent steps, without failures: a worker's start, the compile of one kernel alone, one screening, the finals of its
problem. No schedule undercuts either, nor a worker's start and the compile seconds for each worker; ``least_s`` is the largest of
these, and ``over`` is the makespan in it. Every figure follows from the seed and the times it draws from; none
depends on this machine. Rows that ``--out`` has already are not simulated again, unless the code that they are simulated
with (`SOURCES`), or times, have changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.fleet.grid import (
    CANDIDATES,
    GRID,
    VARIANTS,
    WORKERS,
    WORKERS_PER_GPU,
    fleets,
    remote_fields,
    row,
)
from benchmarks.fleet.ranks import RANKS, Job, simulate_ranks
from benchmarks.fleet.ranks import row as rank_row
from benchmarks.fleet.simulation import simulate
from benchmarks.fleet.times import Times, committed, of_cache
from benchmarks.harness.sources import code_digest

FLEETS = "fleets"


def _modules(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}.py" for name in names.split())


SOURCES: Mapping[str, Sequence[str]] = {
    FLEETS: (
        *_modules("benchmarks/fleet", "clock grid nodes simulation times world"),
        "inductor_plugin/tuning/builds",
        *_modules(
            "inductor_plugin/tuning", "budget candidate counters ends holder pipeline race task"
        ),
        *_modules("inductor_plugin/worker", "compile_pool jobs"),
        *_modules(
            "inductor_plugin/worker/farm",
            "answers flight parcel pool refusals rejoining watch window",
        ),
    ),
    RANKS: (
        *_modules("benchmarks/fleet", "clock ranks times"),
        "inductor_plugin/tuning/ranks",
        *_modules("inductor_plugin/tuning", "counters decision task ticket"),
    ),
}
"""What the figures of each kind of row follow from, beside times. Requests to a remote are counted anew in each run."""
_RANK_PROBLEMS = 96


def _times_of(times: Times) -> dict[str, Any]:
    plain = asdict(times)
    return {
        name: value if isinstance(value, (str, float)) else [round(each, 4) for each in value]
        for name, value in plain.items()
    }


class _Results:
    """The rows of a file, written after each."""

    def __init__(self, file: Path | None, times: Times) -> None:
        """Go on where the file ends; rows of other sources or times are dropped."""
        self._file = file
        self._sources = {kind: code_digest(places) for kind, places in SOURCES.items()}
        self._times = _times_of(times)
        self._rows: list[dict[str, Any]] = []
        if file is not None and file.exists():
            self._rows = self._kept(json.loads(file.read_text(encoding="utf-8")))

    def _kept(self, earlier: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of a file that hold, with today's requests to a remote."""
        if earlier["times"] != self._times:
            return []
        known: Any = earlier["sources"]
        if not isinstance(known, dict):  # one digest of all, once
            return []
        hold = {kind for kind, digest in self._sources.items() if (kind, digest) in known.items()}
        rows = [each for each in earlier["runs"] if _kind(each) in hold]
        for fleet in rows:
            if _kind(fleet) == FLEETS:
                fleet |= remote_fields(fleet["candidates"], fleet["makespan_s"])
        return rows

    def has(self, **fields: Any) -> bool:
        """Return whether there is a row with these fields."""
        return any(fields.items() <= each.items() for each in self._rows)

    def add(self, fields: dict[str, Any]) -> None:
        """Add a row."""
        self._rows.append(fields)
        if self._file is not None:
            facts = {"sources": self._sources, "times": self._times}
            text = json.dumps({**facts, "runs": self._rows}, indent=1)
            self._file.write_text(f"{text}\n", encoding="utf-8")


def _kind(fields: dict[str, Any]) -> str:
    return RANKS if fields["what"] == RANKS else FLEETS


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def main() -> None:
    """Simulate, print a line for each run, and write the figures after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=_numbers, default=WORKERS)
    parser.add_argument("--candidates", type=_numbers, default=CANDIDATES)
    parser.add_argument("--workers-per-gpu", type=int, default=WORKERS_PER_GPU)
    parser.add_argument(
        "--only", choices=(GRID, *VARIANTS), action="append", help="of the fleets; all if unset"
    )
    parser.add_argument("--ranks", type=_numbers, default=(8, 64, 256, 1000), help="empty for none")
    parser.add_argument("--cache", type=Path, help="take compile times from this cache's records")
    parser.add_argument("--out", type=Path, help="file for the JSON; what it has is not done again")
    arguments = parser.parse_args()
    times = committed()
    if arguments.cache is not None:
        times = of_cache(arguments.cache, times)
    results = _Results(arguments.out, times)
    names = arguments.only or (GRID, *VARIANTS)
    for name, fleet in fleets(
        arguments.workers, arguments.candidates, arguments.workers_per_gpu, names
    ):
        sizes = {"workers": fleet.workers, "gpus": fleet.gpus, "candidates": fleet.candidates}
        if results.has(what=name, **sizes):
            continue
        run = simulate(fleet, times)
        results.add(row(name, fleet, run))
        print(
            f"{name}: {fleet.workers} workers, {fleet.gpus} GPUs, {fleet.candidates} candidates: {run.makespan_s:.0f} s, "
            f"{run.ratio:.3f} of the bound ({run.limited_by}), {run.over:.3f} of what no schedule undercuts ({run.least_s:.0f} s; the longest chain takes {run.chain_s:.0f} s), "
            f"{run.requests_per_s:.0f} requests/s; simulated in {run.real_s:.0f} s",
            flush=True,
        )
    for ranks in arguments.ranks:
        if not results.has(what=RANKS, ranks=ranks, problems=_RANK_PROBLEMS):
            job = Job(ranks, _RANK_PROBLEMS)
            fields = rank_row(job, simulate_ranks(job, times))
            results.add(fields)
            print(
                f"{ranks} ranks, {_RANK_PROBLEMS} problems: {fields['makespan_s']} s, {fields['over']} of the bound, "
                f"{fields['c10d_requests_per_s']} requests/s to the job's store",
                flush=True,
            )


if __name__ == "__main__":
    main()
