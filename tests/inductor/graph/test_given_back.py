"""What a graph holds is given back where its compile fails: other ranks are not to wait for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.inductor.graph.ranks import GraphShares, given_back_on_failure
from inductor_plugin.inductor.guard.guard import compile_graph
from tests.support.ranks.simulated import Rank, drive, job_of


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
