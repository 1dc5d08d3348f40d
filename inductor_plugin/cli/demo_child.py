"""One process of the demo: compile a model, compare with eager, and report as one JSON line."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

import inductor_plugin
from inductor_plugin.aot import models
from inductor_plugin.errors import OptionError
from inductor_plugin.tuning.validity import is_provisional

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_LOW_PRECISION_TOLERANCE = 5e-2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process of the demo; its last line of output is the report."""
    parser = argparse.ArgumentParser(prog="python -m inductor_plugin.cli.demo_child")
    parser.add_argument("--model", required=True, help="module:function")
    parser.add_argument("--device", required=True, choices=("cpu", "cuda"))
    parser.add_argument("--cache-dir", required=True)
    parser.add_argument("--table", required=True, choices=("on", "off"))
    arguments = parser.parse_args(argv)
    options = {
        "max_autotune": True,
        "cache_dir": arguments.cache_dir,
        "remote_url": "",
        "table": arguments.table,
    }
    try:
        report = measure(arguments.model, arguments.device, options)
    except OptionError as error:
        print(f"inductor-plugin demo: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report))
    return 0


def measure(spec: str, device: str, options: dict[str, Any]) -> dict[str, Any]:
    """Compile a model with the plugin and return times, errors and counters as JSON values."""
    model, inputs = models.load(spec)
    model, tickets = model.to(device), list[Any]()
    if device == "cuda" and spec in (models.TINY, models.SMALL):
        model = model.to(torch.bfloat16)
    inputs = models.moved(inputs, device)
    with torch.no_grad(), inductor_plugin.observe(tickets.extend):
        expected = models.tensors(models.call(model, inputs))
        compiled = torch.compile(model, backend="inductor_plugin", options=options)
        start = time.perf_counter()
        actual = models.tensors(models.call(compiled, inputs))
        if device == "cuda":
            torch.cuda.synchronize()
        compile_s = time.perf_counter() - start
    return {
        "torch": str(torch.__version__),
        "compile_s": compile_s,
        "error": _largest([_error(*both) for both in zip(actual, expected, strict=True)]),
        "tolerance": max(map(_tolerance, expected), default=0.0),
        "stats": inductor_plugin.stats().to_dict(),
        "provisional": sum(any(map(is_provisional, t.measured.values())) for t in tickets),
    }


def _largest(errors: Sequence[float]) -> float:
    """Return the largest error, not a number if one of them is none: `max` depends on their order then."""
    return math.nan if any(map(math.isnan, errors)) else max(errors, default=0.0)


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the root mean square of the difference, relative to that of the expected values."""
    reference = expected.double()
    difference = (actual.double() - reference).square().mean().sqrt().item()
    return difference / max(reference.square().mean().sqrt().item(), 1e-30) if difference else 0.0


def _tolerance(expected: torch.Tensor) -> float:
    return _TOLERANCE.get(expected.dtype, _LOW_PRECISION_TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
