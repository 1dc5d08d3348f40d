"""Which fleets are simulated, and the figures of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.fleet.remote import requests_of
from benchmarks.fleet.simulation import Fleet, Run
from benchmarks.fleet.world import Failures

GRID = "grid"
"""Name of the rows of each number of workers and candidates."""
WORKERS = (1, 10, 100, 1000, 10_000)
CANDIDATES = (100, 1000, 10_000, 100_000)
WORKERS_PER_GPU = 8
_EACH_TOUCH = 10_000
_FAILING = Failures(compile_crash=0.01, compile_hang=0.001, measure_crash=0.005, node_lost=0.001)
VARIANTS: Mapping[str, Callable[[Fleet], Fleet]] = {
    "half as many GPUs": lambda fleet: replace(fleet, gpus=max(1, fleet.gpus // 2)),
    "failures": lambda fleet: replace(fleet, failures=_FAILING),
    "all models at once": lambda fleet: replace(fleet, together=True),
    "one pool": lambda fleet: replace(fleet, farm=False),
}
"""What else is simulated where there is most to compile."""
_VARIED = (100, 1000, 10_000)
"""Workers of the variants."""


def fleets(
    workers: Sequence[int],
    candidates: Sequence[int],
    workers_per_gpu: int,
    names: Collection[str],
) -> Iterator[tuple[str, Fleet]]:
    """Yield what is simulated, with its name: the grid, then what changes where there is most to compile.

    Args:
        workers: Numbers of workers.
        candidates: Numbers of candidates.
        workers_per_gpu: Workers for each GPU.
        names: `GRID` and names of `VARIANTS`.
    """
    for compiled in candidates if GRID in names else ():
        for working in workers:
            yield GRID, _fleet(working, compiled, workers_per_gpu)
    for working in workers:
        if working in _VARIED:
            fleet = _fleet(working, max(candidates), workers_per_gpu)
            yield from ((name, vary(fleet)) for name, vary in VARIANTS.items() if name in names)


def _fleet(workers: int, candidates: int, workers_per_gpu: int) -> Fleet:
    gpus = max(1, workers // workers_per_gpu)
    # Of the touches of 100,000 builds each tenth is simulated: they decide nothing, and take most of the time.
    touch_s = 10.0 if candidates > _EACH_TOUCH else 1.0
    return Fleet(workers, min(gpus, max(1, candidates // 20)), candidates, touch_s=touch_s)


def row(name: str, fleet: Fleet, run: Run) -> dict[str, Any]:
    """Return the figures of one run."""
    spent, makespan_s = run.spent, round(run.makespan_s, 1)
    return {
        "what": name,
        "workers": fleet.workers,
        "gpus": fleet.gpus,
        "candidates": fleet.candidates,
        "makespan_s": makespan_s,
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
        **remote_fields(fleet.candidates, makespan_s),
        "models": run.models,
        "worker_s_per_model": round(run.compile_s_per_model, 1),
        "gpu_s_per_model": round(run.gpu_s_per_model, 1),
        "worker_s_given_up": round(spent.given_up_s, 1),
        "compile_jobs": spent.jobs,
        "measured": spent.measured,
    }


def remote_fields(candidates: int, makespan_s: float) -> dict[str, Any]:
    """Return the requests to a remote of a run; they follow from the number of its problems, not from its schedule."""
    remote = requests_of(max(1, round(candidates / Fleet.per_problem)))
    cold = sum(count for what, count in remote.items() if what.endswith("cold"))
    return {
        "remote_requests": remote,
        "remote_requests_per_s": round(cold / makespan_s, 1),
    }
