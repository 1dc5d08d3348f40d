"""When the record of a whole graph says what runs for good."""

# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.cache import Decision, Record, Store, open_store
from inductor_plugin.cache.graph import CHOICES, LIBRARY, TUNED, HeldProblems, held
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.inductor.graph.record import (
    CUT,
    FAILED,
    again_at,
    failure_wait_s,
    failures_in,
    is_cut,
    is_firm,
    is_settled,
    record_of,
    row,
)
from inductor_plugin.inductor.graph.trial import Trial, compiling, current
from inductor_plugin.tuning.validity import due_at
from inductor_plugin.worker.graph_job import FEWEST_TURNS

CHOSEN = {"a problem": "a rival"}


def graph_record(turns: int, *, disturbed: bool = False, cut: bool = False) -> Record:
    """Return the record of a tuned graph that was run in so many turns."""
    rows = [
        row(TUNED, (1.0,) * turns, {CHOICES: CHOSEN, CUT: cut}, disturbed=disturbed),
        row(LIBRARY, (2.0,) * turns, {}, disturbed=disturbed),
    ]
    decision = Decision(TUNED, LIBRARY, "it is faster", 1.02, 2.0, 1.0, len(rows))
    return record_of(("environment", "digest"), {"nodes": 3}, rows, decision)


def test_a_record_is_firm_if_enough_turns_were_calm() -> None:
    assert is_firm(graph_record(FEWEST_TURNS))
    assert not is_firm(graph_record(FEWEST_TURNS, disturbed=True))
    assert not is_firm(graph_record(FEWEST_TURNS - 1))
    assert not is_firm(graph_record(1))  # as earlier versions left them
    assert not is_firm(None)


def test_a_firm_record_settles_its_own_choices_alone() -> None:
    record = graph_record(FEWEST_TURNS)
    assert is_settled(record, CHOSEN)
    assert not is_settled(record, {"a problem": "another rival"})
    assert not is_settled(graph_record(1), CHOSEN)
    assert not is_settled(None, CHOSEN)


def test_a_record_whose_search_had_no_time_settles_nothing() -> None:
    record = graph_record(FEWEST_TURNS, cut=True)
    assert is_cut(record)
    assert is_firm(record)
    assert not is_settled(record, CHOSEN)
    assert not is_cut(graph_record(FEWEST_TURNS))
    assert not is_cut(None)


def test_a_record_whose_search_had_a_failure_settles_nothing_until_it_is_repeated() -> None:
    record = graph_record(FEWEST_TURNS)
    tuned = record.candidates[TUNED]
    assert (failures_in(record), failures_in(None), again_at(record), again_at(None)) == (0,) * 4
    failed = replace(tuned, provenance={**tuned.provenance, FAILED: 2})
    after = replace(record, candidates={**record.candidates, TUNED: failed})
    assert is_firm(after)
    assert failures_in(after) == 2
    assert not is_settled(after, CHOSEN)
    assert again_at(after) == tuned.measured_at + failure_wait_s(2)
    late = graph_record(FEWEST_TURNS, disturbed=True)
    assert again_at(late) == due_at(late.candidates[TUNED])


def test_rows_that_decide_nothing_do_not_make_a_record_uncertain() -> None:
    record = graph_record(FEWEST_TURNS)
    few = row("tuned, less abc", (1.5,), {}, disturbed=False)
    with_few = replace(record, candidates={**record.candidates, few.candidate: few})
    assert is_firm(with_few)
    assert record.decision is not None
    given_up = replace(record.decision, winner=few.candidate)
    assert not is_firm(replace(with_few, decision=given_up))
    assert not is_firm(replace(record, decision=None))


def test_a_row_has_the_spread_of_its_turns() -> None:
    measured = row(TUNED, (1.0, 2.0, 3.0, 4.0, 9.0), {"host": "here"}, disturbed=False)
    assert (measured.median_ms, measured.spread_ms) == (3.0, 5.0)
    assert measured.provenance == {"host": "here"}
    assert row(TUNED, (1.0,), {}, disturbed=True).spread_ms == 0.0


ENVIRONMENT, DIGEST = "e" * 64, "d" * 64
A, B = "a" * 64, "b" * 64


@pytest.fixture(name="store")
def a_store_with_a_record(tmp_path: Path) -> Store:
    """Return a cache whose record of the graph gives up its first problem."""
    store, less = open_store(tmp_path / "cache"), held([A]).candidate
    rows = [row(name, (1.0,) * 5, {}, disturbed=False) for name in (TUNED, LIBRARY, less)]
    decision = Decision(less, LIBRARY, "it is faster", 1.02, 2.0, 1.0, len(rows))
    store.put_record(record_of((ENVIRONMENT, DIGEST), {"nodes": 3}, rows, decision))
    return store


@pytest.mark.parametrize(
    ("choices", "holds"), [({A: "a rival"}, [True, False]), ({}, [True, True])]
)
def test_a_record_of_library_kernels_holds_the_problems_that_it_was_compared_with(
    tmp_path: Path, choices: dict[str, str], holds: list[bool]
) -> None:
    """At other sizes a graph has other problems; a record that names none is of a version that does not say it."""
    store = open_store(tmp_path / "cache")
    rows = [row(name, (1.0,) * 5, {CHOICES: choices}, disturbed=False) for name in (TUNED, LIBRARY)]
    decision = Decision(LIBRARY, LIBRARY, "it is slower", 1.02, 1.0, 1.0, len(rows))
    store.put_record(record_of((ENVIRONMENT, DIGEST), {"nodes": 3}, rows, decision))
    trial = Trial(DIGEST)
    assert [trial.holds(digest, store, ENVIRONMENT, None) for digest in (A, B)] == holds


def share(winner: str | None, rank: int = 1) -> Any:
    agreed = None if winner is None else SimpleNamespace(winner=winner)
    return SimpleNamespace(
        rank=rank,
        look_up=lambda name: agreed if name == f"{GRAPH}/{DIGEST}" else None,
        decide=lambda name, own: agreed or SimpleNamespace(winner=own.winner),
    )


def pins(winner: str | None) -> Any:
    return SimpleNamespace(
        winner=lambda *place: winner if place == (ENVIRONMENT, GRAPH, DIGEST) else ""
    )


@pytest.mark.parametrize(
    ("pinned", "agreed", "holds"),
    [
        (None, None, [True, False]),  # the record's
        (pins(TUNED), None, [False, False]),
        (pins(LIBRARY), None, [True, True]),
        (pins(None), None, [False, False]),  # the record does not count
        (None, share(None), [True, False]),
        (None, share(held([B]).candidate), [False, True]),
        (pins(LIBRARY), share(TUNED), [False, False]),
    ],
)
def test_problems_are_held_by_the_ranks_or_the_pin_or_the_record(
    store: Store, pinned: Any, agreed: Any, holds: list[bool]
) -> None:
    trial = Trial(DIGEST)
    assert trial.record is None
    assert [trial.holds(digest, store, ENVIRONMENT, pinned, agreed) for digest in (A, B)] == holds
    assert trial.is_reduced is any(holds)
    assert trial.record is not None
    # The first problem has said where the graph is recorded.
    assert trial.holds(A, store, "f" * 64, None) is holds[0]
    assert (trial.environment, trial.share) == (ENVIRONMENT, agreed)


def test_what_a_trial_holds_replaces_what_is_known(store: Store) -> None:
    for own, holds in ((held([B]), [False, True]), (HeldProblems(), [False, False])):
        trial = Trial(DIGEST, own)
        assert [trial.holds(digest, store, ENVIRONMENT, None) for digest in (A, B)] == holds
        assert trial.in_effect == own
        assert not trial.is_reduced


def test_a_graph_without_a_record_holds_nothing(store: Store) -> None:
    trial = Trial("f" * 64)
    assert not trial.holds(A, store, ENVIRONMENT, None)
    assert not trial.is_reduced


@pytest.mark.parametrize(
    ("agreed", "gives_up"),
    [(None, held([A])), (share(None), held([A])), (share(LIBRARY), HeldProblems(everything=True))],
)
def test_the_first_rank_says_what_the_graph_gives_up(agreed: Any, gives_up: HeldProblems) -> None:
    assert Trial(DIGEST, share=agreed).agreed(held([A])) == gives_up


def test_a_graph_runs_on_a_gpu_rather_than_on_the_host_beside_it() -> None:
    contexts: Any = {name: SimpleNamespace(device=name) for name in ("cuda:0", "cpu", "cuda:1")}
    assert Trial(DIGEST, contexts=contexts).context.device == "cuda:1"
    assert Trial(DIGEST, contexts={"cpu": contexts["cpu"]}).context.device == "cpu"


def test_a_trial_is_of_its_thread_and_of_its_block() -> None:
    outer, inner, elsewhere = Trial("outer"), Trial("inner"), list[Trial | None]()

    def fail() -> None:
        with compiling(inner):
            assert current() is inner
            raise ValueError("in vain")

    with compiling(outer):
        with pytest.raises(ValueError, match="in vain"):
            fail()
        assert current() is outer
        thread = threading.Thread(target=lambda: elsewhere.append(current()))
        thread.start()
        thread.join()
    assert current() is None
    assert elsewhere == [None]
