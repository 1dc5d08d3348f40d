"""Two products whose rivals always win, compiled with the guard; a referee in place of the worker."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingParameterType=false

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

from inductor_plugin.cache import Record, document, open_store
from inductor_plugin.cache.graph import TUNED
from inductor_plugin.cache.record import GRAPH, to_fields
from inductor_plugin.inductor.guard.bench import CompiledGraph, GraphBench
from inductor_plugin.inductor.guard.comparison import Comparison
from inductor_plugin.tuning import race, runtime, selection
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.worker.child.graphs import built
from inductor_plugin.worker.jobs import WorkerSettings
from tests.support.candidates.fast_templates import CALLS, rivals_offered
from tests.support.lowering import Lab, library_first

ALWAYS: dict[str, Any] = {"verify_graph": "auto", "verify_graph_share": 1e6}
"""Compare graphs however long that takes: the machine may be busy."""
A, B, C = torch.randn(17, 33), torch.randn(33, 29), torch.randn(29, 41)


def two_products(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.relu(a @ b) @ c


@pytest.fixture(autouse=True)
def rivals_win(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every problem chooses the rival of its library kernel, the first with a smaller gain."""

    def decide(times: Mapping[str, float], libraries: Collection[str], *_: Any) -> Verdict:
        (library,), (rival,) = libraries, [name for name in times if name not in libraries]
        return Verdict(rival, library, "faster", 1.5)

    monkeypatch.setattr(selection, "decide", decide)
    monkeypatch.setattr(
        race, "LEAD", math.inf
    )  # of a rival that is far behind, numbers would be compared once
    with rivals_offered():
        yield
    RUNTIME.forget()  # it may have the `LabWorker` of `judge` as its worker


class LabWorker(Lab):
    """Times of candidates without a worker; they decide nothing where `rivals_win`."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(library_first, Path(os.devnull))
        self.settings = settings


class Referee:
    """Calls a graph slower that has more rivals than it may have, in place of the worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
        self.allowed = allowed
        self.compared: list[int] = []
        """Rivals of each tuned graph."""
        self.plain = 0
        """Graphs without autotuning."""
        judge(monkeypatch, self.compare)

    def compare(
        self, bench: GraphBench, graphs: Sequence[CompiledGraph], limit_s: float, most_s: float
    ) -> Comparison:
        assert 0.5 <= limit_s <= most_s <= 600.0
        inputs = [built(value, {}) for value in bench.described.inputs]
        rivals = [rivals_in(lambda graph=graph: graph.code([*inputs])) for graph in graphs]
        self.compared.append(rivals[0])
        assert set(rivals[1:]) == {0}
        self.plain += len(graphs) - 2
        slower = self.compared[-1] > self.allowed
        plain_ms = (1.5,) * 5 if len(graphs) > 2 else ()
        return Comparison(((2.0 if slower else 0.5),) * 5, (1.0,) * 5, plain_ms=plain_ms)


def judge(
    monkeypatch: pytest.MonkeyPatch,
    compare: Callable[[GraphBench, Sequence[CompiledGraph], float, float], Comparison],
) -> None:
    """Let a function compare graphs; no worker is started."""
    monkeypatch.setattr(runtime, "BenchWorker", LabWorker)
    monkeypatch.setattr(GraphBench, "compare", lambda *arguments: compare(*arguments))  # pyright: ignore
    monkeypatch.setattr(GraphBench, "prepare", lambda bench: None)  # pyright: ignore


def rivals_in(call: Callable[[], object]) -> int:
    """Return how many rivals a call runs."""
    before = CALLS.total()
    call()
    return CALLS.total() - before


def run(cache_dir: Path, **options: Any) -> int:
    """Compile and run the graph in what is a new process to the plugin; return how many rivals it runs."""
    RUNTIME.forget()
    torch._dynamo.reset()
    options = {"cache_dir": str(cache_dir), **ALWAYS, **options}
    function = torch.compile(two_products, backend="inductor_plugin", options=options)
    torch.testing.assert_close(function(A, B, C), two_products(A, B, C), atol=1e-3, rtol=1e-3)
    return rivals_in(lambda: function(A, B, C))


def graph_record(cache_dir: Path) -> Record:
    (record,) = [each for each in open_store(cache_dir).iter_records() if each.op == GRAPH]
    return record


def choose_otherwise(cache_dir: Path) -> None:
    """Let the graph's record be of other choices than those that are made now."""
    store, record = open_store(cache_dir), graph_record(cache_dir)
    tuned = record.candidates[TUNED]
    before = replace(tuned, provenance={**tuned.provenance, "choices": {"a problem": "a rival"}})
    candidates = {**record.candidates, TUNED: before}
    path = store.layout.record(record.environment, record.op, record.digest)
    path.write_bytes(document.dump(to_fields(replace(record, candidates=candidates))))
