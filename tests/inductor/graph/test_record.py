"""When the record of a whole graph says what runs for good."""

from __future__ import annotations

from inductor_plugin.cache import Decision, Record
from inductor_plugin.cache.graph import CHOICES, LIBRARY, TUNED
from inductor_plugin.inductor.graph.record import (
    CUT,
    is_cut,
    is_firm,
    is_settled,
    record_of,
    row,
)
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
