"""How fast every candidate of a layer is in a network of such layers: a judge that samples nothing as the plugin does.

A network has 12 equal layers with weights and operands of their own, and each of its layers has the same candidate. A sample is the
geometric mean of its time with all operands in memory and with all of them in the caches, by layer.

    python -m benchmarks.choices.network [--turns 20] [--layers 10]
"""

# torch types these partly; what it leaves open says nothing about the results.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from torch._inductor.select_algorithm import add_preprocessing_fn, clear_preprocessing_fns

from benchmarks.choices.arm import (
    LAYERS,
    Layer,
    choice_name,
    compiled,
    distinct,
    problem_name,
    rounded,
)
from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.cpu_timer import caches, evicting_bytes

EQUAL = 12
"""Layers of a network; each is compiled for itself, which takes a second."""

Call = Callable[[], object]


def main() -> None:
    """Print the answer as JSON, in the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="the first so many")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    inductor_config.freezing = True
    inductor_config.fx_graph_cache = False  # its key does not say which candidate was kept
    functorch_config.enable_autograd_cache = False
    started = time.perf_counter()
    problems = {
        problem_name((layer[0], layer[1]), (layer[2],)): sampled(networks(layer), arguments.turns)
        for layer in LAYERS[: arguments.layers]
    }
    print(json.dumps({"compile_s": round(time.perf_counter() - started, 2), "problems": problems}))


def networks(layer: Layer) -> dict[str, Call]:
    """Return a network for each candidate of a layer, by the candidate's name; each has been called."""
    torch.compiler.reset()  # of the networks before: all have the same code
    built: dict[str, Call] = {}
    names: list[str] = []
    while not built or len(built) < len(names):
        add_preprocessing_fn(partial(_kept, number=len(built), names=names))
        call = compiled([layer] * EQUAL, options={"max_autotune": True})
        built[names[len(built)]] = call
        clear_preprocessing_fns()
    return built


def _kept(choices: list[Any], *, number: int, names: list[str]) -> list[Any]:
    """Return one of a layer's candidates; set the names of all."""
    names[:] = distinct(choice_name(choice) for choice in choices)
    return [choices[number]]


def sampled(calls: dict[str, Call], turns: int) -> dict[str, Any]:
    """Return the samples of each network, in milliseconds by layer, taken in turns whose order rotates.

    Args:
        calls: The networks.
        turns: How many.
    """
    evicting = torch.ones(evicting_bytes(caches(own_cores())) // 8, dtype=torch.int64)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns):
        names = list(calls)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = calls[name]
            evicting.sum()
            in_memory_s = _seconds(call)
            in_caches_s = min(_seconds(call) for _ in range(3))
            samples[name].append(1e3 * math.sqrt(in_memory_s * in_caches_s) / EQUAL)
    return {
        "samples_ms": {name: rounded(values) for name, values in samples.items()},
        "disturbed": False,
    }


def _seconds(call: Call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
