"""Graphs with repacked weights, which would be those of another model, or with provisional decisions are not stored for good."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import codecache, freezing_utils

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.cache.folder import ALLOWANCE_PREFIX
from inductor_plugin.inductor.graph import unstored
from inductor_plugin.inductor.graph.due import Due, due_of
from inductor_plugin.tuning import validity
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.ticket import TuningTicket

pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def frozen(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with inductor_config.patch(freezing=True, fx_graph_cache=True), torch.no_grad():
        yield
    inductor_plugin.disable()
    RUNTIME.forget()


class Product(nn.Module):
    """Multiplies with a part of a weight."""

    def __init__(self, weight: Tensor, part: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.part = nn.Parameter(weight), part

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.part(self.weight))


def error(model: nn.Module, x: Tensor, cache_dir: Path) -> float:
    torch._dynamo.reset()
    options: Any = {"cache_dir": str(cache_dir), "gemm_backends": "CPP"}
    compiled = torch.compile(model, backend="inductor_plugin", options=options)
    return float((compiled(x) - model(x)).abs().max() / model(x).abs().max())


def attention(x: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x)


def templates() -> int:
    return counters["inductor"]["cpp_templated_kernel_counter"]


def test_a_second_model_of_the_same_sizes_has_its_own_weights(cache_dir: Path) -> None:
    """Stock Inductor (torch 2.11 to 2.15) takes the first one's, which are stored with its graph."""
    x = torch.randn(384, 196).half()
    for _ in range(2):
        counters.clear()
        model = Product(torch.randn(196, 385).half(), lambda w: w).eval()
        assert error(model, x, cache_dir) < 1e-2
        assert templates() == 1
        assert counters["inductor"]["fxgraph_cache_hit"] == 0


@pytest.mark.parametrize(
    ("shape", "part", "packed"),
    [
        ((385, 196), lambda w: w.t(), 1),
        ((196, 450), lambda w: w[:, :385], 1),
        ((392, 385), lambda w: w[::2], 1),
        ((2, 196, 385), lambda w: w[0], 1),
        ((2, 196, 385), lambda w: w[1], 0),
        ((450, 196), lambda w: w[65:].t(), 0),
    ],
    ids=["transposed", "columns", "every other row", "the first", "the second", "lower rows"],
)
def test_a_view_of_a_weight_is_repacked_where_it_has_no_offset(
    cache_dir: Path, shape: tuple[int, ...], part: Callable[[Tensor], Tensor], packed: int
) -> None:
    counters.clear()
    model = Product(torch.randn(shape).half(), part).eval()
    assert error(model, torch.randn(384, 196).half(), cache_dir) < 1e-2
    # On a processor with float16 oneDNN takes the product, and keeps a copy of the weight that has no offset.
    copied = torch.ops.mkldnn._is_mkldnn_fp16_supported()
    assert templates() == max(packed, copied)
    assert list(open_store(cache_dir).iter_quarantine()) == []


@pytest.mark.parametrize(("provisional", "hits"), [(False, 1), (True, 0)])
def test_a_graph_with_provisional_decisions_is_decided_again(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, *, provisional: bool, hits: int
) -> None:
    decide = Selection.decide

    def beside_other_work(selection: Selection, ticket: TuningTicket) -> Verdict:
        ticket.verdict = replace(decide(selection, ticket), provisional=provisional)
        return ticket.verdict

    monkeypatch.setattr(Selection, "decide", beside_other_work)
    counters.clear()
    options: Any = {"cache_dir": str(cache_dir)}
    for _ in range(2):
        for function in (attention, torch.cos):
            torch._dynamo.reset()
            torch.compile(function, backend="inductor_plugin", options=options)(
                torch.ones(1, 2, 64, 32)
            )
    assert counters["inductor"]["fxgraph_cache_hit"] == hits + 1


@pytest.mark.parametrize(("again_s", "hits"), [(1e6, 1), (-1.0, 0)])
def test_a_graph_with_provisional_decisions_is_kept_until_they_are_measured_again(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, again_s: float, hits: int
) -> None:
    """A machine that is always busy would lower it at each start."""
    decide = Selection.decide

    def beside_other_work(selection: Selection, ticket: TuningTicket) -> Verdict:
        ticket.measured = {
            name: replace(row, provenance={**row.provenance, "disturbed": True})
            for name, row in ticket.measured.items()
        }
        ticket.verdict = replace(decide(selection, ticket), provisional=True)
        return ticket.verdict

    monkeypatch.setattr(Selection, "decide", beside_other_work)
    monkeypatch.setattr(validity, "AGAIN_S", again_s)
    counters.clear()
    options: Any = {"cache_dir": str(cache_dir)}
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(attention, backend="inductor_plugin", options=options)
        compiled(torch.ones(1, 2, 64, 32))
    assert counters["inductor"]["fxgraph_cache_hit"] == hits


@pytest.mark.parametrize(("share", "hits"), [(0.0, 1), (1e4, 0)])
def test_after_the_first_time_measuring_again_is_paid(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, share: float, hits: int
) -> None:
    decide, store = Selection.decide, open_store(cache_dir)

    def beside_other_work(selection: Selection, ticket: TuningTicket) -> Verdict:
        ticket.measured = {
            name: replace(row, provenance={**row.provenance, "disturbed": True, "attempts": 2})
            for name, row in ticket.measured.items()
        }
        ticket.verdict = replace(decide(selection, ticket), provisional=True)
        return ticket.verdict

    def saved_ms() -> int:
        return sum(n for name, n in store.counters().items() if name.startswith(ALLOWANCE_PREFIX))

    monkeypatch.setattr(Selection, "decide", beside_other_work)
    monkeypatch.setattr(validity, "AGAIN_S", -1.0)
    counters.clear()
    saved: list[int] = []
    for _ in range(2):
        torch._dynamo.reset()
        options: Any = {"cache_dir": str(cache_dir), "verify_graph_share": share}
        compiled = torch.compile(attention, backend="inductor_plugin", options=options)
        compiled(torch.ones(1, 2, 64, 32))
        saved.append(saved_ms())
    assert counters["inductor"]["fxgraph_cache_hit"] == hits
    first, second = saved
    assert (first > 0) is (share > 0)
    assert (second < first) is (hits == 0)  # it was paid


def test_inductors_own_function_is_back_after_the_plugin_is_off() -> None:
    cache: Any = codecache.FxGraphCache
    unstored.install()
    assert cache._save_graph.__module__ == unstored.__name__
    unstored.install()
    unstored.uninstall()
    assert cache._save_graph.__module__ == codecache.__name__


def test_only_what_was_made_of_frozen_weights_is_repacked() -> None:
    fx_graph = torch.fx.Graph()
    fx_graph.output((fx_graph.get_attr("weight"), fx_graph.get_attr("table")))
    kept = {"weight": torch.ones(2), "table": torch.ones(3)}
    module: Any = torch.fx.GraphModule(kept, fx_graph)
    packed, frozen = torch.ones(4), torch.ones(5)
    with freezing_utils.enter_freezing():
        freezing_utils.maybe_set_is_frozen_param(frozen)
    graph: Any = SimpleNamespace(
        module=module,
        constants={"_table": module.table, "_packed": packed, "_frozen": frozen, "_new": packed},
        allocated_constant_name={"_table": "table", "_packed": "packed", "_frozen": "a part"},
    )
    unstored.mark_repacked(graph)
    marked = lambda: [hasattr(x, "inductor_plugin_repacked") for x in graph.constants.values()]  # noqa: E731
    assert not any(marked())  # nothing in it was frozen
    freezing_utils.record_has_frozen_params(module)
    unstored.mark_repacked(graph)
    assert marked() == [False, True, False, True]


def test_a_graph_is_stored_unless_it_is_another_models_or_the_next_compile_decides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored: list[str] = []

    def save(key: str, _graph: Any, *_: Any, **__: Any) -> None:
        stored.append(key)

    cache: Any = codecache.FxGraphCache
    unstored.uninstall()
    monkeypatch.setattr(cache, "_save_graph", staticmethod(save))
    unstored.install()
    repacked: Any = torch.ones(2)
    repacked.inductor_plugin_repacked = True
    try:
        for key, constants, due in (
            ("repacked", {"a": torch.ones(2), "w": repacked}, None),
            ("at once", {}, Due(at=0.0)),
            ("later", {}, Due(at=5.0)),
            ("of another model, later", {"w": repacked}, Due(at=5.0)),
            ("for good", {"a": torch.ones(2)}, None),
            ("without constants", None, None),
        ):
            graph = SimpleNamespace(constants=constants)
            unstored.mark_due(due)
            assert unstored.is_due_at_once() is (key == "at once")
            cache._save_graph(key, graph, [], 1)
            # It is no matter of the graph that is compiled next.
            assert not unstored.is_due_at_once()
            assert due_of(graph) == (due if key == "later" else None)
    finally:
        unstored.uninstall()
    assert stored == ["later", "for good", "without constants"]
