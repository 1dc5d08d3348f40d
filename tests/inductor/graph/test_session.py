"""What a compile leaves in the process: nothing of its graph."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch._inductor.graph import GraphLowering

import inductor_plugin
from inductor_plugin.inductor.graph import session
from inductor_plugin.inductor.graph.session import Session
from inductor_plugin.inductor.graph.unstarted import Unstarted
from inductor_plugin.worker.devices.cpu import CPU
from tests.support.candidates.providers import offered
from tests.support.lowering import Arg, Lab, library_first, library_last

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


@pytest.mark.parametrize("compared", [True, False])
def test_numbers_are_compared_where_the_device_says_so(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, *, compared: bool
) -> None:
    monkeypatch.setattr(session, "known", lambda _: replace(CPU, compared=compared))  # pyright: ignore
    options = inductor_plugin.options(cache_dir=str(cache_dir), table="off", progress="off")
    with (
        offered("good"),
        Lab(library_first, cache_dir).open() as lab,
        inductor_config.patch(fx_graph_cache=False),
    ):
        torch._dynamo.reset()
        torch.compile(torch.mm, options=options)(torch.randn(32, 32), torch.randn(32, 32))
        (task,) = lab.tasks
        assert (task.check is not None) is compared


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
def test_what_could_not_be_measured_is_tuned_by_the_next_compile(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On a GPU whose memory is full the library kernel runs, and nothing is condemned or remembered."""

    def products(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.mm(a, b), torch.mm(b, a)

    arguments = Arg((256, 512)), Arg((512, 256))
    with Lab(library_last, cache_dir, hold=True).open() as lab:
        lab.without_device = True
        assert lab.lower(products, *arguments).count("extern_kernels.mm(") == 2
        assert "nothing can be measured on cuda:0 now" in caplog.text
        assert caplog.text.count("inductor-plugin: ") == 1
        assert not list(cache_dir.glob("records/*/*/*.json"))
        lab.without_device = False
        assert "extern_kernels.mm(" not in lab.lower(products, *arguments)
        assert len(list(cache_dir.glob("records/*/*/*.json"))) == 2
        assert not list(cache_dir.glob("quarantine/*/*.json"))


@pytest.mark.parametrize(
    ("settings", "counts"),
    [({}, True), ({"triton.cudagraphs": True}, False), ({"cpp_wrapper": True}, False)],
    ids=["eager", "CUDA graphs", "C++ wrapper"],
)
def test_the_host_counts_where_it_launches_as_the_worker_does(
    settings: dict[str, bool], *, counts: bool
) -> None:
    with inductor_config.patch({"triton.cudagraphs": False, "cpp_wrapper": False, **settings}):
        assert session.host_counts() is counts


class QueuedRaces:
    """Problems of a graph, and which of them were settled and started, in order."""

    def __init__(self) -> None:
        self.unstarted, self.done = Unstarted(), list[str]()

    def add(self, name: str, *, planned: bool = False, asked: bool = True) -> threading.Event:
        """Add a problem; return what is set when the remote answers."""
        answered = threading.Event()
        ticket: Any = SimpleNamespace(
            planned=planned,
            lookup=SimpleNamespace(done=answered) if asked else None,
            selection=SimpleNamespace(settle=lambda _: self.done.append(f"settled {name}")),
        )
        self.unstarted.add(ticket, lambda: self.done.append(name))
        return answered


@pytest.fixture(name="races")
def no_races() -> QueuedRaces:
    return QueuedRaces()


def test_a_problem_that_is_planned_starts_at_once(races: QueuedRaces) -> None:
    races.add("a", planned=True)
    races.add("b", planned=True, asked=False)
    assert races.done == ["a", "b"]
    races.unstarted.start_all()
    assert races.done == ["a", "b"]


def test_a_problem_waits_for_its_answer_while_the_graph_is_lowered(races: QueuedRaces) -> None:
    first, second = races.add("a"), races.add("b")
    races.add("c", planned=True)
    assert races.done == ["c"]
    second.set()
    races.add("d", planned=True)
    assert races.done == ["c", "d", "settled b", "b"]
    first.set()
    races.unstarted.start_all()
    assert races.done[4:] == ["settled a", "a"]
    races.unstarted.start_all()
    assert len(races.done) == 6


def test_all_start_when_one_is_waited_for(races: QueuedRaces) -> None:
    for name in "ab":
        races.add(name)
    races.add("c", asked=False)  # the remote is gone
    assert races.done == []
    races.unstarted.start_all()
    assert races.done == ["settled a", "a", "settled b", "b", "settled c", "c"]
