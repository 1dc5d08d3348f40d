"""How tuning scales with workers, candidates and failures, by the pipeline's own scheduling in simulated time, as JSON.

python -m benchmarks.fleet [--workers 1,10] [--candidates 100,1000] [--workers-per-gpu 16] [--cache DIR] [--out FILE]

Every figure is simulated and follows from the seed and the times it draws from; none depends on this machine. Runs that
``--out`` has already are not simulated again: remove the file after a change.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.fleet.simulation import Fleet, Run, simulate
from benchmarks.fleet.times import Times, committed, of_cache
from benchmarks.fleet.world import Failures

_EACH_TOUCH = 10_000
_FAILING = Failures(compile_crash=0.01, compile_hang=0.001, measure_crash=0.005)


def fleets(arguments: argparse.Namespace) -> Iterator[tuple[str, Fleet]]:
    """Yield what is simulated, with its name: the grid, then what changes at its last point."""
    last = None
    for workers in arguments.workers:
        for candidates in arguments.candidates:
            gpus = max(1, workers // arguments.workers_per_gpu)
            # Of the touches of 100,000 builds each tenth is simulated: they decide nothing, and take most of the time.
            touch_s = 10.0 if candidates > _EACH_TOUCH else 1.0
            gpus = min(gpus, max(1, candidates // 20))
            last = Fleet(workers, gpus, candidates, touch_s=touch_s)
            yield "grid", last
    if last is not None and arguments.variants:
        yield "failures", replace(last, failures=_FAILING)
        yield "model after model", replace(last, together=False)


def row(name: str, fleet: Fleet, run: Run) -> dict[str, Any]:
    """Return the figures of one run."""
    spent = run.spent
    return {
        "what": name,
        "workers": fleet.workers,
        "gpus": fleet.gpus,
        "candidates": fleet.candidates,
        "makespan_s": round(run.makespan_s, 1),
        "bound_s": round(run.bound_s, 1),
        "ratio": round(run.ratio, 3),
        "limited_by": run.limited_by,
        "chain_s": round(run.chain_s, 1),
        "undecided": run.undecided,
        "lost": dict(sorted(spent.lost.items())),
        "store_requests": dict(sorted(spent.requests.items())),
        "store_requests_per_s": round(run.requests_per_s, 1),
        "models": run.models,
        "worker_s_per_model": round(run.compile_s_per_model, 1),
        "gpu_s_per_model": round(run.gpu_s_per_model, 1),
        "compile_jobs": spent.jobs,
        "measured": spent.measured,
    }


def _times_of(times: Times) -> dict[str, Any]:
    plain = asdict(times)
    return {
        name: value if isinstance(value, (str, float)) else [round(each, 4) for each in value]
        for name, value in plain.items()
    }


def _rows(file: Path | None) -> list[dict[str, Any]]:
    """Return the rows that a file has, none if it does not exist."""
    if file is None or not file.exists():
        return []
    return json.loads(file.read_text(encoding="utf-8"))["runs"]


def _key(fields: dict[str, Any]) -> tuple[str, int, int, int]:
    return fields["what"], fields["workers"], fields["gpus"], fields["candidates"]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    """Simulate, print a line for each run, and write the figures after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=_numbers, default=(1, 10, 100, 1000, 10_000))
    parser.add_argument("--candidates", type=_numbers, default=(100, 1000, 10_000, 100_000))
    parser.add_argument("--workers-per-gpu", type=int, default=16)
    parser.add_argument("--variants", action="store_true", help="also with failures, and in turn")
    parser.add_argument("--cache", type=Path, help="take compile times from this cache's records")
    parser.add_argument("--out", type=Path, help="file for the JSON")
    arguments = parser.parse_args()
    times = committed()
    if arguments.cache is not None:
        times = of_cache(arguments.cache, times)
    rows = _rows(arguments.out)
    done = {_key(each) for each in rows}
    for name, fleet in fleets(arguments):
        if (name, fleet.workers, fleet.gpus, fleet.candidates) in done:
            continue
        run = simulate(fleet, times)
        rows.append(row(name, fleet, run))
        print(
            f"{name}: {fleet.workers} workers, {fleet.gpus} GPUs, {fleet.candidates} candidates: "
            f"{run.makespan_s:.0f} s, {run.ratio:.3f} of the bound ({run.limited_by}), longest chain "
            f"{run.chain_s:.0f} s, {run.requests_per_s:.0f} requests/s; simulated in {run.real_s:.0f} s",
            flush=True,
        )
        if arguments.out is not None:
            text = json.dumps({"times": _times_of(times), "runs": rows}, indent=1)
            arguments.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
