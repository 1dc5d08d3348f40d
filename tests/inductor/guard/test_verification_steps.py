"""What of a graph is given up, and what its record says, where a referee knows which choices cost time."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.cache import Record, Store, open_store
from inductor_plugin.cache.graph import CHOICES, LIBRARY, TUNED, HeldProblems, choices_in, held
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.config import Config
from inductor_plugin.inductor.graph.record import (
    PLAIN,
    failures_in,
    is_cut,
    is_firm,
    is_settled,
)
from inductor_plugin.inductor.graph.trial import Trial
from inductor_plugin.inductor.guard import verification
from inductor_plugin.inductor.guard.bench import CompiledGraph, NotComparedError
from inductor_plugin.inductor.guard.comparison import MOST_RUNS, Comparison
from inductor_plugin.inductor.guard.verification import GuardedGraph, verified
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.decision import Verdict
from tests.support.fakes.tasks import problem

ENVIRONMENT, DIGEST = "e" * 64, "d" * 64
A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
CHOSEN = {A: "rival of a", B: "rival of b", C: "rival of c"}
FOUR = {**CHOSEN, D: "rival of d"}
GAINS = {A: 3.0, B: 1.1, C: 1.5, D: 1.2}
TUNED_CODE: Any = "the tuned graph"


class KnowingReferee:
    """Calls a graph slower that has one of the guilty choices."""

    def __init__(
        self,
        *guilty: str,
        disturbed: Sequence[int] = (),
        broken: Sequence[int] = (),
        slow: Sequence[int] = (),
    ) -> None:
        self.guilty, self.disturbed, self.broken, self.slow = guilty, disturbed, broken, slow
        self.compared: list[HeldProblems] = []
        self.prepared = 0

    def prepare(self) -> None:
        self.prepared += 1

    def compare(self, graphs: Sequence[CompiledGraph], limit_s: float, most_s: float) -> Comparison:
        assert (limit_s, most_s) == (0.5, 60.0)
        tuned, library, *plain = (graph.code for graph in graphs)
        assert library == HeldProblems(everything=True)
        given_up = HeldProblems() if tuned is TUNED_CODE else tuned
        place = len(self.compared)
        self.compared.append(given_up)
        if place in self.broken:
            raise NotComparedError("as the test says")
        slower = place in self.slow or any(digest not in given_up for digest in self.guilty)
        return Comparison(
            ((2.0 if slower else 0.5),) * 5,
            (1.0,) * 5,
            disturbed=place in self.disturbed,
            plain_ms=(1.5,) * 5 if plain else (),
            run_s=7.0,
        )


class NoisyReferee:
    """Takes graphs by what their choices cost, in six turns of samples that vary."""

    def __init__(self, costs: Mapping[str, float], noise: float, seed: int) -> None:
        self.costs, self.noise, self.random = costs, noise, random.Random(seed)

    def prepare(self) -> None:
        pass

    def compare(self, graphs: Sequence[CompiledGraph], limit_s: float, most_s: float) -> Comparison:
        tuned, library = (self._samples(graph.code) for graph in graphs)
        return Comparison(tuned, library)

    def _samples(self, code: Any) -> tuple[float, ...]:
        given_up = HeldProblems() if code is TUNED_CODE else code
        factor = 1 + sum(cost for digest, cost in self.costs.items() if digest not in given_up)
        return tuple(factor * math.exp(self.random.gauss(0, self.noise)) for _ in range(6))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "provenance", lambda _device: {"host": "here"})


@pytest.fixture(name="store")
def a_store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "cache")


def guarded(
    store: Store,
    referee: KnowingReferee | NoisyReferee,
    *,
    plain: bool = False,
    runs: Callable[[float, float], int] = lambda _spent_s, _run_s: MOST_RUNS,
) -> GuardedGraph:
    untyped: Any = referee
    nothing: Any = None

    def again(given_up: HeldProblems) -> CompiledGraph:
        return CompiledGraph(given_up, nothing)

    tickets: Any = [
        SimpleNamespace(
            digest=digest, verdict=Verdict("x", "l", "", gain), problem=problem(device="cpu")
        )
        for digest, gain in GAINS.items()
    ]
    return GuardedGraph(
        compiled=CompiledGraph(TUNED_CODE, nothing),
        trial=Trial(DIGEST, store=store, environment=ENVIRONMENT, tickets=tuple(tickets)),
        again=again,
        plain=(lambda: CompiledGraph("plain", nothing)) if plain else None,
        bench=untyped,
        problem={"op": GRAPH, "nodes": 3},
        config=Config.load({"table": "off"}, environ={}),
        limit_s=0.5,
        most_after=lambda _spent_s: 60.0,
        runs_after=runs,
    )


def record_in(store: Store) -> Record:
    record = store.record(ENVIRONMENT, GRAPH, DIGEST)
    assert record is not None
    assert record.decision is not None
    return record


def test_a_graph_that_is_not_slower_stays_as_it_was_tuned(store: Store) -> None:
    referee, before = KnowingReferee(), COUNTERS.snapshot()
    graph = verified(guarded(store, referee), CHOSEN)
    assert (graph.code, graph.given_up) == (TUNED_CODE, HeldProblems())
    assert (graph.is_compared, graph.is_settled, graph.is_cut) == (True, True, False)
    assert (referee.compared, referee.prepared) == ([HeldProblems()], 1)
    record = record_in(store)
    decision: Any = record.decision
    assert (decision.winner, decision.library, decision.speedup) == (TUNED, LIBRARY, 2.0)
    assert decision.margin == Config.load({}, environ={}).never_slower_margin
    assert {name: row.median_ms for name, row in record.candidates.items()} == {
        TUNED: 0.5,
        LIBRARY: 1.0,
    }
    assert choices_in(record) == CHOSEN
    assert CHOICES not in record.candidates[LIBRARY].provenance
    assert is_firm(record)
    spent = COUNTERS.snapshot().since(before)
    assert (spent.graphs_compared, spent.graphs_reduced) == (1, 0)
    assert spent.graph_speedup == pytest.approx(2.0)


@pytest.mark.parametrize("guilty", [A, B, C])
def test_the_choice_that_costs_time_is_given_up(store: Store, guilty: str) -> None:
    before = COUNTERS.snapshot()
    graph = verified(guarded(store, KnowingReferee(guilty)), CHOSEN)
    assert graph.given_up == held([guilty])
    assert graph.code == held([guilty])
    assert graph.is_settled
    record = record_in(store)
    decision: Any = record.decision
    assert (decision.winner, decision.speedup) == (held([guilty]).candidate, 2.0)
    assert record.candidates[decision.winner].median_ms == 0.5
    assert record.candidates[TUNED].median_ms == 2.0
    assert "2.000x with library kernels for 1 of 3 problems" in decision.reason
    spent = COUNTERS.snapshot().since(before)
    assert spent.graphs_reduced == 1
    assert spent.graph_speedup == pytest.approx(2.0)


@pytest.mark.parametrize("noise", [0.02, 0.03])
def test_a_search_in_noise_does_not_keep_the_choice_that_costs_time(
    tmp_path: Path, noise: float
) -> None:
    """One of four costs 4 %, which a few turns often do not show: the other three gain nothing."""
    store, searches, kept = open_store(tmp_path, memory_only=True), 0, 0
    for seed in range(400):
        guilty = sorted(FOUR)[seed % 4]
        graph = verified(guarded(store, NoisyReferee({guilty: 0.04}, noise, seed)), FOUR)
        if graph.given_up != HeldProblems():
            searches += 1
            kept += guilty not in graph.given_up
    assert searches >= 100
    assert kept <= 0.02 * searches


def test_a_search_in_noise_keeps_what_gains_time(tmp_path: Path) -> None:
    """Beside a choice that costs much, the others gain 3 % each."""
    store, hits = open_store(tmp_path, memory_only=True), 0
    for seed in range(100):
        guilty = sorted(FOUR)[seed % 4]
        costs = {digest: 0.2 if digest == guilty else -0.03 for digest in FOUR}
        graph = verified(guarded(store, NoisyReferee(costs, 0.02, seed)), FOUR)
        hits += graph.given_up == held([guilty])
    assert hits >= 95


def test_what_was_fast_once_is_run_again(store: Store) -> None:
    """The graph is not compiled for that; where it is slower then, the library kernels run."""
    referee, compiled = KnowingReferee(A), list[HeldProblems]()
    graph = guarded(store, referee)

    def again(given_up: HeldProblems) -> CompiledGraph:
        compiled.append(given_up)
        return graph.again(given_up)

    assert verified(replace(graph, again=again), CHOSEN).given_up == held([A])
    assert referee.compared[-2:] == [held([A]), held([A])]
    assert len(compiled) == len(referee.compared) - 1  # that with library kernels, and no tuned one
    assert len(set(map(str, compiled))) == len(compiled)
    runs = len(referee.compared)
    for later, settled in (
        ({"slow": [runs - 1]}, True),
        ({"disturbed": [runs - 1]}, False),
        ({"broken": [runs - 1]}, False),
    ):
        result = verified(guarded(store, KnowingReferee(A, **later)), CHOSEN)
        assert result.given_up == held(CHOSEN)
        assert result.is_settled is settled
        decided: Any = record_in(store).decision
        assert (decided.winner, decided.speedup) == (LIBRARY, 1.0)


def test_where_all_choices_cost_time_the_library_runs(store: Store) -> None:
    before = COUNTERS.snapshot()
    graph = verified(guarded(store, KnowingReferee(A, B, C)), CHOSEN)
    everything = HeldProblems(everything=True)
    assert (graph.code, graph.given_up, graph.is_cut) == (everything, held(CHOSEN), False)
    decision: Any = record_in(store).decision
    assert (decision.winner, decision.speedup) == (LIBRARY, 1.0)
    assert COUNTERS.snapshot().since(before).graph_speedup == pytest.approx(1.0)


def test_those_that_gain_the_least_are_suspected_first(store: Store) -> None:
    referee = KnowingReferee(B)
    verified(guarded(store, referee), CHOSEN)
    assert referee.compared[:3] == [HeldProblems(), held([B, C]), held([B])]


@pytest.mark.parametrize(
    ("runs", "choices", "cut"),
    [(0, CHOSEN, True), (1, CHOSEN, True), (MOST_RUNS, CHOSEN, False), (0, {A: "rival"}, False)],
)
def test_a_search_without_time_gives_up_more_and_says_so(
    store: Store, runs: int, choices: dict[str, str], *, cut: bool
) -> None:
    asked: list[float] = []

    def runs_after(spent_s: float, run_s: float) -> int:
        assert run_s == 7.0
        asked.append(spent_s)
        return runs

    referee = KnowingReferee(A)
    graph = verified(guarded(store, referee, runs=runs_after), choices)
    assert len(asked) == 1
    assert 0.0 <= asked[0] < 60.0
    assert len(set(map(str, referee.compared))) - 1 <= runs  # one of them is run twice
    assert graph.is_cut is cut
    assert is_cut(record_in(store)) is cut
    assert A in graph.given_up


@pytest.mark.parametrize("guilty", [A, B])
def test_a_half_that_cannot_be_run_is_not_called_fast(store: Store, guilty: str) -> None:
    """The worker may have died by chance: what was given up on no evidence is searched again."""
    for failures in (1, 2):
        graph = verified(guarded(store, KnowingReferee(guilty, broken=[1])), CHOSEN)
        assert guilty in graph.given_up
        assert not graph.is_settled
        record = record_in(store)
        assert (is_firm(record), failures_in(record)) == (True, failures)
        assert not is_settled(record, CHOSEN)
    decided: Any = record.decision
    assert "(provisional: a graph with some of the library kernels could not be run)" in (
        decided.reason
    )
    others = {**CHOSEN, A: "another rival"}
    verified(guarded(store, KnowingReferee(guilty, broken=[1])), others)
    assert failures_in(record_in(store)) == 1
    assert verified(guarded(store, KnowingReferee(guilty)), others).given_up == held([guilty])
    assert is_settled(record_in(store), others)


def test_a_graph_that_could_not_be_run_took_time_of_the_search(store: Store) -> None:
    referee = KnowingReferee(A, B, C, broken=[1])
    graph = verified(guarded(store, referee, runs=lambda _spent_s, _run_s: 2), CHOSEN)
    assert len(referee.compared) == 3
    assert graph.is_cut


def test_halves_that_do_not_compile_leave_the_library_kernels(store: Store) -> None:
    """The tuned graph is slower, whatever becomes of the search for the choice that costs it."""
    graph = guarded(store, KnowingReferee(A))

    def again(given_up: HeldProblems) -> CompiledGraph:
        if not given_up.everything:
            raise RuntimeError("out of memory")
        return graph.again(given_up)

    result = verified(replace(graph, again=again), CHOSEN)
    assert result.given_up == held(CHOSEN)
    decided: Any = record_in(store).decision
    assert decided.winner == LIBRARY


@pytest.mark.parametrize(("most", "cut"), [(2, False), (3, True)])
def test_a_search_of_the_most_runs_is_not_cut(
    store: Store, monkeypatch: pytest.MonkeyPatch, most: int, *, cut: bool
) -> None:
    monkeypatch.setattr(verification, "MOST_RUNS", most)
    graph = verified(guarded(store, KnowingReferee(B), runs=lambda _spent_s, _run_s: 2), CHOSEN)
    assert graph.is_cut is cut


def test_a_disturbed_search_blames_no_half_on_no_evidence(store: Store) -> None:
    graph = verified(guarded(store, KnowingReferee(A, disturbed=range(1, 9))), CHOSEN)
    assert graph.given_up == held(CHOSEN)
    assert not graph.is_settled
    record = record_in(store)
    assert not is_firm(record)
    assert record.decision is not None
    assert "provisional" in record.decision.reason


@pytest.mark.parametrize(("reduced", "recorded"), [(True, False), (False, True)])
def test_a_disturbed_comparison_replaces_nothing_that_was_found_out_before(
    store: Store, *, reduced: bool, recorded: bool
) -> None:
    if recorded:
        verified(guarded(store, KnowingReferee(A)), CHOSEN)
    known, before = store.record(ENVIRONMENT, GRAPH, DIGEST), COUNTERS.snapshot()
    later = guarded(store, KnowingReferee(disturbed=[0]))
    later.trial._known = held([A]) if reduced else HeldProblems()
    graph = verified(later, {**CHOSEN, A: "another rival"})
    assert (graph.code, graph.given_up) == (TUNED_CODE, later.trial._known)
    assert (graph.is_compared, graph.is_settled) == (False, False)
    assert store.record(ENVIRONMENT, GRAPH, DIGEST) == known
    assert COUNTERS.snapshot().since(before).graphs_left_out == 1


def test_a_disturbed_comparison_without_any_before_is_kept_until_the_next(store: Store) -> None:
    graph = verified(guarded(store, KnowingReferee(A, disturbed=[0])), CHOSEN)
    assert (graph.code, graph.given_up, graph.is_settled) == (TUNED_CODE, HeldProblems(), False)
    first = record_in(store)
    assert not is_firm(first)
    verified(guarded(store, KnowingReferee(A, disturbed=[0])), CHOSEN)
    assert record_in(store).candidates[TUNED].provenance != first.candidates[TUNED].provenance
    assert verified(guarded(store, KnowingReferee(A)), CHOSEN).given_up == held([A])
    assert is_firm(record_in(store))


def test_what_was_compiled_without_some_choices_is_compiled_with_them_to_be_compared(
    store: Store,
) -> None:
    graph = guarded(store, KnowingReferee())
    graph.trial._known = held([A])
    assert verified(graph, CHOSEN).code == HeldProblems()
    asked = guarded(store, KnowingReferee(), plain=True)
    assert verified(asked, CHOSEN).code is TUNED_CODE
    assert record_in(store).candidates[PLAIN].median_ms == 1.5
