"""One process that compiles a graph with one way of fusing forced to win, and runs it in every way.

    python -m tests.gpu.harness.fused_forced "GRAPH, WAY" CACHE_DIR

The product itself is decided by the clock; what stands behind it is decided by force: the fused Triton
kernel, the fused CUTLASS kernel, or two kernels. Static pruning keeps all, and who loses the first
round stays in the race, so that the slow one can be taken too. Prints one JSON line.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

from inductor_plugin.cost import shortlist
from inductor_plugin.tuning import decision, selection
from inductor_plugin.tuning.decision import Verdict
from tests.gpu.harness.check import load, made
from tests.gpu.harness.forced import all_contending
from tests.gpu.harness.fused_check import worst
from tests.gpu.harness.product import Spec, by_columns, by_rows

UNFUSED = "unfused"
WAYS = {"triton": "fused.triton", "cutlass": "fused.cutlass", "apart": UNFUSED}
"""By the beginning of the identity of the candidate that is forced to win; ``triton`` includes
Inductor's own templates, whose fused candidates are ``fused.triton_mm``."""
OPERATOR = "cutlass_mm_epilogue.out("

Function = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Graph:
    """A product and its epilogue.

    Attributes:
        function: Of the tensors; returns a tuple.
        specs: Its tensors; the first has the rows.
        rows: Other numbers of rows for one compiled graph; empty for none.
        ways: The ways that can be forced.
    """

    function: Function
    specs: tuple[Spec, ...]
    rows: tuple[int, ...] = ()
    ways: tuple[str, ...] = tuple(WAYS)


def _gelu(a: Any, w: Any, c: Any) -> tuple[torch.Tensor, ...]:
    return (functional.gelu(torch.mm(a, w) + c),)


def _added(a: Any, w: Any, c: Any) -> tuple[torch.Tensor, ...]:
    return (torch.addmm(c, a, w).relu(),)


def _gate(a: Any, w: Any, g: Any) -> tuple[torch.Tensor, ...]:
    return (functional.silu(torch.mm(a, w)) * g,)


def _residual(a: Any, w: Any, c: Any, r: Any) -> tuple[torch.Tensor, ...]:
    return (functional.relu(torch.mm(a, w) + c) + r,)


def _kept(a: Any, w: Any) -> tuple[torch.Tensor, ...]:
    product = torch.mm(a, w)
    return product, product.relu()


def _batch(a: Any, b: Any, c: Any) -> tuple[torch.Tensor, ...]:
    return ((torch.bmm(a, b) + c).relu(),)


def _fp8(a: Any, w: Any, s: Any) -> tuple[torch.Tensor, ...]:
    scaled = (torch.mm(a, w).float() * s).clamp(-448, 448)
    return (scaled.to(torch.float8_e4m3fn),)


_A, _W = by_rows(1021, 512), by_columns(512, 1024)
_ROW, _FULL, _ONE = Spec((1024,)), Spec((1021, 1024)), Spec((), torch.float32, values="scale")
_BATCH = (Spec((4, 509, 256)), Spec((4, 256, 512)), Spec((4, 1, 512)))

GRAPHS: dict[str, Graph] = {
    "bias and gelu": Graph(_gelu, (_A, _W, _ROW), rows=(64, 333, 2048)),
    "addmm and relu": Graph(_added, (_A, _W, _ROW)),
    "silu gate": Graph(_gate, (_A, _W, _FULL)),
    "residual": Graph(_residual, (_A, _W, _ROW, _FULL)),
    "product kept": Graph(_kept, (_A, _W)),
    "batch": Graph(_batch, _BATCH),
    "fp8": Graph(_fp8, (_A, _W, _ONE)),
}


def pairs() -> list[str]:
    """Return ``GRAPH, WAY`` for each way of each graph."""
    return [f"{name}, {way}" for name, one in GRAPHS.items() for way in one.ways]


def forced_fusion(prefix: str, taken: list[str]) -> Callable[..., Verdict]:
    """Return a decision that takes, of ways to fuse, the fastest whose identity begins with ``prefix``.

    What is no fusion is decided as always.
    """

    def decide(
        medians_ms: Mapping[str, float], libraries: Collection[str], *limits: Any
    ) -> Verdict:
        if not any(name.startswith((UNFUSED, "fused.")) for name in medians_ms):
            return decision.decide(medians_ms, libraries, *limits)
        fitting = sorted((ms, name) for name, ms in medians_ms.items() if name.startswith(prefix))
        library = next(iter(libraries), None)
        if not fitting:
            taken.append(f"none of {sorted(medians_ms)}")
            return Verdict(library, library, f"no candidate begins with {prefix}")
        winner = fitting[0][1]
        taken.append(winner)
        return Verdict(winner, library, "forced")

    return decide


@contextlib.contextmanager
def forced(way: str) -> Generator[list[str]]:
    """Force a way of fusing for the block; give what was taken."""
    taken: list[str] = []
    with (
        mock.patch.object(selection, "decide", forced_fusion(WAYS[way], taken)),
        all_contending(),
        mock.patch.object(shortlist.FusionEstimate, "why_not", return_value=None),
        mock.patch.object(shortlist.FusionEstimate, "why_not_compiled", return_value=None),
    ):
        yield taken


def report(pair: str, cache_dir: Path, device: str = "cuda") -> dict[str, Any]:
    """Compile and run a graph in one way; return errors, as parts of what is accepted, and the calls."""
    name, _, way = pair.rpartition(", ")
    given = GRAPHS[name]
    started = time.monotonic()
    with forced(way) as taken:
        found = _plain(given, cache_dir, device)
        if device == "cuda":
            found["stream"] = _stream(given, cache_dir)
            found["graphs"] = _graphs(given, cache_dir)
            if given.rows:
                found["dynamic"] = _dynamic(given, cache_dir)
    return found | {
        "taken": sorted(set(taken)),
        "seconds": round(time.monotonic() - started, 1),
    }


def calls(code: str) -> dict[str, int]:
    """Return how often generated code calls CUTLASS with an epilogue, Triton, and a library product."""
    return {
        "cutlass": code.count(OPERATOR),
        "triton": len(re.findall(r"^ *triton_\w+\.run\(", code, re.M)),
        "others": len(
            re.findall(r"^ *(?:extern_kernels\.|torch\.ops\.(?!.*epilogue))", code, re.M)
        ),
    }


def _compiled(given: Graph, cache_dir: Path, **options: Any) -> Function:
    torch._dynamo.reset()
    settings: dict[str, Any] = {
        "cache_dir": str(cache_dir),
        "table": "off",
        "progress": "off",
        "gemm_backends": "ATEN,TRITON,CUTLASS",
        "compile_timeout_s": 150,
        "compile_workers": 4,
        "max_candidates": 4,
    }
    return torch.compile(given.function, backend="inductor_plugin", options=settings | options)


def _wide(given: Graph, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return given.function(*(one.float() for one in tensors))


def _plain(given: Graph, cache_dir: Path, device: str) -> dict[str, Any]:
    tensors = made(given.specs, device, seed=1)
    with inductor_config.patch(fx_graph_cache=False):
        answer, codes = run_and_get_code(_compiled(given, cache_dir), *tensors)
    return {"plain": worst(answer, _wide(given, tensors)), "calls": calls(codes[0])}


def _stream(given: Graph, cache_dir: Path) -> float:
    function = _compiled(given, cache_dir)
    tensors, other = (made(given.specs, "cuda", seed=seed) for seed in (1, 2))
    function(*tensors)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        cuda: Any = torch.cuda
        cuda._sleep(50_000_000)  # cycles, about 25 ms
        load(tensors, other)
        answer = function(*tensors)
    stream.synchronize()
    return worst(answer, _wide(given, other))


def _graphs(given: Graph, cache_dir: Path) -> float:
    function = _compiled(given, cache_dir, **{"triton.cudagraphs": True})
    largest = 0.0
    with torch.no_grad():
        for seed in range(4):  # the first calls warm up and record, the later ones replay
            torch.compiler.cudagraph_mark_step_begin()
            tensors = made(given.specs, "cuda", seed=seed)
            answer = tuple(one.clone() for one in function(*tensors))
            largest = max(largest, worst(answer, _wide(given, tensors)))
    return largest


def _dynamic(given: Graph, cache_dir: Path) -> float:
    """Return the largest error over several numbers of rows, one graph compiled for all."""
    function = _compiled(given, cache_dir)
    largest, first = 0.0, given.specs[0]
    for number, rows in enumerate((first.size[0], *given.rows)):
        resized = Spec((rows, *first.size[1:]), first.dtype)
        tensors = made((resized, *given.specs[1:]), "cuda", seed=number)
        torch._dynamo.mark_dynamic(tensors[0], 0)
        largest = max(largest, worst(function(*tensors), _wide(given, tensors)))
    return largest


def main() -> None:
    """Run the graph and way named on the command line."""
    pair, cache_dir = sys.argv[1:]
    json.dump(report(pair, Path(cache_dir)), sys.stdout)


if __name__ == "__main__":
    main()
