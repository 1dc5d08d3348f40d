"""How long compiling and measuring take: what was measured, as distributions to draw from.

CUTLASS: CPU seconds of nvcc for each kernel in ``evt_sm90a.json``. A batch takes the seconds of its first kernel and a part of
them for each further one (``compile_speed_cpu.json``). Triton: ``precompile_h200.json`` has the sum of 436 kernels; they are
spread as the CUTLASS kernels are. Measuring: means of the six runs of ``budget_cpu.json``, checks of numbers included; those of a
GPU were not recorded. The start of a worker is assumed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from inductor_plugin.cache import open_store

RESULTS = Path(__file__).resolve().parents[1] / "results"
_STAGES = 2
"""Each candidate of the measured runs was screened and in the finals; a problem has one other kernel there, so all were."""
_WORKER_S = 2.5
"""Assumed: no result has the import of torch and Triton; that of torch alone took 1.3 s (``import_time_cpu.json``)."""


@dataclass(frozen=True)
class Times:
    """Seconds that were measured, one entry a kernel or candidate; `worker_s` was not.

    Attributes:
        cutlass_s: Compiling one CUTLASS kernel alone.
        triton_s: Compiling one Triton kernel.
        measure_s: Measuring one candidate once: screening it, or one leg of the finals.
        worker_s: Starting a compile worker: the import of torch and Triton.
        further: Compiling each further kernel of a batch, in seconds of compiling it alone.
        source: Where they come from.
    """

    cutlass_s: tuple[float, ...]
    triton_s: tuple[float, ...]
    measure_s: tuple[float, ...]
    worker_s: float
    further: float
    source: str

    def batch_s(self, alone_s: Sequence[float]) -> float:
        """Return the seconds that kernels take in one batch, of the seconds that each takes alone."""
        first, *others = alone_s
        return first + self.further * sum(others)


def committed(results: Path = RESULTS) -> Times:
    """Return the times in the repository's results."""
    cutlass_s = tuple(map(float, _values(_read(results / "evt_sm90a.json"), "cpu_s")))
    triton_mean_s = _triton_mean_s(_read(results / "precompile_h200.json"), results)
    scale = triton_mean_s / fmean(cutlass_s)
    rounds = [run for each in _read(results / "budget_cpu.json")["rounds"] for run in each.values()]
    return Times(
        cutlass_s=cutlass_s,
        triton_s=tuple(scale * seconds for seconds in cutlass_s),
        measure_s=tuple(run["measuring_s"] / run["measured"] / _STAGES for run in rounds),
        worker_s=_WORKER_S,
        further=_further(_read(results / "compile_speed_cpu.json")),
        source="benchmarks/results: evt_sm90a, compile_speed_cpu, precompile_h200, budget_cpu",
    )


def of_cache(folder: Path, base: Times) -> Times:
    """Return times with the compiles of a cache's records in place of the committed ones, by the kind of kernel.

    Raises:
        ValueError: The records hold no compile.
    """
    compiles: dict[str, list[float]] = {"triton": [], "template": [], "cpp": []}
    for record in open_store(folder, read_only=True).iter_records():
        for row in record.candidates.values():
            if row.compile_s and row.kind in compiles:
                compiles[row.kind].append(row.compile_s)
    if not any(compiles.values()):
        raise ValueError(f"the records in {folder} hold no compile; name a cache that was tuned")
    cutlass = compiles["template"] or compiles["cpp"] or base.cutlass_s
    triton = compiles["triton"] or base.triton_s
    return replace(
        base, cutlass_s=tuple(cutlass), triton_s=tuple(triton), source=f"records: {folder}"
    )


def _further(speed: dict[str, Any]) -> float:
    """Return what each further kernel of a batch takes, in the seconds of one alone."""
    batch, alone = speed["batch"], speed["alone"]
    return (batch["cpu_s"] / alone["cpu_s"] - 1) / (batch["kernels"] - 1)


def _triton_mean_s(precompile: dict[str, Any], results: Path) -> float:
    """Return the mean seconds of a Triton kernel: the sum of all compiles, less the CUTLASS kernels in batches."""
    summary = precompile["summary"]
    each_s = _read(results / "compile_speed_cpu.json")["batch"]["cpu_s_per_kernel"]
    cutlass_s = each_s * summary["cutlass_kernels"]
    return (summary["first_compile_s"] - cutlass_s) / summary["triton_kernels"]


def _values(value: Any, name: str) -> list[Any]:
    """Return the values of all fields of a name, however deep."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        own = [fields[name]] if name in fields else list[Any]()
        return [*own, *(each for inner in fields.values() for each in _values(inner, name))]
    if isinstance(value, list):
        return [each for inner in cast("list[Any]", value) for each in _values(inner, name)]
    return []


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
