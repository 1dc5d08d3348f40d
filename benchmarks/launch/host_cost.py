"""What a call of a compiled kernel costs the host, in microseconds, against ``torch.mm(out=)`` in the same generated code.

A C function that does nothing is the kernel, and tensors are on the CPU: left is what happens before a launch, without
device guard and stream (0.1 to 0.3 us) and the launch itself. ``sites`` are the lines generated code has now, ``python``
the same sites without their library, ``operators`` the calls of the torch operators. Every function runs the same number
of lines; the samples of all are taken in turns.

python -m benchmarks.launch.host_cost --out benchmarks/results/host_cost_cpu.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._inductor.select_algorithm import extern_kernels

from benchmarks.startup.cold_warm import machine
from inductor_plugin.ops import launch, sites
from tests.support.native import call_sites, host_kernels

LIMITS = {"product": 2.0, "product, workspace": 2.0, "epilogue": 3.0, "attention": 3.0}
"""Most that a call may cost, in that of ``torch.mm(out=)``."""

_KERNEL = """
#include <cstdint>
extern "C" int32_t nothing(int32_t mode, void*, uint64_t* bytes, void*) { if (mode == 1) *bytes = 0; return 0; }
"""
_LINES = 50
"""Calls in one function, so that calling the function itself does not count."""


def main() -> int:
    """Run all ways in turns, print them, and write the figures to ``--out``; the exit status is 1 above a limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path, help="file for the JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, call_sites.on_the_host():
        library = host_kernels.library(Path(folder), _KERNEL)
        figures = summary(measure(functions(f"nothing@{library}"), arguments.rounds))
    for name, figure in figures.items():
        print(f"{name:32} {figure['us']:7.2f} us  {figure['of_mm']:6.2f} x torch.mm(out=)")
    late = [name for name, limit in LIMITS.items() if figures[f"sites: {name}"]["of_mm"] > limit]
    print(f"FAIL: above the limit: {', '.join(late)}" if late else "PASS")
    if arguments.out is not None:
        keep(arguments.out, figures)
    return 1 if late else 0


def keep(path: Path, figures: dict[str, dict[str, float]]) -> None:
    """Write the figures of this torch into a file, beside those of others."""
    result: dict[str, Any] = {"limits": LIMITS, "by_torch": {}}
    if path.exists():
        result["by_torch"] = json.loads(path.read_text(encoding="utf-8"))["by_torch"]
    result["by_torch"][torch.__version__] = {"machine": machine(), "figures": figures}
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def functions(kernel: str) -> dict[str, Callable[[], None]]:
    """Return functions of generated lines by their names; ``mm`` is the library's."""
    q = torch.randn(1, 2, 4, 8)
    sizes = {
        "a": (4, 4),
        "b": (4, 4),
        "c": (4, 4),
        "row": (1, 4),
        "column": (4, 1),
        "residual": (4, 4),
    }
    space: dict[str, Any] = {name: torch.randn(size) for name, size in sizes.items()}
    space |= {"aux": torch.empty(4, 4), "w": torch.empty(64, dtype=torch.uint8), "q": q}
    space |= {"o": torch.empty_like(q), "torch": torch, "extern_kernels": extern_kernels}
    ways = {
        "product": ("cutlass_mm", (kernel, "tt", 1, 0, 1), "a, b", "None", "c"),
        "product, workspace": ("cutlass_mm", (kernel, "tt", 1, 0, 1), "a, b", "w", "c"),
        "epilogue": (
            "cutlass_mm_epilogue",
            (kernel, "tt", 1, 0, 1, call_sites.epilogue((4, 4), "row", "column", "full")),
            "a, b, row, column, residual, aux",
            "None",
            "c",
        ),
        "attention": ("cutlass_fmha_output", (kernel, 0.5, -1, 0, False), "q, q, q", "None", "o"),
    }
    functions = {"mm": _function("extern_kernels.mm(a, b, out=c)", space)}
    with host():
        for name, (op, constants, operands, workspace, out) in ways.items():
            counts = (3, 1) if "epilogue" in name else (0, 0)
            qualified = f"inductor_plugin::{op}.out"
            line = f"launch({operands}, {workspace}, out={out})"
            for way, has_library in (("sites", True), ("python", False)):
                given = call_sites.sites() if has_library else None
                with mock.patch.object(sites.library, "sites", return_value=given):
                    site = sites.site(qualified, constants, *counts)
                functions[f"{way}: {name}"] = _function(line, {**space, "launch": site})
            nested = operands
            if "epilogue" in name:
                nested = "a, b, [row, column, residual]"
            words = ", ".join(map(repr, constants)) + (", [aux]" if "epilogue" in name else "")
            call = f"torch.ops.inductor_plugin.{op}.out({nested}, {words}, workspace={workspace}, out={out})"
            functions[f"operators: {name}"] = _function(call, space)
    return functions


def measure(functions: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return microseconds a line, a sample a round of each function, in turns."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    with host():
        for function in functions.values():
            function()
        for _ in range(rounds):
            for name, function in functions.items():
                started = time.perf_counter()
                function()
                samples[name].append((time.perf_counter() - started) * 1e6 / _LINES)
    return samples


def summary(samples: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return the lower quartile of each function (other work only adds), and its ratio to the library's."""
    quartiles = {name: statistics.quantiles(times, n=4)[0] for name, times in samples.items()}
    return {
        name: {"us": round(us, 3), "of_mm": round(us / quartiles["mm"], 3)}
        for name, us in quartiles.items()
    }


def host() -> Any:
    """Let kernels start on the CPU."""

    def start(abi: Any, function: Any, call: Any, _device: torch.device) -> None:
        abi.run(function, call, 0)

    cpu: dict[str, Any] = {"_launch": start, "multiprocessors": mock.Mock(return_value=132)}
    return mock.patch.multiple(launch, **cpu)


def _function(line: str, space: dict[str, Any]) -> Callable[[], None]:
    body = "\n".join([f"    {line}"] * _LINES)
    names = ", ".join(f"{name}={name}" for name in space)
    exec(f"def call({names}):\n{body}", space)
    return space["call"]


if __name__ == "__main__":
    raise SystemExit(main())
