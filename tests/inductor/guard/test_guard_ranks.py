"""What a graph gives up is a decision of the job, also for a graph out of Inductor's cache."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

import inductor_plugin
from inductor_plugin.cache.graph import LIBRARY, TUNED
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.inductor.guard.bench import CompiledGraph, GraphBench
from inductor_plugin.inductor.guard.comparison import Comparison
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import Agreed, dump, load, of_verdict
from inductor_plugin.tuning.ranks.ledger import LEDGER
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.compile import fresh
from tests.support.fakes.referee import Referee, judge, rivals_win, run
from tests.support.ranks.joined import joining
from tests.support.ranks.simulated import MemoryStore

__all__ = ["fresh", "rivals_win"]  # the fixtures
pytestmark = pytest.mark.compat


def decisions_about_graphs(store: MemoryStore) -> Mapping[str, Agreed]:
    kind = f"/decision/{GRAPH}/"
    return {key: load(value) for key, value in store.values.items() if kind in key}


@contextmanager
def reported() -> Generator[list[int]]:
    """Return the number of problems of each graph that is compiled in the block, and not only compared."""
    problems: list[int] = []

    def take(tickets: Sequence[TuningTicket]) -> None:
        problems.append(len(tickets))

    with inductor_plugin.observe(take):
        yield problems


@pytest.mark.parametrize("otherwise", [True, False])
def test_a_graph_in_inductors_cache_gives_up_what_the_job_has_decided(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, otherwise: bool
) -> None:
    Referee(monkeypatch, allowed=1)
    join, first, later = joining(monkeypatch), MemoryStore(), MemoryStore()
    with inductor_config.patch(fx_graph_cache=True):
        join(0, first)
        assert run(cache_dir) == 1
        ((key, own),) = decisions_about_graphs(first).items()
        assert own.winner not in (TUNED, LIBRARY)
        if otherwise:  # another rank, which compiles it anew, was first
            verdict = Verdict(TUNED, LIBRARY, "of another rank")
            later.values[key] = dump(of_verdict(verdict, None, 1))
        join(0, later)
        counters.clear()
        assert run(cache_dir) == (2 if otherwise else 1)
    hits = (
        counters["inductor"]["fxgraph_cache_hit"] or counters["aot_autograd"]["autograd_cache_hit"]
    )
    assert bool(hits) != otherwise
    assert decisions_about_graphs(later)[key].winner == (TUNED if otherwise else own.winner)
    assert not any(f"/{GRAPH}/" in place for place in LEDGER.statement().winners)


@pytest.mark.parametrize(("allowed", "compiles"), [(2, 1), (1, 2), (0, 2)])
def test_what_a_graph_gives_up_in_a_job_is_compiled_once_more_as_any_graph(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, allowed: int, compiles: int
) -> None:
    """In a compile that is only compared, a rank decides alone what the job has not decided."""
    Referee(monkeypatch, allowed)
    joining(monkeypatch)(0, MemoryStore())
    with reported() as problems:
        assert run(cache_dir) == allowed
    assert problems == [2] * compiles


def test_a_rank_that_would_give_up_more_than_the_job_runs_what_it_has_compiled_first(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    referee = Referee(monkeypatch, allowed=0)
    join, first, later = joining(monkeypatch), MemoryStore(), MemoryStore()
    join(0, first)
    assert run(cache_dir / "first") == 0
    (key,) = decisions_about_graphs(first)

    def compare(
        bench: GraphBench, graphs: Sequence[CompiledGraph], limit_s: float, most_s: float
    ) -> Comparison:  # meanwhile another rank has compared it
        tuned = of_verdict(Verdict(TUNED, LIBRARY, "of another rank"), None, 1)
        later.values.setdefault(key, dump(tuned))
        return referee.compare(bench, graphs, limit_s, most_s)

    judge(monkeypatch, compare)
    join(0, later)
    with reported() as problems:
        assert run(cache_dir / "second") == 2
    assert problems == [2]
