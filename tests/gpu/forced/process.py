"""What a process does that compiles a graph with certain kernels forced to win: it runs it in every way."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from tests.gpu.cases.product import Function, Spec, worst
from tests.gpu.harness.ways import drawn, on_a_stream

# Registers the name in a checkout, where it is not installed.
importlib.import_module("inductor_plugin.backend")

Answer = Any
Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Graph:
    """A graph in which certain kernels win.

    Attributes:
        function: What is compiled; returns a tensor or several.
        reference: The same in float32: the function itself, of tensors in float32, or another one.
        specs: Its tensors; the first has the rows.
        backends: The option ``gemm_backends``.
        rows: Other numbers of rows for one compiled graph; empty if its kernel refuses them.
        device: Where it runs.
        tolerance: Accepted error, root mean square, relative; by the result's type if None.
        most: The option ``max_candidates``: in turns from each template, so that the forced one is
            among them.
    """

    function: Function
    reference: Function
    specs: tuple[Spec, ...]
    backends: str = "ATEN,TRITON"
    rows: tuple[int, ...] = ()
    device: str = "cuda"
    tolerance: float | None = None
    most: int = 6

    def tensors(self, seed: int) -> Tensors:
        """Return its inputs."""
        return drawn(self.specs, self.device, seed)

    def error(self, answer: Answer, tensors: Sequence[torch.Tensor]) -> float:
        """Return how far an answer is off, as a part of what is accepted."""
        same = self.reference is self.function
        expected = self.reference(*(tensor.float() for tensor in tensors) if same else tensors)
        return worst(listed(answer), listed(expected), self.tolerance)


def listed(answer: Answer) -> Tensors:
    """Return the tensors of an answer of one or several."""
    return list(answer) if isinstance(answer, (tuple, list)) else [answer]


def compiled(
    function: Function,
    cache_dir: Path,
    *,
    backends: str,
    most: int = 6,
    dynamic: bool | None = None,
    **options: Any,
) -> Function:
    """Return a function that the plugin compiles, as a new process would."""
    torch._dynamo.reset()
    settings: dict[str, Any] = {
        "cache_dir": str(cache_dir),
        "table": "off",
        "progress": "off",
        "gemm_backends": backends,
        "compile_timeout_s": 150,
        "compile_workers": 4,
        "max_candidates": most,
    }
    return torch.compile(
        function, backend="inductor_plugin", options=settings | options, dynamic=dynamic
    )


def every_way(graph: Graph, cache_dir: Path) -> dict[str, Any]:
    """Return the largest error in each way that the device has."""

    def function(**options: Any) -> Function:
        return compiled(
            graph.function, cache_dir, backends=graph.backends, most=graph.most, **options
        )

    tensors = graph.tensors(1)
    errors: dict[str, Any] = {"plain": graph.error(function()(*tensors), tensors)}
    if graph.device == "cuda":
        errors["stream"] = stream_error(function(), graph.tensors, graph.error)
        errors["graphs"] = graphs_error(
            function(**{"triton.cudagraphs": True}), graph.tensors, graph.error
        )
    return errors | (_dynamic(graph, function()) if graph.rows else {})


def stream_error(
    function: Function,
    tensors: Callable[[int], Tensors],
    error: Callable[[Answer, Tensors], float],
) -> float:
    """Return the error of a call on another stream, after work that brings its inputs."""
    own, other = tensors(1), tensors(2)
    function(*own)
    return error(on_a_stream(lambda: function(*own), own, other), other)


def graphs_error(
    function: Function,
    tensors: Callable[[int], Tensors],
    error: Callable[[Answer, Tensors], float],
) -> float:
    """Return the largest error of calls that Inductor records as CUDA graphs, and replays."""
    largest = 0.0
    with torch.no_grad():
        for seed in range(4):  # the first calls warm up and record, the later ones replay
            torch.compiler.cudagraph_mark_step_begin()
            inputs = tensors(seed)
            answer = [output.clone() for output in listed(function(*inputs))]
            largest = max(largest, error(answer, inputs))
    return largest


def _dynamic(graph: Graph, function: Function) -> dict[str, Any]:
    """Return the largest error over several numbers of rows, and how many graphs were compiled."""
    torch._dynamo.utils.counters.clear()
    first, *others = graph.specs
    largest = 0.0
    for seed, rows in enumerate((first.size[0], *graph.rows)):
        resized = Spec((rows, *first.size[1:]), first.dtype)
        tensors = replace(graph, specs=(resized, *others)).tensors(seed)
        torch._dynamo.mark_dynamic(tensors[0], 0)
        largest = max(largest, graph.error(function(*tensors), tensors))
    count = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {"dynamic": largest, "dynamic_graphs": int(count)}


def main(report: Callable[[str, Path], dict[str, Any]]) -> None:
    """Print the report of what is named on the command line: NAME CACHE_DIR."""
    name, cache_dir = sys.argv[1:]
    json.dump(report(name, Path(cache_dir)), sys.stdout)
