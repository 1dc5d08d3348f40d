"""One process that compiles small graphs with one template forced to win, and runs them in every way.

    python -m tests.gpu.forced.product TEMPLATE CACHE_DIR

Its own selection takes the named template's first candidate that ran and was right, however fast the
others are; all else is what a user's process does. Prints one JSON line.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.dry_twin import DryTwin
from benchmarks.harness.forced import FUSED, forced, is_named
from inductor_plugin.registry import default_registry
from tests.gpu.cases import graphs
from tests.gpu.cases.product import BF16, E4M3, FP32, Spec, by_columns, by_rows
from tests.gpu.forced.process import Graph, every_way, main


def linear(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return a layer with a bias, a residual and a ReLU."""
    return (torch.addmm(c, x, w).relu() + 1) * 2


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return a product, and a ReLU after it."""
    return torch.mm(x, w).relu()


def _scaled(a: Any, b: Any, x: Any, y: Any) -> torch.Tensor:
    return graphs.scaled(a, b, x, y)[0].relu()


def _unscaled(a: Any, b: Any, x: Any, y: Any) -> torch.Tensor:
    return graphs.unscaled(a, b, x, y).relu()


def _int4(a: Any, b: Any, scales: Any) -> torch.Tensor:
    return graphs.int4(a, b, scales)[0].relu()


def _int4_reference(a: Any, b: Any, scales: Any) -> torch.Tensor:
    return graphs.int4_unpacked(a, b, scales).relu()


def _batch(a: Any, b: Any) -> torch.Tensor:
    return torch.bmm(a, b).relu()


def _grouped(a: Any, b: Any, ends: Any) -> torch.Tensor:
    return graphs.grouped(a, b, ends)[0].relu()


def _ungrouped(a: Any, b: Any, ends: Any) -> torch.Tensor:
    return graphs.ungrouped(a, b, ends).relu()


_LAYER = (by_rows(512, 1024), by_columns(1024, 768), Spec((768,)))
_FP8 = (
    by_rows(512, 1024, E4M3),
    by_columns(1024, 768, E4M3),
    Spec((512, 1), FP32, values="scale"),
    Spec((1, 768), FP32, values="scale"),
)
_PACKED = (
    by_rows(16, 2048),
    Spec((128, 16, 32, 4), torch.int32, values="int4"),
    Spec((32, 1024, 2), BF16, values="scale"),
)
_GROUPS = (
    by_rows(512, 256),
    Spec((4, 256, 384), stride=(256 * 384, 1, 256)),
    Spec((4,), torch.int32, contents=(0, 300, 300, 512)),
)
_CUTLASS = "ATEN,CUTLASS"

FORCED: dict[str, Graph] = {
    "cutlass": Graph(linear, linear, _LAYER, _CUTLASS, rows=(16, 100, 2048)),
    "cutlass bmm": Graph(_batch, _batch, (Spec((4, 256, 512)), Spec((4, 512, 384))), _CUTLASS),
    "cutlass grouped": Graph(_grouped, _ungrouped, _GROUPS, _CUTLASS),
    "cutlass fp8": Graph(_scaled, _unscaled, _FP8, _CUTLASS),
    "triton_persistent_tma": Graph(linear, linear, _LAYER, rows=(128, 640, 2048)),
    "triton_decode": Graph(product, product, (by_rows(8, 4096), by_columns(4096, 4096))),
    "triton_split_k": Graph(product, product, (by_rows(64, 8192), by_columns(8192, 512))),
    "triton_fp8": Graph(_scaled, _unscaled, _FP8),
    "triton_int4": Graph(_int4, _int4_reference, _PACKED, tolerance=0.02),
    "dry_twin": Graph(
        product,
        product,
        (by_rows(64, 256), by_rows(256, 128)),
        "ATEN",
        rows=(32, 100),
        device="cpu",
    ),
}
"""By the beginning of the candidates' identity; a space and which graph may follow. The last one needs
no GPU, and proves the rest of this file."""

FUSES = frozenset({"cutlass", "cutlass bmm"})
"""Graphs whose epilogue the template computes, too; no other template of ours takes one of these epilogues."""


def report(name: str, cache_dir: Path) -> dict[str, Any]:
    """Compile and run a forced graph; return its errors and what was taken."""
    if name == DryTwin.name:
        default_registry().register(DryTwin())
    started = time.monotonic()
    with forced(name.partition(" ")[0]) as taken:
        errors = every_way(FORCED[name], cache_dir)
    seconds = round(time.monotonic() - started, 1)
    return errors | {"taken": sorted(set(taken)), "seconds": seconds}


def complaints(name: str, taken: Sequence[str]) -> list[str]:
    """Return what is wrong with the kernels that were taken for a forced graph, one line each."""
    prefix = name.partition(" ")[0]
    others = [kernel for kernel in taken if not is_named(kernel, prefix)]
    result = [f"not of {prefix}: {others}"] if others or not taken else []
    if name in FUSES and not any(kernel.startswith(FUSED) for kernel in taken):
        result.append(f"no fused kernel was taken: {list(taken)}")
    return result


if __name__ == "__main__":
    main(report)
