"""One process that compiles small graphs with one template forced to win, and runs them in every way.

    python -m tests.gpu.harness.forced TEMPLATE CACHE_DIR

Its own selection takes the named template's first candidate that ran and was right, however fast the
others are; all else is what a user's process does. Prints one JSON line.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo

from benchmarks.gemm.arm import DryTwin
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning import selection
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.selection import Selection
from tests.gpu.harness import graphs
from tests.gpu.harness.check import error_of, made
from tests.gpu.harness.product import BF16, E4M3, FP32, Spec, by_columns, by_rows

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Forced:
    """A graph whose product one template computes.

    Attributes:
        function: The graph: a product and what fuses behind it.
        reference: The same in float32.
        specs: Its tensors; the first has the rows.
        backends: The option ``gemm_backends``.
        rows: Other numbers of rows for one compiled graph; empty if the template refuses them.
        device: Where it runs.
        accepted: Largest error, root mean square, relative.
    """

    function: Function
    reference: Function
    specs: tuple[Spec, ...]
    backends: str = "ATEN,TRITON"
    rows: tuple[int, ...] = ()
    device: str = "cuda"
    accepted: float = 0.01


def linear(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return a layer with a bias, a residual and a ReLU."""
    return (torch.addmm(c, x, w).relu() + 1) * 2


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return a product, and a ReLU behind it."""
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
    Spec((4,), torch.int32, given=(0, 300, 300, 512)),
)
_CUTLASS = "ATEN,CUTLASS"

FORCED: dict[str, Forced] = {
    "cutlass": Forced(linear, linear, _LAYER, _CUTLASS, rows=(16, 100, 2048)),
    "cutlass bmm": Forced(_batch, _batch, (Spec((4, 256, 512)), Spec((4, 512, 384))), _CUTLASS),
    "cutlass grouped": Forced(_grouped, _ungrouped, _GROUPS, _CUTLASS),
    "cutlass fp8": Forced(_scaled, _unscaled, _FP8, _CUTLASS),
    "triton_persistent_tma": Forced(linear, linear, _LAYER, rows=(128, 640, 2048)),
    "triton_decode": Forced(product, product, (by_rows(8, 4096), by_columns(4096, 4096))),
    "triton_split_k": Forced(product, product, (by_rows(64, 8192), by_columns(8192, 512))),
    "triton_fp8": Forced(_scaled, _unscaled, _FP8),
    "triton_int4": Forced(_int4, _int4_reference, _PACKED, accepted=0.02),
    "dry_twin": Forced(
        product,
        product,
        (by_rows(64, 256), by_rows(256, 128)),
        "ATEN",
        rows=(32, 100),
        device="cpu",
    ),
}
"""By the beginning of the candidates' identity; behind a space follows which graph. The last one needs
no GPU, and proves the rest of this file."""


def forced_decision(prefix: str, taken: list[str]) -> Callable[..., Verdict]:
    """Return a decision that takes the first candidate whose identity begins with ``prefix``."""

    def decide(
        medians_ms: Mapping[str, float], libraries: Collection[str], *limits: Any
    ) -> Verdict:
        del limits
        fitting = [name for name in medians_ms if name.startswith(prefix)]
        library = next(iter(libraries), None)
        if not fitting:
            return Verdict(library, library, f"no candidate begins with {prefix}")
        taken.append(fitting[0])
        return Verdict(fitting[0], library, "forced")

    return decide


def all_contending() -> Any:
    """Let every candidate that ran and is right be decided among, not the finalists alone."""
    return mock.patch.object(Selection, "_contending", Selection.medians)


def report(name: str, cache_dir: Path) -> dict[str, Any]:
    """Compile and run a forced graph; return its errors and what was taken."""
    given, taken = FORCED[name], list[str]()
    if name == DryTwin.name:
        default_registry().register(DryTwin())
    started = time.monotonic()
    decided = mock.patch.object(selection, "decide", forced_decision(name.partition(" ")[0], taken))
    with decided, all_contending():
        found: dict[str, Any] = {"plain": _plain(given, cache_dir)}
        if given.device == "cuda":
            found["stream"] = _stream(given, cache_dir)
            found["graphs"] = _graphs(given, cache_dir)
        if given.rows:
            found |= _dynamic(given, cache_dir)
    return found | {
        "taken": sorted(set(taken)),
        "accepted": given.accepted,
        "seconds": round(time.monotonic() - started, 1),
    }


def _compiled(given: Forced, cache_dir: Path, **options: Any) -> Function:
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
    return torch.compile(given.function, backend="inductor_plugin", options=settings | options)


def _wide(given: Forced, tensors: list[torch.Tensor]) -> torch.Tensor:
    if given.reference is given.function:
        return given.reference(*(one.float() for one in tensors))
    return given.reference(*tensors)


def _plain(given: Forced, cache_dir: Path) -> float:
    tensors = made(given.specs, given.device, seed=1)
    return error_of(_compiled(given, cache_dir)(*tensors), _wide(given, tensors))


def _stream(given: Forced, cache_dir: Path) -> float:
    function = _compiled(given, cache_dir)
    tensors, other = (made(given.specs, given.device, seed=seed) for seed in (1, 2))
    function(*tensors)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        cuda: Any = torch.cuda
        cuda._sleep(50_000_000)  # cycles, about 25 ms
        for mine, theirs in zip(tensors, other, strict=True):
            mine.copy_(theirs)
        answer = function(*tensors)
    stream.synchronize()
    return error_of(answer, _wide(given, other))


def _graphs(given: Forced, cache_dir: Path) -> float:
    function = _compiled(given, cache_dir, **{"triton.cudagraphs": True})
    worst = 0.0
    with torch.no_grad():
        for seed in range(4):  # the first calls warm up and record, the later ones replay
            torch.compiler.cudagraph_mark_step_begin()
            tensors = made(given.specs, given.device, seed=seed)
            answer = function(*tensors).clone()
            worst = max(worst, error_of(answer, _wide(given, tensors)))
    return worst


def _dynamic(given: Forced, cache_dir: Path) -> dict[str, Any]:
    """Return the largest error over several numbers of rows, and how many graphs were compiled."""
    function = _compiled(given, cache_dir)
    torch._dynamo.utils.counters.clear()
    fixed = given.specs[0].size[0]
    worst = 0.0
    for number, rows in enumerate((fixed, *given.rows)):
        first = Spec((rows, *given.specs[0].size[1:]), given.specs[0].dtype)
        tensors = made((first, *given.specs[1:]), given.device, seed=number)
        torch._dynamo.mark_dynamic(tensors[0], 0)
        worst = max(worst, error_of(function(*tensors), _wide(given, tensors)))
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {"dynamic": worst, "dynamic_graphs": int(compiled)}


def main() -> None:
    """Run the graph named on the command line."""
    name, cache_dir = sys.argv[1:]
    json.dump(report(name, Path(cache_dir)), sys.stdout)


if __name__ == "__main__":
    main()
