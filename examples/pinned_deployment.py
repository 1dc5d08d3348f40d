"""A pinned deployment: one process tunes and records its decisions, another one serves by them and measures nothing.

    python examples/pinned_deployment.py record pins.json    # in development; commit the file
    python examples/pinned_deployment.py serve pins.json     # in production

The server has no cache. If a request needs a product that nobody has tuned, it fails when it is compiled, and the error names the product.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch._inductor.exc import InductorError

import inductor_plugin

inductor_config.freezing = not torch.cuda.is_available()  # for frozen weights a CPU has choices
SERVED = {"policy": "pinned", "strict": True, "cache": "off"}


def model():
    """Return the model of both processes; a real one would load its weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 192), nn.ReLU(), nn.Linear(192, 48)).eval()


def record(file):
    """Tune the sizes that will be served, and write what was decided."""
    compiled = torch.compile(model(), backend="inductor_plugin", dynamic=False)
    with inductor_plugin.record(file), torch.no_grad():
        for batch in (1, 16):
            compiled(torch.randn(batch, 96))
    print(f"tuned {inductor_plugin.stats().problems} products, wrote {file}")


def serve(file):
    """Compile by the file, and refuse what is not in it."""
    options = {**SERVED, "pin_file": file}
    compiled = torch.compile(model(), backend="inductor_plugin", dynamic=False, options=options)
    with torch.no_grad():
        for batch in (1, 16):
            print(f"batch of {batch}: {tuple(compiled(torch.randn(batch, 96)).shape)}")
        print(f"{inductor_plugin.stats().benchmarked} candidates measured")
        try:
            compiled(torch.randn(24, 96))
        except InductorError as error:
            refusal = next(line for line in str(error).splitlines() if "pin" in line)
            print(f"batch of 24: {refusal.strip()}")


if __name__ == "__main__":
    {"record": record, "serve": serve}[sys.argv[1]](sys.argv[2])
