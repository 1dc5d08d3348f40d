"""How tuning scales with workers, candidates and failures, by the product's own scheduling in simulated time, as JSON.

python -m benchmarks.fleet [--workers 1,10] [--candidates 100,1000] [--ranks 8,64] [--cache DIR] [--out FILE]

The bound of a row is the larger of compile seconds for each worker and measuring seconds for each GPU. ``chain_s`` is the longest
chain of dependent steps, without failures: a worker's start, the compile of one kernel alone, one screening, the finals of its
problem. No schedule undercuts either, nor a worker's start and the compile seconds for each worker; ``least_s`` is the largest of
these, and ``over`` is the makespan in it. Every figure follows from the seed and the times it draws from; none
depends on this machine. Rows that ``--out`` has already are not simulated again, unless sources or times have changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.fleet.ranks import Job, simulate_ranks
from benchmarks.fleet.remote import requests_of
from benchmarks.fleet.simulation import Fleet, Run, simulate
from benchmarks.fleet.times import Times, committed, of_cache
from benchmarks.fleet.world import Failures
from benchmarks.harness.sources import PLUGIN, sources_digest

_EACH_TOUCH = 10_000
_FAILING = Failures(compile_crash=0.01, compile_hang=0.001, measure_crash=0.005, node_lost=0.001)
_FAILING_WORKERS = (100, 1000, 10_000)
_RANK_PROBLEMS = 96
_SOURCES = (*PLUGIN, "benchmarks/fleet")


def fleets(arguments: argparse.Namespace) -> Iterator[tuple[str, Fleet]]:
    """Yield what is simulated, with its name: the grid, then what changes where there is most to compile."""
    for candidates in arguments.candidates:
        for workers in arguments.workers:
            yield "grid", _fleet(arguments, workers, candidates)
    most = max(arguments.candidates)
    for workers in arguments.workers:
        if workers in _FAILING_WORKERS:
            fleet = _fleet(arguments, workers, most)
            yield "half as many GPUs", replace(fleet, gpus=max(1, fleet.gpus // 2))
            yield "failures", replace(fleet, failures=_FAILING)
            yield "all models at once", replace(fleet, together=True)
            yield "one pool", replace(fleet, farm=False)


def _fleet(arguments: argparse.Namespace, workers: int, candidates: int) -> Fleet:
    gpus = max(1, workers // arguments.workers_per_gpu)
    # Of the touches of 100,000 builds each tenth is simulated: they decide nothing, and take most of the time.
    touch_s = 10.0 if candidates > _EACH_TOUCH else 1.0
    return Fleet(workers, min(gpus, max(1, candidates // 20)), candidates, touch_s=touch_s)


def row(name: str, fleet: Fleet, run: Run, problems: int) -> dict[str, Any]:
    """Return the figures of one run."""
    spent, remote = run.spent, requests_of(problems)
    cold = sum(count for what, count in remote.items() if what.endswith("cold"))
    return {
        "what": name,
        "workers": fleet.workers,
        "gpus": fleet.gpus,
        "candidates": fleet.candidates,
        "makespan_s": round(run.makespan_s, 1),
        "bound_s": round(run.bound_s, 1),
        "limited_by": run.limited_by,
        "chain_s": round(run.chain_s, 1),
        "least_s": round(run.least_s, 1),
        "ratio": round(run.ratio, 3),
        "over": round(run.over, 3),
        "undecided": run.undecided,
        "lost": dict(sorted(spent.lost.items())),
        "cache_requests": dict(sorted(spent.requests.items())),
        "cache_requests_per_s": round(run.requests_per_s, 1),
        "remote_requests": remote,
        "remote_requests_per_s": round(cold / run.makespan_s, 1),
        "models": run.models,
        "worker_s_per_model": round(run.compile_s_per_model, 1),
        "gpu_s_per_model": round(run.gpu_s_per_model, 1),
        "worker_s_given_up": round(spent.given_up_s, 1),
        "compile_jobs": spent.jobs,
        "measured": spent.measured,
    }


def rank_row(job: Job, times: Times) -> dict[str, Any]:
    """Return the figures of one job of ranks."""
    run = simulate_ranks(job, times)
    return {
        "what": "ranks",
        "ranks": job.ranks,
        "problems": job.problems,
        "makespan_s": round(run.makespan_s, 1),
        "bound_s": round(run.bound_s, 1),
        "over": round(run.makespan_s / run.bound_s, 3),
        "tuned": run.tuned,
        "c10d_requests": dict(sorted(run.requests.items())),
        "c10d_requests_per_s": round(run.requests.total() / run.makespan_s, 1),
        "most_c10d_requests_in_a_s": run.most_in_a_s,
    }


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
        self._facts = {"sources": sources_digest(_SOURCES), "times": _times_of(times)}
        self._rows: list[dict[str, Any]] = []
        if file is not None and file.exists():
            earlier: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if self._facts.items() <= earlier.items():
                self._rows = earlier["runs"]

    def has(self, **fields: Any) -> bool:
        """Return whether there is a row with these fields."""
        return any(fields.items() <= each.items() for each in self._rows)

    def add(self, fields: dict[str, Any]) -> None:
        """Add a row."""
        self._rows.append(fields)
        if self._file is not None:
            text = json.dumps({**self._facts, "runs": self._rows}, indent=1)
            self._file.write_text(f"{text}\n", encoding="utf-8")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def main() -> None:
    """Simulate, print a line for each run, and write the figures after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=_numbers, default=(1, 10, 100, 1000, 10_000))
    parser.add_argument("--candidates", type=_numbers, default=(100, 1000, 10_000, 100_000))
    parser.add_argument("--workers-per-gpu", type=int, default=8)
    parser.add_argument("--ranks", type=_numbers, default=(8, 64, 256, 1000), help="empty for none")
    parser.add_argument("--cache", type=Path, help="take compile times from this cache's records")
    parser.add_argument("--out", type=Path, help="file for the JSON; what it has is not done again")
    arguments = parser.parse_args()
    times = committed()
    if arguments.cache is not None:
        times = of_cache(arguments.cache, times)
    results = _Results(arguments.out, times)
    for name, fleet in fleets(arguments):
        sizes = {"workers": fleet.workers, "gpus": fleet.gpus, "candidates": fleet.candidates}
        if results.has(what=name, **sizes):
            continue
        run = simulate(fleet, times)
        results.add(row(name, fleet, run, max(1, round(fleet.candidates / fleet.per_problem))))
        print(
            f"{name}: {fleet.workers} workers, {fleet.gpus} GPUs, {fleet.candidates} candidates: {run.makespan_s:.0f} s, "
            f"{run.ratio:.3f} of the bound ({run.limited_by}), {run.over:.3f} of what no schedule undercuts ({run.least_s:.0f} s; the longest chain takes {run.chain_s:.0f} s), "
            f"{run.requests_per_s:.0f} requests/s; simulated in {run.real_s:.0f} s",
            flush=True,
        )
    for ranks in arguments.ranks:
        if not results.has(what="ranks", ranks=ranks):
            fields = rank_row(Job(ranks, _RANK_PROBLEMS), times)
            results.add(fields)
            print(
                f"{ranks} ranks, {_RANK_PROBLEMS} problems: {fields['makespan_s']} s, {fields['over']} of the bound, "
                f"{fields['c10d_requests_per_s']} requests/s to the job's store",
                flush=True,
            )


if __name__ == "__main__":
    main()
