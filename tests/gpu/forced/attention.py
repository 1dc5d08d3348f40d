"""One process that compiles attentions with one family of kernels forced to win, and runs them.

    python -m tests.gpu.forced.attention FAMILY CACHE_DIR

Each graph runs forward and backward against float32, the first of a family also on another stream, in
a CUDA graph and with other lengths in the same compiled graph. Prints one JSON line.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from benchmarks.harness.attention import (
    CAUSAL,
    FULL,
    LAST_CAUSAL,
    Shape,
    attention,
    error_of,
    operands,
)
from benchmarks.harness.forced import forced
from inductor_plugin.problem.attention import Mask
from tests.gpu.forced.process import compiled, graphs_error, listed, main, stream_error

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


_GRADIENTS = 0.03
"""What is accepted of gradients in bfloat16: the worst row of Triton's kernels has 0.0255, of CUTLASS's 0.0247 (H200)."""

_SMALL = (Shape("causal", 2, 4, 2, 300, 300, 128),)
FAMILIES: dict[str, Family] = {
    "triton causal d128": Family(
        ("triton_attention-", "triton_attention_backward-"), _SMALL, accepted=_GRADIENTS
    ),
    "cutlass causal d128": Family(
        ("cutlass_fmha.",), _SMALL, backends="ATEN,CUTLASS", accepted=_GRADIENTS
    ),
    "triton dims": Family(
        ("triton_attention-", "triton_attention_backward-"), _DIMS, accepted=_GRADIENTS
    ),
    "triton masks": Family(
        (
            "triton_attention-",
            "triton_attention_backward-",
            "triton_attention_varlen-",
            "triton_attention_varlen_backward-",
        ),
        (*_MASKS, *_VARLEN),
        accepted=_GRADIENTS,
    ),
    "triton decode": Family(("triton_attention_decode-",), _DECODE),
    "cutlass": Family(
        ("cutlass_fmha.",),
        tuple(dim for dim in (*_DIMS, *_MASKS) if dim.dim in (64, 128)),
        backends="ATEN,CUTLASS",
        accepted=_GRADIENTS,
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


def report(name: str, cache_dir: Path) -> dict[str, Any]:
    """Compile and run the graphs of a family; return errors by graph, and what was taken."""
    family = FAMILIES[name]
    started = time.monotonic()
    graphs: dict[str, Any] = {}
    for number, shape in enumerate(family.shapes):
        with forced(family.prefixes) as taken:
            errors = {"plain": _error(_compiled(family, shape, cache_dir), family, shape)}
            if number == 0:
                errors |= _every_way(family, shape, cache_dir)
        graphs[shape.name] = {"errors": errors, "taken": sorted(set(taken))}
    return {"graphs": graphs, "seconds": round(time.monotonic() - started, 1)}


def _compiled(family: Family, shape: Shape, cache_dir: Path, **options: Any) -> Any:
    function = attention(shape, family.device)
    return compiled(function, cache_dir, backends=family.backends, **options)


def _error(function: Any, family: Family, shape: Shape) -> float:
    """Return the largest error of the output and, where there is one, of its gradients."""
    q, k, v, do = operands(shape, family.device)
    inputs = [tensor.requires_grad_(shape.backward) for tensor in (q, k, v)]
    out = function(*inputs)
    gradients = torch.autograd.grad(out, inputs, do) if shape.backward else ()
    return error_of(shape, (q, k, v, do), out, gradients)


def _every_way(family: Family, shape: Shape, cache_dir: Path) -> dict[str, float]:
    def inputs(seed: int) -> list[torch.Tensor]:
        return operands(shape, family.device, seed)[:3]

    def error(answer: Any, tensors: list[torch.Tensor]) -> float:
        (out,) = listed(answer)
        return error_of(shape, tensors, out)

    errors = {"lengths": _other_lengths(family, shape, cache_dir)}
    if family.device == "cuda":
        errors["stream"] = stream_error(_compiled(family, shape, cache_dir), inputs, error)
        replayed = _compiled(family, shape, cache_dir, **{"triton.cudagraphs": True})
        errors["graph"] = graphs_error(replayed, inputs, error)
    return errors


def _other_lengths(family: Family, shape: Shape, cache_dir: Path) -> float:
    """Return the largest error over other lengths; infinite where one of them compiled again."""
    function = _compiled(family, shape, cache_dir, dynamic=True)
    worst = _error(function, family, shape)
    torch._dynamo.utils.counters.clear()
    for step in (17, 64, 129):
        other = replace(shape, queries=shape.queries + step * (shape.queries > 1))
        other = replace(other, keys=shape.keys + step)
        worst = max(worst, _error(function, family, other))
    again = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return float("inf") if again else worst


if __name__ == "__main__":
    main(report)
