"""One process that compiles a graph with one way of fusing forced to win, and runs it in every way.

    python -m tests.gpu.forced.fused "GRAPH, WAY" CACHE_DIR

The product itself is decided by the clock, its epilogue by force: the fused Triton kernel, the fused
CUTLASS kernel, or two kernels. Prints one JSON line.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

from benchmarks.harness.forced import WAYS, forced_fusion
from tests.gpu.cases.product import Function, Spec, by_columns, by_rows
from tests.gpu.forced.process import Graph, every_way, main
from tests.support.native.spelled_out import operators_for_sites

OPERATOR = "cutlass_mm_epilogue.out("


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
_ROW, _FULL, _SCALE = Spec((1024,)), Spec((1021, 1024)), Spec((), torch.float32, values="scale")
_BATCH = (Spec((4, 509, 256)), Spec((4, 256, 512)), Spec((4, 1, 512)))


def _graph(function: Function, specs: tuple[Spec, ...], rows: tuple[int, ...] = ()) -> Graph:
    return Graph(function, function, specs, "ATEN,TRITON,CUTLASS", rows, most=4)


GRAPHS: dict[str, Graph] = {
    "bias and gelu": _graph(_gelu, (_A, _W, _ROW), rows=(64, 333, 2048)),
    "addmm and relu": _graph(_added, (_A, _W, _ROW)),
    "silu gate": _graph(_gate, (_A, _W, _FULL)),
    "residual": _graph(_residual, (_A, _W, _ROW, _FULL)),
    "product kept": _graph(_kept, (_A, _W)),
    "batch": _graph(_batch, _BATCH),
    "fp8": _graph(_fp8, (_A, _W, _SCALE)),
}


def pairs() -> list[str]:
    """Return ``GRAPH, WAY`` for each way of each graph."""
    return [f"{name}, {way}" for name in GRAPHS for way in WAYS]


def report(pair: str, cache_dir: Path) -> dict[str, Any]:
    """Compile and run a graph in one way; return errors, as parts of what is accepted, and the calls."""
    name, _, way = pair.rpartition(", ")
    graph = GRAPHS[name]
    started = time.monotonic()
    with forced_fusion(way) as taken, inductor_config.patch(fx_graph_cache=False):
        errors, codes = run_and_get_code(every_way, graph, cache_dir)
    return errors | {
        "calls": calls(codes[0]),
        "taken": sorted(set(taken)),
        "seconds": round(time.monotonic() - started, 1),
    }


def calls(code: str) -> dict[str, int]:
    """Return how often generated code calls CUTLASS with an epilogue, Triton, and other products."""
    code = operators_for_sites(code)
    return {
        "cutlass": code.count(OPERATOR),
        "triton": len(re.findall(r"^ *triton_\w+\.run\(", code, re.M)),
        "others": len(
            re.findall(r"^ *(?:extern_kernels\.|torch\.ops\.(?!.*epilogue))", code, re.M)
        ),
    }


if __name__ == "__main__":
    main(report)
