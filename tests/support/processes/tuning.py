"""One process of many that tune the same small models at the same time on one cache directory.

Started as ``python -m tests.support.processes.tuning``. It prints ``ready`` when everything is imported, starts
after a line on stdin, and prints a report as one JSON line.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time

import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn

import inductor_plugin
from tests.support.candidates.fast_templates import rivals_offered

ROWS = 256  # below some hundred rows Inductor offers no C++ template for a frozen linear layer


class Small(nn.Module):
    """Two products that Inductor's C++ template also serves, and one that only a test template serves."""

    def __init__(self, variant: int) -> None:
        super().__init__()
        width = 256 + 32 * variant
        self.up, self.down = nn.Linear(256, width), nn.Linear(width, 192)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.up(x))
        return torch.mm(y.t(), y)


def main() -> None:
    """Compile each variant, compare with eager, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache-dir", required=True)
    parser.add_argument("--variants", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # many processes on few cores
    inductor_config.freezing = True  # Dynamo asks before the options of a compile are in force
    inductor_config.fx_graph_cache = False
    torch.manual_seed(0)
    x = torch.randn(ROWS, 256)
    models = [Small(variant).eval() for variant in arguments.variants]
    _load_inductor()
    print("ready", flush=True)
    sys.stdin.readline()

    error = 0.0
    started = time.perf_counter()
    with torch.no_grad(), rivals_offered():
        for model in models:
            compiled = torch.compile(
                model, backend="inductor_plugin", options={"cache_dir": arguments.cache_dir}
            )
            expected = model(x)
            scale = expected.abs().max().item()
            error = max(error, (compiled(x) - expected).abs().max().item() / scale)
    elapsed_s = time.perf_counter() - started
    stats = inductor_plugin.stats().to_dict()
    print(json.dumps({"error": error, "elapsed_s": elapsed_s, "stats": stats}), flush=True)


def _load_inductor() -> None:
    """Import the modules of a first compile: 2 s in which there is nothing of interest to interrupt."""
    for name in ("compile_fx", "codegen.cpp", "mkldnn_lowerings"):
        importlib.import_module(f"torch._inductor.{name}")


if __name__ == "__main__":
    main()
