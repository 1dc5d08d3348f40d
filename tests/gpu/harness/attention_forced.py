"""One process that compiles attentions with one family of kernels forced to win, and runs them.

    python -m tests.gpu.harness.attention_forced FAMILY CACHE_DIR

Each graph runs forward and backward against float32, the first of a family also on another stream, in
a CUDA graph and with other lengths in the same compiled graph. Prints one JSON line.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo

from benchmarks.attention.arm import attention, operands
from benchmarks.attention.check import error_of
from benchmarks.attention.shapes import CAUSAL, FULL, LAST_CAUSAL, Shape
from inductor_plugin.problem.attention import Mask
from inductor_plugin.tuning import selection
from inductor_plugin.tuning.decision import Verdict
from tests.gpu.harness.forced import all_contending

_LENGTHS = (100, 1, 257, 640)
_DIMS = tuple(
    Shape(f"d{dim}", 2, 4, 2, 300, 300, dim) for dim in (32, 40, 64, 80, 96, 128, 160, 192, 256)
)
_MASKS = (
    Shape("full", 2, 4, 4, 384, 384, 128, FULL),
    Shape("cross", 1, 4, 4, 333, 77, 64, FULL),
    Shape("bottom right", 2, 8, 2, 100, 500, 128, LAST_CAUSAL),
    Shape("top left", 2, 8, 1, 500, 100, 64, Mask(right=0)),
    Shape("window", 1, 4, 2, 1000, 1000, 128, Mask(100, 0)),
    Shape("window both sides", 1, 4, 4, 700, 600, 64, Mask(50, 20, bottom_right=True)),
    Shape("rows that see nothing", 1, 2, 2, 300, 100, 64, LAST_CAUSAL),
)
_VARLEN = (
    Shape("varlen", 4, 4, 4, 0, 0, 128, LAST_CAUSAL, _LENGTHS),
    Shape("varlen, shared heads", 4, 8, 2, 0, 0, 64, LAST_CAUSAL, _LENGTHS),
)
_DECODE = (
    Shape("decode", 4, 32, 8, 1, 3000, 128, LAST_CAUSAL, backward=False),
    Shape("decode, 8 queries", 2, 16, 2, 8, 1000, 64, LAST_CAUSAL, backward=False),
)
_NARROW = tuple(
    Shape(f"8 bits, d{dim}", 2, 4, 2, 384, 500, dim, FULL, backward=False, narrow=True)
    for dim in (64, 128, 256)
)
_NARROW_DECODE = (
    Shape("8 bits, decode", 4, 32, 8, 1, 3000, 128, FULL, backward=False, narrow=True),
)


@dataclass(frozen=True)
class Family:
    """Kernels that are forced, by the beginnings of their candidates' identities, and what they compute.

    Attributes:
        prefixes: Forward and backward.
        shapes: The graphs; the first is run in every way.
        device: Where it runs.
        backends: The option ``gemm_backends``.
        accepted: Largest error of a row of out, dq, dk or dv, of the root mean square of all.
    """

    prefixes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    device: str = "cuda"
    backends: str = "ATEN,TRITON"
    accepted: float = 0.02


FAMILIES: dict[str, Family] = {
    "triton dims": Family(("triton_attention-", "triton_attention_backward-"), _DIMS),
    "triton masks": Family(
        (
            "triton_attention-",
            "triton_attention_backward-",
            "triton_attention_varlen-",
            "triton_attention_varlen_backward-",
        ),
        (*_MASKS, *_VARLEN),
    ),
    "triton decode": Family(("triton_attention_decode-",), _DECODE),
    "cutlass": Family(
        ("cutlass_fmha.",),
        tuple(one for one in (*_DIMS, *_MASKS) if one.dim in (64, 128)),
        backends="ATEN,CUTLASS",
    ),
    "triton 8 bits": Family(("triton_attention-",), _NARROW),
    "triton decode 8 bits": Family(("triton_attention_decode-",), _NARROW_DECODE),
    "cutlass 8 bits": Family(("cutlass_fmha.",), _NARROW, backends="ATEN,CUTLASS", accepted=0.1),
    "math on a CPU": Family(
        ("attention_math.",),
        (Shape("causal", 2, 4, 4, 40, 40, 16, CAUSAL),),
        device="cpu",
        backends="ATEN",
    ),
}
"""The last one needs no GPU, and proves the rest of this file."""


def forced_decision(prefixes: tuple[str, ...], taken: list[str]) -> Callable[..., Verdict]:
    """Return a decision that takes the first candidate whose identity begins with one of these."""

    def decide(
        medians_ms: Mapping[str, float], libraries: Collection[str], *limits: Any
    ) -> Verdict:
        del limits
        fitting = [name for name in medians_ms if name.startswith(prefixes)]
        library = next(iter(libraries), None)
        taken.append(fitting[0] if fitting else f"none of {sorted(medians_ms)}")
        chosen = fitting[0] if fitting else library
        return Verdict(chosen, library, "forced")

    return decide


def report(name: str, cache_dir: Path) -> dict[str, Any]:
    """Compile and run the graphs of a family; return errors by graph, and what was taken."""
    given = FAMILIES[name]
    started = time.monotonic()
    graphs: dict[str, Any] = {}
    for number, shape in enumerate(given.shapes):
        taken: list[str] = []
        decided = mock.patch.object(selection, "decide", forced_decision(given.prefixes, taken))
        with decided, all_contending():
            ways = {"plain": _plain(given, shape, cache_dir)}
            if number == 0:
                ways |= _every_way(given, shape, cache_dir)
        graphs[shape.name] = {"errors": ways, "taken": sorted(set(taken))}
    return {"graphs": graphs, "seconds": round(time.monotonic() - started, 1)}


def _compiled(
    given: Family, shape: Shape, cache_dir: Path, *, dynamic: bool | None = None, **options: Any
) -> Any:
    torch._dynamo.reset()
    settings: dict[str, Any] = {
        "cache_dir": str(cache_dir),
        "table": "off",
        "progress": "off",
        "gemm_backends": given.backends,
        "compile_timeout_s": 150,
        "compile_workers": 4,
        "max_candidates": 6,  # in turns from each template, so that the forced one is among them
    }
    function = attention("ours", shape, given.device)
    return torch.compile(
        function, backend="inductor_plugin", options=settings | options, dynamic=dynamic
    )


def _plain(given: Family, shape: Shape, cache_dir: Path) -> float:
    return _error(_compiled(given, shape, cache_dir), given, shape)


def _error(function: Any, given: Family, shape: Shape) -> float:
    """Return the largest error of the output and, where there is one, of its gradients."""
    q, k, v, do = operands(shape, given.device)
    inputs = [one.requires_grad_(shape.backward) for one in (q, k, v)]
    out = function(*inputs)
    gradients = torch.autograd.grad(out, inputs, do) if shape.backward else ()
    return error_of(shape, (q, k, v, do), out, gradients)


def _every_way(given: Family, shape: Shape, cache_dir: Path) -> dict[str, float]:
    ways = {"lengths": _other_lengths(given, shape, cache_dir)}
    if given.device == "cuda":
        ways["stream"] = _on_a_stream(given, shape, cache_dir)
        ways["graph"] = _in_a_graph(given, shape, cache_dir)
    return ways


def _other_lengths(given: Family, shape: Shape, cache_dir: Path) -> float:
    """Return the largest error over other lengths; infinite where one of them compiled again."""
    function = _compiled(given, shape, cache_dir, dynamic=True)
    worst = _error(function, given, shape)
    torch._dynamo.utils.counters.clear()
    for step in (17, 64, 129):
        other = replace(shape, queries=shape.queries + step * (shape.queries > 1))
        other = replace(other, keys=shape.keys + step)
        worst = max(worst, _error(function, given, other))
    again = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return float("inf") if again else worst


def _on_a_stream(given: Family, shape: Shape, cache_dir: Path) -> float:
    function = _compiled(given, shape, cache_dir)
    inputs = operands(shape, given.device)
    function(*inputs[:3])
    wanted = [one.clone() for one in inputs]
    for one in inputs:
        one.zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        cuda: Any = torch.cuda
        cuda._sleep(50_000_000)  # cycles, about 25 ms
        for mine, theirs in zip(inputs, wanted, strict=True):
            mine.copy_(theirs)
        out = function(*inputs[:3])
    stream.synchronize()
    return error_of(shape, wanted, out)


def _in_a_graph(given: Family, shape: Shape, cache_dir: Path) -> float:
    function = _compiled(given, shape, cache_dir, **{"triton.cudagraphs": True})
    worst = 0.0
    with torch.no_grad():
        for factor in (1.0, 0.5, 2.0, 1.5):  # the first calls warm up and record, the later replay
            torch.compiler.cudagraph_mark_step_begin()
            inputs = [one * factor for one in operands(shape, given.device)]
            out = function(*inputs[:3]).clone()
            worst = max(worst, error_of(shape, inputs, out))
    return worst


def main() -> None:
    """Run the family named on the command line."""
    name, cache_dir = sys.argv[1:]
    json.dump(report(name, Path(cache_dir)), sys.stdout)


if __name__ == "__main__":
    main()
