"""NVIDIA's own heuristics for matrix products, where ``nvidia-matmul-heuristics`` is installed.

The library is an analytical model in a shared object; it needs no GPU and no driver. Any failure of
it is a reason, not an error: the compilation continues with the ranking of `gemm`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inductor_plugin.cost.gemm import Ranked
from inductor_plugin.cost.tile import GemmShape, TileConfig
from inductor_plugin.problem.target import Target

INSTALL = 'pip install "inductor-plugin[heuristics]"'

_GPUS = {
    "H100": "H100_SXM", "H100 PCIe": "H100_PCIE", "H100 NVL": "H100_NVL", "H200": "H200_SXM",
    "H20": "H20_SXM", "A100": "A100_SXM_80GB", "A100 80GB PCIe": "A100_PCIE_80GB",
    "A30": "A30_PCIE", "A10": "A10_PCIE", "A40": "A40_PCIE", "RTX A6000": "RTX_A6000",
    "RTX 3090": "RTX_3090", "L4": "L4", "L20": "L20", "L40": "L40", "L40S": "L40S",
    "RTX 4090": "RTX_4090", "RTX 6000 Ada Generation": "RTX_6000_ADA",
    "B200": "B200", "RTX 5080": "RTX_5080", "RTX 5090": "RTX_5090",
}  # fmt: skip
"""The library's names of GPUs, by the names of our targets; without a GPU it models no others."""

_LETTERS = {
    "float32": "S",
    "float16": "H",
    "bfloat16": "T",
    "float8_e4m3fn": "Q",
    "float8_e5m2": "R",
    "int8": "B",
    "int32": "I",
}
"""The library's letters of dtypes (nvMatmulHeuristics.h, "Supported precisions")."""

_BACKEND = "CUTLASS3"
"""The library's name of the kernels that are asked for; it has ``CUTLASS`` (2.x) and ``TRITON``, too."""

_FAILURES = (
    ImportError, OSError, AssertionError, AttributeError, KeyError, RuntimeError, TypeError,
    ValueError, ctypes.ArgumentError,
)  # fmt: skip
_LOCK = threading.Lock()
"""The Python wrapper keeps the precision of a call in global state."""


@dataclass(frozen=True)
class Suggestion:
    """One kernel the library would try.

    Attributes:
        config: How it cuts the product.
        predicted_s: Seconds it expects.
    """

    config: TileConfig
    predicted_s: float


@functools.lru_cache(maxsize=4096)
def suggestions(target: Target, shape: GemmShape, count: int = 16) -> tuple[Suggestion, ...] | str:
    """Return the kernels that NVIDIA's heuristics suggest, in their order, or the reason why there are none.

    Answers are cached per target and shape.

    Args:
        target: The GPU.
        shape: The product.
        count: How many kernels to ask for; warp tilings of one tile count separately, and are merged.
    """
    precision = _precision(shape)
    if target.name not in _GPUS:
        return f"nvidia-matmul-heuristics models no {target.name}"
    if precision is None:
        return f"nvidia-matmul-heuristics has no {shape.a} times {shape.b} to {shape.out}"
    try:
        with _LOCK:
            return _query(target, shape, count, precision)
    except _FAILURES as error:
        hint = f"; {INSTALL}" if isinstance(error, ImportError) else ""
        return f"nvidia-matmul-heuristics did not answer: {type(error).__name__}: {error}{hint}"


def ordered(
    target: Target, shape: GemmShape, ours: Iterable[Ranked], count: int = 32
) -> tuple[list[Ranked], str]:
    """Return our ranking with NVIDIA's suggestions moved to its front, and the source of the order.

    Args:
        target: The GPU.
        shape: The product.
        ours: Configurations that can be built, ranked by `gemm.ranked`.
        count: How many suggestions to ask for.

    Returns:
        The ranking, and one line for people.
    """
    ranking = list(ours)
    suggested = suggestions(target, shape, count)
    if isinstance(suggested, str):
        return ranking, suggested
    places: dict[tuple[int, ...], int] = {}
    for place, suggestion in enumerate(suggested):
        places.setdefault(_cut(suggestion.config), place)
    order = sorted(ranking, key=lambda entry: places.get(_cut(entry.config), len(suggested)))
    named = sum(_cut(entry.config) in places for entry in ranking)
    return order, f"nvidia-matmul-heuristics names {named} of {len(ranking)} candidates"


def _cut(config: TileConfig) -> tuple[int, ...]:
    """Return the key of a kernel in both rankings; K of a tile and stages follow from it."""
    return config.m, config.n, *config.cluster, config.split_k


def _precision(shape: GemmShape) -> str | None:
    """Return the library's name of the dtypes, or None if it has none."""
    a, b, out = (_LETTERS.get(dtype) for dtype in (shape.a, shape.b, shape.out))
    if a is None or b is None or out is None:
        return None
    if a in "QR" and b in "QR":
        # Five letters: A, B, C, compute, D. C has D's type, but the library has no C of eight bits.
        return f"{a}{b}{'T' if out in 'QR' else out}S{out}"
    if a != b or a in "QRI":
        return None
    return f"{a}{ {'S': 'F', 'B': 'I'}.get(a, 'S') }{out}"


@functools.cache
def _interface(gpu: str) -> Any:
    """Return the library set up for a GPU; loading it takes 30 ms."""
    library: Any = importlib.import_module("nvMatmulHeuristics")
    return library.NvMatmulHeuristicsInterfaceEx(
        backend=library.NvMatmulHeuristicsTarget[_BACKEND],
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        load_discovery_implicitly=True,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[gpu],
    )


def _query(
    target: Target, shape: GemmShape, count: int, precision: str
) -> tuple[Suggestion, ...] | str:
    interface = _interface(_GPUS[target.name])
    layouts = importlib.import_module("nvMatmulHeuristics").NvMatmulHeuristicsMatmulLayout
    # As in cutlass_library.heuristics_provider: T for row-major, as in BLAS.
    transposed = ("T" if shape.a_row_major else "N") + ("T" if shape.b_row_major else "N")
    problem = interface.makeNvMatmulHeuristicsProblem(
        shape.m, shape.n, shape.k, layouts[f"{transposed}_ROW_MAJOR"], shape.batch
    )
    merged: dict[TileConfig, Suggestion] = {}
    for answer in interface.get(problem, count, precision=precision):
        suggestion = _suggestion(answer["kernel"], float(answer["runtime"]))
        # The library answers with zeros where it has no kernel.
        if suggestion is not None:
            merged.setdefault(suggestion.config, suggestion)
    if not merged:
        return f"nvidia-matmul-heuristics has nothing for {precision} on {target.name}"
    return tuple(merged.values())


def _suggestion(kernel: Any, runtime_s: float) -> Suggestion | None:
    m, n, k = int(kernel.cta_tile_m), int(kernel.cta_tile_n), int(kernel.cta_tile_k)
    if min(m, n, k) < 1 or runtime_s <= 0:
        return None
    # The library repeats a tile with several warp tilings, which Hopper does not have: 4096 sums a warp.
    config = TileConfig(
        m=m,
        n=n,
        k=k,
        warps=max(8 if m * n >= 128 * 128 else 4, m * n // 4096),
        stages=int(kernel.stages),
        cluster=(int(kernel.cluster_m), int(kernel.cluster_n)),
        split_k=max(int(kernel.split_k), 1),
        group=max(int(kernel.swizzle_factor), 1),
        along="m" if int(kernel.cta_order) == 0 else "n",
    )
    return Suggestion(config, runtime_s)
