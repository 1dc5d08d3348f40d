"""What a compile leaves in the process: nothing of its graph."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch._inductor.graph import GraphLowering

import inductor_plugin
from inductor_plugin.inductor.graph.session import Session
from tests.support.candidates.providers import offered
from tests.support.lowering import Lab, library_first

pytestmark = [pytest.mark.usefixtures("inductor_cache"), pytest.mark.compat]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def living() -> set[int]:
    """Return the numbers of all graphs and sessions."""
    kinds = GraphLowering, Session
    return {id(thing) for thing in gc.get_objects() if issubclass(type(thing), kinds)}


@pytest.mark.parametrize(
    ("function", "sizes"),
    [(torch.mm, ((32, 32),) * 2), (attention, ((1, 2, 32, 16),) * 3)],
    ids=["product", "attention"],
)
def test_graph_and_session_go_after_the_compile(
    cache_dir: Path, function: Callable[..., torch.Tensor], sizes: tuple[tuple[int, ...], ...]
) -> None:
    before = living()
    options = inductor_plugin.options(cache_dir=str(cache_dir), table="off", progress="off")
    with (
        offered("good"),
        Lab(library_first, cache_dir).open() as lab,
        inductor_config.patch(fx_graph_cache=False),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(function, options=options)
        compiled(*(torch.randn(size) for size in sizes))
        assert lab.tasks
        lab.tasks.clear()
    torch._dynamo.reset()
    gc.collect()
    assert not living() - before
