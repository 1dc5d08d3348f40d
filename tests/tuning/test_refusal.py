"""A record of who refused: written once, and worth less than any measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.cache import Record, Store, digest_of, open_store
from inductor_plugin.tuning.refusal import REASON, remember
from tests.support.fakes.selection import offers, race, rig
from tests.support.fakes.tasks import problem

ENVIRONMENT = "e" * 16
WHY = {"cutlass": "float32 needs TF32", "triton_decode": "too many rows"}


def known(store: Store) -> Record | None:
    return store.record(ENVIRONMENT, "mm", digest_of(problem().fields()))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def test_it_says_who_runs_and_who_refused(store: Store) -> None:
    assert remember(store, ENVIRONMENT, problem(), "mm-1", WHY)
    record = known(store)
    assert record is not None
    assert (record.candidates, record.rejected) == ({}, WHY)
    assert record.decision is not None
    assert (record.decision.winner, record.decision.reason) == ("mm-1", REASON)
    assert record.decision.candidates == 0


def test_nothing_is_written_where_nobody_refused(store: Store) -> None:
    assert not remember(store, ENVIRONMENT, problem(), "mm-1", {})
    assert known(store) is None


def test_what_is_known_is_not_written_again(store: Store) -> None:
    remember(store, ENVIRONMENT, problem(), "mm-1", WHY)
    before = known(store)
    assert not remember(store, ENVIRONMENT, problem(), "mm-1", dict(WHY))
    assert known(store) == before


@pytest.mark.parametrize(("only", "why"), [("mm-2", WHY), ("mm-1", {"cutlass": "nvcc is missing"})])
def test_another_answer_takes_the_place_of_the_old_one(
    store: Store, only: str, why: dict[str, str]
) -> None:
    remember(store, ENVIRONMENT, problem(), "mm-1", WHY)
    assert remember(store, ENVIRONMENT, problem(), only, why)
    record = known(store)
    assert record is not None
    assert record.decision is not None
    assert (record.decision.winner, record.rejected) == (only, why)


def test_a_race_takes_its_place_and_is_never_replaced(tmp_path: Path) -> None:
    bench = rig(tmp_path)
    remember(bench.store, ENVIRONMENT, problem(), "library", WHY)
    ticket = bench.plan(offers("a"))
    assert not ticket.hit
    race(ticket, {"library": 2.0, "a": 1.0})
    tuned = known(bench.store)
    assert tuned is not None
    assert tuned.decision is not None
    assert tuned.decision.winner == "a"
    assert tuned.rejected == {"gemm": "too small"}
    assert not remember(bench.store, ENVIRONMENT, problem(), "library", WHY)
    assert known(bench.store) == tuned


def test_it_does_not_count_as_tuned(store: Store) -> None:
    remember(store, ENVIRONMENT, problem(), "mm-1", WHY)
    assert not store.has_records(ENVIRONMENT)
