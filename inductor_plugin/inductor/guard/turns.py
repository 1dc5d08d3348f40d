"""Runs two compiled graphs in turns, in this process, on its threads."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_plugin.inductor.guard.comparison import Comparison
from inductor_plugin.worker.cuda_timer import uuid_of
from inductor_plugin.worker.jobs import Sampling
from inductor_plugin.worker.timer import Timer, repeats_for, timer_for
from inductor_plugin.worker.turn import turn

_MOST_TURNS, _FEWEST = 30, 5
_FEWEST_CALLS = 2 * (3 + _FEWEST)
"""Of both graphs together: two to warm up, the one that finds how many calls make a sample, and the fewest turns."""
_SAMPLING = Sampling(
    warmup=2, samples=1, min_sample_ms=5.0, max_total_s=0.0, cold_cache=False, retake_s=0.0
)


def compare(
    tuned: Callable[[list[Any]], object],
    library: Callable[[list[Any]], object],
    inputs: Sequence[Any],
    limit_s: float,
) -> Comparison | None:
    """Return how long two graphs take, in turns; None if a few turns take too long.

    Turns in which either was disturbed count where there are no others.

    Args:
        tuned: The tuned graph; it empties the list that it is given.
        library: The graph with library kernels.
        inputs: Inputs of both.
        limit_s: Seconds after which no turn begins, but for a few, which must not take longer.
    """
    devices = [value.device for value in inputs if isinstance(value, torch.Tensor)]
    device = next((each for each in devices if each.type != "cpu"), torch.device("cpu"))
    name = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
    timer = timer_for(name)
    calls = [functools.partial(_call, graph, inputs) for graph in (tuned, library)]
    with torch.no_grad(), turn("" if name == "cpu" else uuid_of(name)) as alone:
        started = time.monotonic()
        calls[0]()
        timer.synchronize()
        if _FEWEST_CALLS * (time.monotonic() - started) > limit_s:
            return None
        repeats = max(repeats_for(timer, call, _SAMPLING) for call in calls)
        turns = _turns(timer, calls, repeats, time.monotonic() + limit_s)
    calm = [pair for pair, disturbed in turns if alone and not disturbed]
    used = calm or [pair for pair, _ in turns]
    return Comparison(
        tuple(first for first, _ in used), tuple(second for _, second in used), disturbed=not calm
    )


def _call(graph: Callable[[list[Any]], object], inputs: Sequence[Any]) -> object:
    return graph([*inputs])


def _turns(
    timer: Timer, calls: Sequence[Callable[[], object]], repeats: int, until: float
) -> list[tuple[tuple[float, float], bool]]:
    """Return the samples of both calls in each turn, and whether either was disturbed."""
    turns: list[tuple[tuple[float, float], bool]] = []
    while len(turns) < _MOST_TURNS and (len(turns) < _FEWEST or time.monotonic() < until):
        order = (0, 1) if len(turns) % 2 else (1, 0)
        samples, disturbed = [0.0, 0.0], False
        for index in order:
            samples[index] = timer.sample(calls[index], repeats, cold=False)
            disturbed |= timer.disturbed
        turns.append(((samples[0], samples[1]), disturbed))
    return turns
