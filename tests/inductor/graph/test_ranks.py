"""Compiles of two ranks, one after the other in this process, on a store in memory: decisions, graphs in Inductor's cache.

And what a graph holds is given back where its compile fails: other ranks are not to wait for it.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.cache.graph import HeldProblems
from inductor_plugin.config import Config
from inductor_plugin.inductor.graph.ranks import GraphShares, given_back_on_failure
from inductor_plugin.inductor.graph.trial import Trial, compiling
from inductor_plugin.inductor.guard.guard import compile_graph
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import dump, load, of_verdict
from inductor_plugin.tuning.ranks.ledger import LEDGER
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.candidates.fast_templates import rivals_offered
from tests.support.fakes.tasks import problem
from tests.support.lowering import Lab, library_last
from tests.support.ranks.joined import Join, joining
from tests.support.ranks.simulated import MemoryStore, Rank, drive, job_of


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Let this process be a rank of a job."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    untyped: Any = inductor_config
    with (
        rivals_offered(),
        Lab(library_last, tmp_path).open(),
        untyped.patch(fx_graph_cache=True),
    ):
        yield joining(monkeypatch)
    inductor_plugin.disable()
    torch._dynamo.reset()


def compiled(cache: Path, **options: Any) -> list[Any]:
    """Compile a layer and run it; return its tickets."""
    torch._dynamo.reset()
    result: list[Any] = []
    layer, x = nn.Linear(24, 40), torch.randn(16, 24)

    def take(tickets: Sequence[Any]) -> None:
        result.extend(tickets)

    with torch.no_grad(), inductor_plugin.observe(take):
        function: Any = torch.compile(
            layer, backend="inductor_plugin", options={"cache_dir": str(cache), **options}
        )
        torch.testing.assert_close(function(x), layer(x))
    return result


def decisions(store: MemoryStore) -> dict[str, Any]:
    return {key: load(value) for key, value in store.values.items() if "/decision/" in key}


def test_the_second_rank_runs_and_keeps_what_the_first_has_measured(
    join: Join, tmp_path: Path
) -> None:
    store, before = MemoryStore(), inductor_plugin.stats()
    join(0, store)
    (ticket,) = compiled(tmp_path / "first", fx_graph_cache=False)
    (agreed,) = decisions(store).values()
    assert (agreed.winner, agreed.rank) == (ticket.verdict.winner, 0)
    tuned = inductor_plugin.stats().since(before)
    assert (tuned.ranks_tuned, tuned.ranks_taken, tuned.benchmarked) == (1, 0, 2)
    join(1, store)
    (other,) = compiled(tmp_path / "second", fx_graph_cache=False)
    taken = inductor_plugin.stats().since(before).since(tuned)
    assert (taken.ranks_tuned, taken.ranks_taken, taken.benchmarked) == (0, 1, 0)
    assert other.verdict == ticket.verdict
    assert other.measured == ticket.measured
    records = [list(open_store(tmp_path / name).iter_records()) for name in ("first", "second")]
    assert [len(each) for each in records] == [1, 1]
    assert records[0][0].candidates.keys() == records[1][0].candidates.keys() != set()


def test_ranks_off_tunes_alone(join: Join, tmp_path: Path) -> None:
    store = MemoryStore()
    join(0, store)
    (ticket,) = compiled(tmp_path / "cache", ranks="off")
    assert ticket.agreed is None
    assert store.values == {}


@pytest.mark.parametrize("otherwise", [False, True])
def test_a_graph_in_inductors_cache_runs_where_the_ranks_agree(
    join: Join, tmp_path: Path, otherwise: bool
) -> None:
    store = MemoryStore()
    join(0, store)
    (ticket,) = compiled(tmp_path / "cache")
    ((key, name),) = decisions(store).items()
    candidates = {offer.candidate_id for offer in ticket.offers}
    (rival,) = candidates - {name.winner}
    later = MemoryStore()
    if otherwise:  # another rank, whose cache says so, was first
        verdict = Verdict(rival, name.library, "of another rank")
        later.values[key] = dump(of_verdict(verdict, name.record, 1))
    join(0, later)
    counters.clear()
    again = compiled(tmp_path / "cache")
    (agreed,) = decisions(later).values()
    assert agreed.winner == (rival if otherwise else name.winner)
    hits = (
        counters["inductor"]["fxgraph_cache_hit"] or counters["aot_autograd"]["autograd_cache_hit"]
    )
    assert bool(hits) != otherwise
    assert [t.verdict.winner for t in again] == ([rival] if otherwise else [])
    problem, winners = f"{ticket.problem.op}/{ticket.digest}", LEDGER.statement().winners
    assert {winners[place] for place in winners if place.endswith(problem)} == {agreed.winner}


def test_a_compile_that_is_only_compared_follows_the_job_and_decides_nothing_for_it(
    join: Join, tmp_path: Path
) -> None:
    store = MemoryStore()
    join(0, store)
    with compiling(Trial("graph", HeldProblems(), is_extra=True)) as alone:
        assert compiled(tmp_path / "first", fx_graph_cache=False) == []  # it is not reported
    (ticket,) = alone.tickets
    assert ticket.agreed is None
    assert decisions(store) == {}
    (tuned,) = compiled(tmp_path / "first", fx_graph_cache=False)
    assert tuned.measured
    before = decisions(store)
    join(1, store)
    with compiling(Trial("graph", HeldProblems(), is_extra=True)) as trial:
        compiled(tmp_path / "second", fx_graph_cache=False)
    (ticket,) = trial.tickets
    assert (ticket.verdict, ticket.measured) == (tuned.verdict, tuned.measured)
    assert decisions(store) == before


def test_a_fusion_that_only_a_compared_graph_refuses_is_not_refused_for_the_job(
    join: Join, tmp_path: Path
) -> None:
    store = MemoryStore()
    join(0, store)
    context = RUNTIME.context(Config.load({"cache_dir": str(tmp_path)}, environ={}), "cpu", {})
    compared, decided = GraphShares(decides=False), GraphShares()
    for shares in (compared, decided):
        shares.add(context, host_counts=True)
    assert compared.look_up(context, problem()) is None
    assert compared.refuse(context, problem(), "unfused", "it spills") == "unfused"
    assert decisions(store) == {}
    assert decided.refuse(context, problem(), "unfused", "it spills") == "unfused"
    agreed = compared.look_up(context, problem())
    assert agreed is not None
    assert (agreed.winner, len(decisions(store))) == ("unfused", 1)


def submit(rank: Rank, name: str) -> None:
    """Submit a problem of a graph that is compiled now."""
    shares: Any = GraphShares()
    shares._shares["cpu"] = rank.share
    ticket = rank.tickets[name] = rank.ticket(name)
    shares.submit(SimpleNamespace(device="cpu"), ticket)
    rank.step(0.0)
    assert rank.state(name) == "mine"


@given_back_on_failure()
def fail(rank: Rank, name: str, error: BaseException) -> None:
    """Compile a graph with one problem, in vain."""
    submit(rank, name)
    raise error


def test_claims_of_a_compile_that_fails_are_given_back() -> None:
    ranks, _ = job_of(2)
    with pytest.raises(KeyboardInterrupt):
        fail(ranks[0], "problem", KeyboardInterrupt())
    assert ranks[0].parts == {}
    ranks[0].step(1.0)
    ranks[1].submit("problem")
    drive(ranks[1:], from_s=1.0)
    assert ranks[1].tuner.tuned == ["problem"]


def test_inductors_function_is_wrapped_so_for_every_graph() -> None:
    ranks, _ = job_of(2)
    graph: Any = None  # without the plugin's options, nobody looks at it

    def fails(*_: Any) -> None:
        submit(ranks[0], "problem")
        raise NotImplementedError("an operator")

    with pytest.raises(NotImplementedError):
        compile_graph(fails, graph, ())
    assert ranks[0].parts == {}


def test_claims_of_other_compiles_are_kept() -> None:
    ranks, _ = job_of(2)
    with given_back_on_failure():
        submit(ranks[0], "outer")
        with pytest.raises(ValueError, match="inner"):
            fail(ranks[0], "inner", ValueError("inner"))
    assert [*ranks[0].parts] == ["mm/outer"]


def test_what_this_rank_alone_has_measured_is_no_decision_of_the_job() -> None:
    ranks, _ = job_of(2)
    shares: Any = GraphShares()
    shares._shares["cpu"] = ranks[0].share
    here, elsewhere = SimpleNamespace(device="cpu"), SimpleNamespace(device="cuda:0")
    ticket = ranks[0].submit("problem")
    assert shares.is_open(here, ticket)
    assert not shares.is_open(elsewhere, ticket)  # it has no job
    drive(ranks[:1])
    assert not shares.is_open(here, ticket)
