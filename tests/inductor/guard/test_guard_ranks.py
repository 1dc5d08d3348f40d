"""What a graph gives up is a decision of the job, also for a graph out of Inductor's cache."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

from inductor_plugin.cache.graph import LIBRARY, TUNED
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import Agreed, dump, load, of_verdict
from inductor_plugin.tuning.ranks.ledger import LEDGER
from tests.support.compile import fresh
from tests.support.fakes.referee import Referee, rivals_win, run
from tests.support.ranks.joined import joining
from tests.support.ranks.simulated import MemoryStore

__all__ = ["fresh", "rivals_win"]  # the fixtures
pytestmark = pytest.mark.compat


def decisions_about_graphs(store: MemoryStore) -> Mapping[str, Agreed]:
    kind = f"/decision/{GRAPH}/"
    return {key: load(value) for key, value in store.values.items() if kind in key}


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
