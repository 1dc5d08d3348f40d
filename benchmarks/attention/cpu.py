"""Attention on this machine's CPU: torch.compile with and without the plugin.

    python -m benchmarks.attention.cpu [--rounds 60] [--threads 1] [--out benchmarks/results/attention_cpu.json]

For each shape a function with one `scaled_dot_product_attention` is compiled both ways, and both are
called in turns in alternating order, so that clock drift affects both. ``ratio`` is stock's time over
ours, forward, and forward with backward. Both times are the mean of the lowest tenth of the samples,
since other work on the machine only adds time; ``load`` is the load average. ``same_code`` is true if
the plugin chose the kernel that stock calls: then the generated code is identical
(tests/inductor/attention/test_lowering.py), and the ratio is noise. Otherwise a ratio below the limit
makes the exit status non-zero.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch.nn.functional import scaled_dot_product_attention

import inductor_plugin
from benchmarks.harness.repository import RESULTS

OUT = RESULTS / "attention_cpu.json"
LEAST_RATIO = 1 / 1.02
LEAST_SAMPLE_S = 0.02
TRACED = "attention_cpu"
"""Prefix of the name of stock's kernel among the candidates."""


@dataclass(frozen=True)
class Shape:
    """One attention: [batch, heads, queries, dim] by [batch, heads, keys, dim]."""

    name: str
    batch: int
    heads: int
    queries: int
    keys: int
    dim: int
    causal: bool = False
    dtype: str = "float32"


SHAPES = (
    Shape("vision tokens", 8, 6, 197, 197, 64),
    Shape("text encoder", 8, 12, 128, 128, 64),
    Shape("short causal", 16, 8, 64, 64, 64, causal=True),
    Shape("causal", 2, 8, 512, 512, 64, causal=True),
    Shape("cross", 4, 8, 64, 512, 64),
    Shape("decode", 8, 16, 1, 1024, 128),
    Shape("wide heads", 2, 4, 256, 256, 128),
    Shape("bf16", 2, 8, 256, 256, 64, dtype="bfloat16"),
)


def main() -> int:
    """Measure, print, write; return 1 if the plugin is slower than the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60, help="turns of each pair")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0: its own")
    parser.add_argument("--only", default="", help="a part of a shape's name")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        if arguments.only in shape.name:
            rows += measured(shape, arguments.rounds)
            print(json.dumps(rows[-2:], indent=1), flush=True)
            report = {"machine": machine(), "least_ratio": LEAST_RATIO, "rows": rows}
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    slower = [
        f"{row['shape']} {row['what']}"
        for row in rows
        if row["ratio"] < LEAST_RATIO and not row["same_code"]
    ]
    print(f"Written to {arguments.out}. Slower than stock: {', '.join(slower) or 'nothing'}.")
    return 1 if slower else 0


def measured(shape: Shape, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of a shape: forward, and forward with backward."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        options = inductor_plugin.options(cache_dir=folder, table="off", progress="off")
        for what, grad in (("forward", False), ("forward and backward", True)):
            calls = [call(shape, None, grad=grad), call(shape, options, grad=grad)]
            first = [function() for function in calls]
            for theirs, ours in zip(*first, strict=True):
                torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
            stock, ours = turns(calls, rounds)
            rows.append(
                {
                    "shape": shape.name,
                    "what": what,
                    **asdict(shape),
                    "stock_ms": undisturbed(stock),
                    "ours_ms": undisturbed(ours),
                    "ratio": undisturbed(stock) / undisturbed(ours),
                    "median_ratio": statistics.median(stock) / statistics.median(ours),
                    "load": os.getloadavg()[0],
                    "same_code": all(
                        record["winner"].startswith(TRACED)
                        for record in records(Path(folder)).values()
                    ),
                    "candidates": records(Path(folder)),
                }
            )
    return rows


def call(
    shape: Shape, options: dict[str, Any] | None, *, grad: bool
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return a function that computes the output, or the output and the gradients."""
    torch._dynamo.reset()  # pyright: ignore[reportUnknownMemberType]
    dtype: torch.dtype = getattr(torch, shape.dtype)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=shape.causal)

    compiled: Any = torch.compile(attend, options=options)  # pyright: ignore[reportUnknownMemberType]
    generator = torch.Generator().manual_seed(1)
    lengths = (shape.queries, shape.keys, shape.keys)
    operands = [
        torch.randn(shape.batch, n, shape.heads, shape.dim, generator=generator)
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_(grad)
        for n in lengths
    ]
    if not grad:
        return lambda: (compiled(*operands),)
    step = torch.ones(shape.batch, shape.heads, shape.queries, shape.dim, dtype=dtype)

    def both() -> tuple[torch.Tensor, ...]:
        out = compiled(*operands)
        return out, *torch.autograd.grad(out, operands, step)

    return both


def turns(calls: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Return milliseconds per call of each, sampled in turns; the order alternates."""
    last_of_three = [seconds(function, 1) for function in calls for _ in range(3)][2::3]
    repeats = max(1, round(LEAST_SAMPLE_S / min(last_of_three)))
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds):
        order = range(len(calls)) if turn % 2 else reversed(range(len(calls)))
        for index in order:
            samples[index].append(seconds(calls[index], repeats) / repeats * 1e3)
    return samples


def undisturbed(samples: Sequence[float]) -> float:
    """Return the mean of the lowest tenth of the samples."""
    return statistics.fmean(sorted(samples)[: max(1, len(samples) // 10)])


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the seconds that ``repeats`` calls take."""
    started = time.perf_counter()
    for _ in range(repeats):
        function()
    return time.perf_counter() - started


def records(folder: Path) -> dict[str, Any]:
    """Return the measurements and the decision of each problem."""
    problems: dict[str, Any] = {}
    for path in folder.glob("records/*/*/*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        candidates = record["candidates"].values()
        problems[record["describe"]] = {
            "winner": record["decision"]["winner"].rpartition("-")[0],
            "median_ms": {x["name"]: x["median_ms"] for x in candidates},
            "status": {x["name"]: x["status"] for x in candidates},
        }
    return problems


def machine() -> dict[str, Any]:
    """Return a description of this machine."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "processor": processor(),
        "system": platform.platform(),
    }


def processor() -> str:
    """Return the processor's name."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    raise SystemExit(main())
