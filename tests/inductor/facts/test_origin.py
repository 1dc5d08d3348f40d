"""The cache says which function each compiled graph is of."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import nn

import inductor_plugin
from inductor_plugin.cache import Store, open_store
from inductor_plugin.config import Config
from inductor_plugin.inductor.facts.origin import function_of, qualified
from inductor_plugin.inductor.graph import report
from inductor_plugin.inductor.graph.report import keep_graph
from tests.support.candidates.providers import offered
from tests.support.lowering import Lab, library_first

SOURCE = """\
class Outer:
    '''
def decoy():
    '''
    async def forward(self, x):
        def forward(x):
            y = x
        return forward(x)

class Block(Outer):
    def __init__(self): ...

    def forward(
        self, x
    ):
        y = x
        return y

def step(x):
    return x
""".splitlines(keepends=True)


class Products(nn.Module):
    """A model."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b)


@pytest.mark.parametrize(
    ("line", "name", "said"),
    [
        (16, "forward", "Block.forward"),
        (13, "forward", "Block.forward"),
        (8, "__init__", "__init__"),  # below none of this name
        (7, "forward", "forward"),  # of a function
        (20, "step", "step"),
        (16, "<lambda>", "<lambda>"),
        (900, "step", "step"),
        (0, "step", "step"),
    ],
)
def test_a_function_is_named_with_its_class(line: int, name: str, said: str) -> None:
    assert qualified(SOURCE, line, name) == said
    assert qualified([], line, name) == name


def node(trace: object, op: str = "call_function") -> Any:
    return SimpleNamespace(op=op, meta={"stack_trace": trace})


def frames(file: Path, *calls: tuple[int, str]) -> str:
    return "".join(f'  File "{file}", line {line}, in {name}\n    code\n' for line, name in calls)


def test_the_function_is_the_first_of_the_calls_that_led_to_a_node(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("".join(SOURCE))
    block, step = (16, "forward"), (20, "step")
    inputs = [node(frames(file, step), "placeholder")] * 2000
    assert function_of([*inputs, node(None), node(""), node(frames(file, block, step))]) == "Block.forward"  # fmt: skip
    wrapped = frames(file, (3, "wrapper"), block)
    assert function_of([node(wrapped)]) == "Block.forward"
    assert function_of([node(frames(file, (3, "wrapper")))]) == "wrapper"
    resumed = frames(file, (17, "torch_dynamo_resume_in_forward_at_16"))
    assert function_of([node(resumed)]) == "Block.forward"
    assert function_of(inputs) == ""


def entries(cache_dir: Path, *, gradients: bool, **options: Any) -> Store:
    """Compile a model with a new cache, and return the cache."""
    options = {"cache_dir": str(cache_dir), "table": "off", "progress": "off", **options}
    with (
        offered("good"),
        Lab(library_first, cache_dir).open(),
        inductor_config.patch(fx_graph_cache=False),
    ):
        torch._dynamo.reset()
        compiled: Any = torch.compile(Products(), options=inductor_plugin.options(**options))
        a, b = torch.randn(32, 32, requires_grad=gradients), torch.randn(32, 32)
        result = compiled(a, b)
        if gradients:
            result.backward(torch.randn(32, 32))
    torch._dynamo.reset()
    return open_store(cache_dir, create=False)


@pytest.mark.compat
@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.parametrize(
    ("gradients", "kinds"), [(False, {"inference"}), (True, {"forward", "backward"})]
)
def test_each_graph_of_a_compile_is_in_the_cache_with_its_model(
    cache_dir: Path, kinds: set[str], *, gradients: bool
) -> None:
    store = entries(cache_dir, gradients=gradients)
    graphs = store.graphs.everything()
    assert {graph.kind for graph in graphs} == kinds
    for graph in graphs:
        assert graph.function == "Products.forward"
        assert graph.program == sys.argv[0][-300:]
        assert graph.problems
        for place in graph.problems:
            environment, op, digest = place.split("/")
            assert store.record(environment, op, digest) is not None


@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.parametrize("cause", ["cache=off", "error"])
def test_a_compile_does_without(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    def raising(*_: Any) -> str:
        raise RecursionError

    monkeypatch.setattr(report, "function_of", raising)
    options = {"cache": "off"} if cause == "cache=off" else {}
    store = entries(cache_dir, gradients=False, **options)
    assert store.graphs.everything() == []


def test_what_is_compiled_for_a_pack_is_no_model_of_the_cache(cache_dir: Path) -> None:
    store = open_store(cache_dir)
    selection: Any = object()
    context: Any = SimpleNamespace(store=store, environment="e")
    ticket: Any = SimpleNamespace(
        selection=selection, problem=SimpleNamespace(op="mm"), digest="d" * 64
    )
    graph: Any = SimpleNamespace(
        module=SimpleNamespace(graph=SimpleNamespace(nodes=[])),
        is_backward=False,
        is_inference=False,
    )
    keep_graph(Config(policy="build"), graph, [(context, selection)], [ticket, ticket])
    assert store.graphs.everything() == []
    keep_graph(Config(), graph, [(context, selection)], [ticket, ticket])
    (entry,) = store.graphs.everything()
    assert (entry.function, entry.kind, entry.problems) == ("", "forward", (f"e/mm/{'d' * 64}",))
