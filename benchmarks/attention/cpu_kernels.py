"""The CPU kernels of one attention, called alone: `attention_math`, the blocks of `fmha`, and ATen's fused one.

    python -m benchmarks.attention.cpu_kernels [--rounds 60] [--out benchmarks/results/attention_cpu_kernels.json]

The results show whether the template `attention_math` pays in addition to `fmha`'s blocks, which compute the
same. The kernels of a row are called in turns in alternating order. The process's CPU time, summed over all
threads, is measured, since other work on the machine may preempt it: ``*_ms`` is the lowest sample, and
``math_gain`` the median over the turns of the blocks' time over that of `attention_math`. ``load`` is the
machine's load average at that time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.attention.cpu import Shape, machine
from benchmarks.harness.repository import RESULTS
from inductor_plugin.attention import blockwise, math
from inductor_plugin.problem.attention import Mask

OUT = RESULTS / "attention_cpu_kernels.json"
SAMPLE_S = 0.004
SHAPES = (
    Shape("tiny", 4, 8, 16, 16, 64),
    Shape("short causal", 16, 8, 64, 64, 64, causal=True),
    Shape("text encoder", 8, 12, 128, 128, 64),
    Shape("vision tokens", 8, 6, 197, 197, 64),
    Shape("cross", 4, 8, 64, 512, 64),
    Shape("decode", 8, 16, 1, 1024, 128),
    Shape("causal", 2, 8, 512, 512, 64, causal=True),
    Shape("long", 1, 8, 1536, 1536, 64),
)
WHAT = ("forward", "forward with lse", "backward")

_ATEN: Any = torch.ops.aten
_FLASH = _ATEN._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of each row")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for row in measured(arguments.rounds):
            rows.append({"threads": threads, **row})
            print(json.dumps(rows[-1]), flush=True)
            report = {"machine": machine(), "rows": rows}
            arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def measured(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each shape, type and direction."""
    for shape in SHAPES:
        for dtype in ("float32", "bfloat16"):
            for what in WHAT:
                kernels = calls(shape, getattr(torch, dtype), what)
                agree(kernels)
                samples = in_turns(kernels, rounds)
                gains = [a / b for a, b in zip(samples["blocks"], samples["math"], strict=True)]
                aten = [a / b for a, b in zip(samples["aten"], samples["math"], strict=True)]
                yield {
                    "shape": shape.name,
                    "size": [shape.batch, shape.heads, shape.queries, shape.keys, shape.dim],
                    "dtype": dtype,
                    "what": what,
                    **{f"{name}_ms": round(min(times) * 1e3, 4) for name, times in samples.items()},
                    "math_gain": round(statistics.median(gains), 3),
                    "math_gain_over_aten": round(statistics.median(aten), 3),
                    "load": round(os.getloadavg()[0], 1),
                }


def calls(shape: Shape, dtype: torch.dtype, what: str) -> dict[str, Callable[[], list[Tensor]]]:
    """Return the kernels by name, with operands in the layout of projections."""
    generator = torch.Generator().manual_seed(1)

    def operand(tokens: int) -> Tensor:
        rows = torch.randn(shape.batch, tokens, shape.heads, shape.dim, generator=generator)
        return rows.to(dtype).transpose(1, 2)

    q, do = operand(shape.queries), operand(shape.queries)
    k, v = operand(shape.keys), operand(shape.keys)
    scale = shape.dim**-0.5
    right = 0 if shape.causal else -1
    params = blockwise.ScoreParams(Mask(-1, right), scale)
    mask = (scale, -1, right, False)
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    out = torch.empty_like(q)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32) if what != WHAT[0] else None
    if what == WHAT[2]:
        forward, rows = _FLASH(q, k, v, 0.0, shape.causal, scale=scale)

        def math_backward() -> list[Tensor]:
            math.attention_math_backward(do, q, k, v, forward, rows, None, dq, dv, *mask, out=dk)
            return [dq, dk, dv]

        return {
            "math": math_backward,
            "blocks": lambda: copied(
                blockwise.backward(do, q, k, v, forward, rows, params)[:3], [dq, dk, dv]
            ),
            "aten": lambda: list(
                _FLASH_BACKWARD(do, q, k, v, forward, rows, 0.0, shape.causal, scale=scale)
            ),
        }

    def math_forward() -> list[Tensor]:
        return [math.attention_math(q, k, v, None, lse, *mask, out=out)]

    return {
        "math": math_forward,
        "blocks": lambda: copied(blockwise.forward(q, k, v, params)[:1], [out]),
        "aten": lambda: list(_FLASH(q, k, v, 0.0, shape.causal, scale=scale)[:1]),
    }


def copied(results: Any, buffers: list[Tensor]) -> list[Tensor]:
    """Return results copied to preallocated buffers, as generated code has them."""
    return [buffer.copy_(result) for buffer, result in zip(buffers, results, strict=True)]


def agree(kernels: dict[str, Callable[[], list[Tensor]]]) -> None:
    """Raise an AssertionError unless all kernels compute the same numbers."""
    first, *others = [[result.clone() for result in kernel()] for kernel in kernels.values()]
    for other in others:
        torch.testing.assert_close(other, first, atol=4e-2, rtol=4e-2)


def in_turns(kernels: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return seconds per call of each kernel, by turns; the order alternates."""
    once = {name: min(seconds(kernel, 1) for _ in range(3)) for name, kernel in kernels.items()}
    repeats = max(1, round(SAMPLE_S / min(once.values())))
    samples: dict[str, list[float]] = {name: [] for name in kernels}
    for turn in range(rounds):
        names = list(kernels) if turn % 2 else list(kernels)[::-1]
        for name in names:
            samples[name].append(seconds(kernels[name], repeats) / repeats)
    return samples


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the CPU seconds that ``repeats`` calls take."""
    started = time.process_time()
    for _ in range(repeats):
        function()
    return time.process_time() - started


if __name__ == "__main__":
    raise SystemExit(main())
