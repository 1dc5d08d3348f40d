from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inductor_plugin.cache import document
from inductor_plugin.cache.record import from_fields, merge, rounded, to_fields
from tests.support.cache import decision, measured, record


def test_a_record_comes_back_from_its_document():
    one = record(
        measured("a"), measured("b", None, status="hung", reason="x"), decision=decision("a", 2)
    )
    assert from_fields(document.load(document.dump(to_fields(one)))) == one


@pytest.mark.parametrize(
    ("spread_ms", "compared", "noisy"),
    [(1.1, "a", True), (1.0, "a", False), (None, "a", False), (9.0, "b", False)],
)
def test_a_record_is_noisy_where_what_decided_it_is(
    spread_ms: float | None, compared: str, noisy: bool
):
    quiet, loud = measured("b", 1.0), measured("a", 1.0, spread_ms=spread_ms)
    one = record(loud, quiet, decision=decision(compared))
    assert one.noisy == noisy
    assert replace(one, decision=None).noisy is False
    assert loud.noisy == ((spread_ms or 0.0) > 1.0)
    assert "noisy" not in to_fields(one)  # it is derived, so that old records have it too


def test_merging_keeps_every_candidate_the_newer_measurement_and_the_newer_refusals():
    old = record(measured("a", 1.0), measured("b", 2.0), rejected={"t": "old"})
    new = record(
        measured("b", 3.0, measured_at=2000.0),
        measured("c", 4.0),
        updated=2000.0,
        rejected={"u": "new"},
    )
    for both in (merge(old, new), merge(new, old)):
        assert {n: one.median_ms for n, one in both.candidates.items()} == {"a": 1, "b": 3, "c": 4}
        assert both.rejected == {"u": "new"}
        assert (both.created, both.updated) == (1000.0, 2000.0)


def test_a_timing_does_not_give_way_to_a_newer_skip():
    timed = record(measured("a", 1.0))
    skipped = record(measured("a", None, status="skipped", measured_at=3000.0))
    assert merge(timed, skipped).candidates["a"].median_ms == 1.0
    assert merge(skipped, timed).candidates["a"].median_ms == 1.0


def test_a_failure_seen_later_replaces_a_timing():
    wrong = record(measured("a", None, status="wrong", measured_at=3000.0))
    assert merge(record(measured("a")), wrong).candidates["a"].status == "wrong"


@pytest.mark.parametrize(
    ("left", "right", "winner"),
    [
        (decision("a", 3, 1000.0), decision("b", 2, 2000.0), "a"),
        (decision("a", 2, 1000.0), decision("b", 2, 2000.0), "b"),
        (decision("a", 2, 1000.0), None, "a"),
    ],
)
def test_the_decision_from_most_candidates_then_the_newer_stays(
    left: object, right: object, winner: str
):
    one, other = record(decision=left), record(decision=right)
    for both in (merge(one, other), merge(other, one)):
        assert both.decision is not None
        assert both.decision.winner == winner


def test_a_pinned_record_keeps_its_decision():
    pinned = record(decision=decision("a"), pinned=True)
    both = merge(pinned, record(decision=decision("b", 9, 9000.0)))
    assert both.pinned
    assert both.decision is not None
    assert both.decision.winner == "a"


def test_samples_keep_the_digits_that_mean_something():
    one = rounded(
        record(measured("a", 0.123456789, error=math.inf, samples_ms=(1.23456789, math.nan)))
    )
    assert one.candidates["a"].samples_ms == (1.23457,)
    assert one.candidates["a"].median_ms == 0.123457
    assert one.candidates["a"].error is None


def test_fields_of_another_format_are_refused():
    with pytest.raises(ValueError, match="format"):
        from_fields({**to_fields(record()), "format": 99})
    fields = to_fields(record(measured("a")))
    del fields["candidates"]["a"]["status"]
    with pytest.raises(ValueError, match="not a record"):
        from_fields(fields)
    assert replace(record(), op="x").place.split("/")[1] == "x"


NOTE = {
    "version": "1",
    "product": "bfloat16 full size=4,8 readers=0",
    "read 0": "bfloat16 row operand=0 elements=8 stride=0,1 offset=0",
    "step 0": "product",
}


def test_the_note_of_an_epilogue_is_kept() -> None:
    one = record(measured("a"), epilogue=NOTE)
    assert from_fields(document.load(document.dump(to_fields(one)))) == one
    assert document.dump(to_fields(one)).count(b'\n    "step 0": "product"') == 1  # a line for each


def test_a_record_without_a_note_is_what_it_was_before_there_were_any() -> None:
    fields = to_fields(record(measured("a")))
    assert "epilogue" not in fields
    assert from_fields(fields).epilogue == {}
    with pytest.raises(ValueError, match="is not text"):
        from_fields({**fields, "epilogue": {"version": 1}})


def test_of_two_notes_the_later_one_stays() -> None:
    first = record(measured("a"), epilogue=NOTE, updated=1000.0)
    other = {**NOTE, "step 0": "load = 0"}
    second = record(measured("b"), epilogue=other, updated=2000.0)
    assert merge(first, second).epilogue == merge(second, first).epilogue == other
    # An earlier version writes none.
    bare = replace(second, epilogue={})
    assert merge(first, bare).epilogue == merge(bare, first).epilogue == NOTE
    # Of a class of sizes, another one was measured: the note tells the first's.
    moved = replace(bare, describe="mm(7x512)")
    assert merge(first, moved).epilogue == merge(moved, first).epilogue == {}
