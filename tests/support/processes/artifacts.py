"""One process that loads or saves torch's artifacts of a small model, compiled with the plugin.

Started as ``python -m tests.support.processes.artifacts``; prints a report as one JSON line.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import Tensor
from torch._dynamo.utils import counters

import inductor_plugin
from inductor_plugin.activation import observe
from tests.support.candidates.fast_templates import rivals_offered
from tests.support.processes.tuning import ROWS, Small


def product(x: Tensor) -> Tensor:
    """Return what Inductor's cache keeps; a graph with repacked weights it does not."""
    return torch.relu(x @ x.t()) @ x


def main() -> None:
    """Load, compile, save and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--load")
    parser.add_argument("--save")
    parser.add_argument("--without-fx-cache", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(ROWS, 256)
    model = Small(0).eval()
    decisions: dict[str, str | None] = {}

    def decided(tickets: Sequence[Any]) -> None:
        decisions.update({t.digest: t.verdict and t.verdict.winner for t in tickets})

    loaded = saved = None
    if arguments.load:
        loaded = torch.compiler.load_cache_artifacts(Path(arguments.load).read_bytes())
    inductor_config.fx_graph_cache = not arguments.without_fx_cache
    with torch.no_grad(), rivals_offered(), observe(decided):
        results = [torch.compile(product, backend="inductor_plugin")(x)]
        inductor_config.freezing = True
        results.append(torch.compile(model, backend="inductor_plugin")(x))
    if arguments.save:
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        Path(arguments.save).write_bytes(saved[0])
    report = {
        "decisions": decisions,
        "stats": inductor_plugin.stats().to_dict(),
        "hits": counters["inductor"]["fxgraph_cache_hit"],
        "loaded": loaded and loaded.artifacts,
        "saved": saved and saved[1].artifacts,
        "results": [result.double().sum().item() for result in results],
        "error": max(
            (result - expected).abs().max().item() / expected.abs().max().item()
            for result, expected in zip(results, (product(x), model(x)), strict=True)
        ),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
