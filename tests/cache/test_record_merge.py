"""Two records of one problem become one: of one cache, and of several."""

from __future__ import annotations

import functools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings, strategies

from inductor_plugin.cache import Decision, Measured, Record, document
from inductor_plugin.cache.merge import combine, merge
from inductor_plugin.cache.record import GRAPH, from_fields, to_fields
from tests.support.cache.records import decision, measured, record


def test_merging_keeps_every_candidate_the_newer_measurement_and_the_newer_refusals():
    old = record(measured("a", 1.0), measured("b", 2.0), rejected={"t": "old"})
    new = record(
        measured("b", 3.0, measured_at=2000.0),
        measured("c", 4.0),
        updated=2000.0,
        rejected={"u": "new"},
    )
    for both in (merge(old, new), merge(new, old)):
        assert {n: candidate.median_ms for n, candidate in both.candidates.items()} == {
            "a": 1,
            "b": 3,
            "c": 4,
        }
        assert both.rejected == {"u": "new"}
        assert (both.created, both.updated) == (1000.0, 2000.0)


def test_of_two_records_of_a_graph_the_later_decision_keeps_its_own_measurements():
    """A third row is no better evidence there: its name says which choices the graph gives up."""
    three = [measured("tuned"), measured("library"), measured("tuned, less a")]
    old = record(*three, decision=decision("tuned, less a", 3, 1000.0))
    new = record(
        measured("tuned", 2.0), measured("library"), decision=decision("library", 2, 2000.0)
    )
    old, new = (replace(each, op=GRAPH) for each in (old, new))
    for both in (merge(old, new), merge(new, old)):
        assert both.decision == new.decision
        assert both.candidates == new.candidates
    pinned = replace(old, pinned=True)
    assert merge(pinned, new) == merge(new, pinned)
    assert merge(pinned, new).decision == old.decision


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
    kept, other = record(decision=left), record(decision=right)
    for both in (merge(kept, other), merge(other, kept)):
        assert both.decision is not None
        assert both.decision.winner == winner


def test_a_pinned_record_keeps_its_decision():
    pinned = record(decision=decision("a"), pinned=True)
    both = merge(pinned, record(decision=decision("b", 9, 9000.0)))
    assert both.pinned
    assert both.decision is not None
    assert both.decision.winner == "a"


UNCHECKED = {"numbers": "unchecked"}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (measured("a", measured_at=1.0), measured("a", measured_at=2.0, provenance=UNCHECKED)),
        (
            measured("a", None, status="wrong", measured_at=1.0, provenance=UNCHECKED),
            measured("a", measured_at=2.0, provenance=UNCHECKED),
        ),
        (
            measured("a", None, status="red_zone", measured_at=1.0),
            measured("a", measured_at=2.0, provenance=UNCHECKED),
        ),
        (
            measured("a", None, status="wrong", measured_at=1.0),
            measured("a", measured_at=2.0, provenance={"numbers": "no reference"}),
        ),
        # With raised limits, and still without the check, it came through.
        (
            measured("a", measured_at=2.0, provenance=UNCHECKED),
            measured("a", None, status="hung", measured_at=1.0, provenance=UNCHECKED),
        ),
        (measured("a", None, status="hung", measured_at=2.0), measured("a", measured_at=1.0)),
    ],
)
def test_checked_numbers_and_failures_found_beat_unchecked_ones(better: Measured, worse: Measured):
    for both in (merge(record(better), record(worse)), merge(record(worse), record(better))):
        assert both.candidates["a"] == better


def row(name: str, status: str, checked: bool, when: float, ms: float | None) -> Measured:
    provenance = {} if checked else UNCHECKED
    return measured(name, ms, status=status, measured_at=when, provenance=provenance)


def whole(
    rows: list[Measured],
    chosen: Decision | None,
    when: float,
    pinned: bool,
    lines: tuple[str, str, str],
    extra: dict[str, int],
) -> Record:
    """Return a record; one of an earlier version has no epilogue, and one may be pinned without a decision."""
    describe, rejected, epilogue = lines
    return record(
        *rows,
        decision=chosen,
        updated=when,
        pinned=pinned,
        describe=f"mm({describe})",
        rejected={"t": rejected},
        epilogue={"step 0": epilogue} if epilogue else {},
        extra=extra,
    )


times = strategies.sampled_from([0.0, 1.0, 2.0])
rows = strategies.builds(
    row,
    strategies.sampled_from("ab"),
    strategies.sampled_from(["ok", "skipped", "pruned", "hung", "wrong", "crashed"]),
    strategies.booleans(),
    times,
    strategies.sampled_from([None, 1.0, 2.0]),
)
decisions = strategies.builds(
    decision, strategies.sampled_from("ab"), strategies.integers(1, 2), times
)
records = strategies.builds(
    whole,
    strategies.lists(rows, max_size=2),
    strategies.none() | decisions,
    times,
    strategies.booleans(),
    strategies.tuples(
        strategies.sampled_from("xy"),
        strategies.sampled_from("xy"),
        strategies.sampled_from(["", "x", "y"]),
    ),
    strategies.dictionaries(strategies.sampled_from("pq"), strategies.integers(0, 2)),
)


@settings(max_examples=1000, deadline=None, database=None)
@given(records, records, records)
def test_the_order_in_which_records_merge_does_not_matter(a: Record, b: Record, c: Record):
    assert merge(a, b) == merge(b, a)
    assert merge(a, merge(b, c)) == merge(merge(a, b), c)
    assert merge(a, a) == a
    assert merge(merge(a, b), b) == merge(a, b)


def test_description_and_epilogue_stay_together_however_three_records_are_grouped() -> None:
    a = record(updated=1.0, describe="mm(x)", epilogue={"step 0": "x"})
    b = record(updated=2.0, describe="mm(y)", epilogue={"step 0": "y"})
    c = record(updated=3.0, describe="mm(x)")
    for join in (merge, combine):
        assert join(join(a, b), c) == join(a, join(b, c))
        assert (join(a, b).describe, join(a, b).epilogue) == (b.describe, b.epilogue)
        assert (join(a, c).describe, join(a, c).epilogue) == (c.describe, c.epilogue)


def test_a_pin_without_a_decision_holds_none_of_another_record() -> None:
    pinned = record(pinned=True)
    few, many = (record(decision=decision(name, n, 1.0)) for name, n in (("a", 2), ("b", 3)))
    for join in (merge, combine):
        joined = join(join(pinned, few), many)
        assert joined == join(pinned, join(few, many))
        assert (joined.decision, joined.pinned) == (many.decision, False)
        assert join(pinned, pinned) == pinned


def of_a_graph(kept: Record) -> Record:
    return replace(kept, op=GRAPH)


def with_samples(kept: Record, count: int) -> Record:
    """Return a record whose measurements have this many samples, where there are any."""
    rows = kept.candidates.items()
    sampled = {
        name: replace(line, samples_ms=(1.0,) * (count if line.median_ms is not None else 0))
        for name, line in rows
    }
    return replace(kept, candidates=sampled)


graphs = strategies.builds(of_a_graph, records)
sampled = strategies.builds(with_samples, records, strategies.integers(0, 3))
few = strategies.lists(sampled, min_size=1, max_size=4) | strategies.lists(
    graphs, min_size=1, max_size=4
)


@settings(max_examples=1000, deadline=None, database=None)
@given(few, strategies.randoms(use_true_random=False))
def test_records_of_several_caches_combine_in_any_order(values: list[Record], random: Random):
    expected = functools.reduce(combine, values)
    for _ in range(3):
        pool = [*values, random.choice(values)]  # one of them twice
        while len(pool) > 1:  # in any order and grouping
            left, right = (pool.pop(random.randrange(len(pool))) for _ in range(2))
            pool.append(combine(left, right))
        assert pool == [expected]
    assert combine(expected, expected) == expected
    again = from_fields(document.load(document.dump(to_fields(expected))))
    assert combine(again, again) == again


def test_of_two_caches_more_samples_win():
    few = record(measured("a", samples_ms=(1.0,) * 3, measured_at=9.0))
    many = record(measured("a", samples_ms=(2.0,) * 9, measured_at=1.0))
    assert combine(few, many).candidates == combine(many, few).candidates == many.candidates
    assert (
        merge(few, many).candidates == few.candidates
    )  # one cache's later measurement replaces its earlier one


def test_a_decision_with_more_samples_is_kept_and_says_how_many():
    a = record(measured("a", samples_ms=(1.0,) * 9), decision=decision("a", 2, 1.0))
    b = record(measured("b", samples_ms=(1.0,) * 5), decision=decision("b", 2, 9.0))
    both = combine(a, b)
    assert both.decision == a.decision
    c = record(measured("a", samples_ms=(3.0,) * 20), measured("b"), decision=None)
    assert (decided := combine(both, c).decision) is not None
    assert (decided.winner, decided.extra) == ("a", {"samples": 9})


def test_what_one_cache_has_seen_fail_holds_for_all_and_calm_samples_beat_disturbed_ones():
    good = measured("a", samples_ms=(1.0,) * 9, measured_at=9.0)
    wrong = measured("a", None, status="wrong", measured_at=1.0)
    busy = measured("a", samples_ms=(1.0,) * 30, provenance={"disturbed": True})
    assert combine(record(good), record(wrong)).candidates["a"] == wrong
    assert combine(record(busy), record(good)).candidates["a"] == good
    hung = measured("a", None, status="hung", measured_at=99.0)
    assert combine(record(good), record(hung)).candidates["a"] == good
    pruned = measured("a", None, status="pruned", measured_at=99.0)  # by what one build has shown
    assert combine(record(good), record(pruned)).candidates["a"] == good


def test_a_winner_that_another_cache_has_seen_fail_is_no_decision():
    won = record(measured("a", samples_ms=(1.0,) * 9), decision=decision("a", 2, 9.0))
    assert won.valid_decision == won.decision
    for status, still in (("wrong", False), ("compile_failed", False), ("hung", True)):
        bad = measured("a", None, status=status)
        refused = record(bad, measured("b"), decision=decision("b", 2, 1.0))
        both = combine(refused, won)
        assert (both.valid_decision is not None) == still, status
    assert both.valid_decision == won.decision


def test_of_two_records_of_a_graph_one_is_kept_whole() -> None:
    """Its times are those of its own choices: a row of the other would be compared with them."""
    few = replace(record(measured("tuned", samples_ms=(1.0, 1.0))), op=GRAPH)
    many = replace(
        record(measured("tuned", samples_ms=(2.0,) * 4), measured("given_up", samples_ms=(3.0,))),
        op=GRAPH,
    )
    own = replace(record(measured("other", samples_ms=(1.0,))), op=GRAPH)
    assert combine(few, many).candidates == combine(many, few).candidates == many.candidates
    assert combine(own, many).candidates == many.candidates


def test_of_two_records_of_a_graph_that_without_other_work_is_kept() -> None:
    """A comparison that was disturbed keeps all of its turns, a calm one those that count."""
    calm = measured("tuned", samples_ms=(1.0,) * 5)
    late = measured("tuned", samples_ms=(1.0,) * 30, provenance={"disturbed": True})
    firm, disturbed = (
        replace(record(row, decision=decision("tuned")), op=GRAPH) for row in (calm, late)
    )
    for both in (combine(firm, disturbed), combine(disturbed, firm)):
        assert both.candidates == firm.candidates


@pytest.mark.parametrize("op", ["mm", GRAPH])
def test_the_first_and_the_last_writing_count_whatever_is_kept(op: str) -> None:
    early = record(measured("a"), op=op, created=1.0, updated=2.0, decision=decision("a", 2, 9.0))
    late = record(measured("a"), op=op, created=3.0, updated=5.0, decision=decision("a", 2, 1.0))
    for join in (merge, combine):
        for both in (join(early, late), join(late, early)):
            assert (both.created, both.updated) == (1.0, 5.0)


@pytest.mark.parametrize("op", ["mm", GRAPH])
def test_what_two_say_of_one_time_is_the_same_in_any_order(op: str) -> None:
    """Each machine has to keep the same, whichever it has met first."""
    left = record(measured("a", 1.0), op=op, decision=decision("a"), extra={"x": 2, "y": 1})
    right = record(measured("a", 2.0), op=op, decision=decision("b"), extra={"x": 1, "z": 1})
    for join in (merge, combine):
        both = join(left, right)
        assert both == join(right, left)
        assert both.extra == {"x": 2, "y": 1, "z": 1}
        assert both.candidates["a"] in (left.candidates["a"], right.candidates["a"])


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (
            measured("a", samples_ms=(1.0,) * 5, measured_at=1.0),
            measured("a", samples_ms=(1.0,) * 30, measured_at=2.0, provenance=UNCHECKED),
        ),
        (
            measured("a", None, status="hung", measured_at=1.0),
            measured("a", None, status="skipped", measured_at=2.0),
        ),
        (
            measured("a", None, status="wrong", measured_at=1.0),
            measured("a", None, status="hung", measured_at=2.0),
        ),
    ],
)
def test_of_two_caches_checked_numbers_count_and_a_skip_never(
    better: Measured, worse: Measured
) -> None:
    for both in (combine(record(better), record(worse)), combine(record(worse), record(better))):
        assert both.candidates["a"] == better


def test_a_decision_keeps_its_weight_when_its_rows_are_replaced() -> None:
    nine = record(measured("a", samples_ms=(1.0,) * 9), decision=decision("a", 2, 1.0))
    rows = record(measured("a", samples_ms=(3.0,) * 20))
    kept = combine(nine, rows)
    for samples, winner in ((8, "a"), (12, "b")):
        other = record(measured("b", samples_ms=(1.0,) * samples), decision=decision("b", 2, 0.0))
        for both in (combine(kept, other), combine(other, kept)):
            assert both.decision is not None
            assert both.decision.winner == winner


@pytest.mark.parametrize("op", ["mm", GRAPH])
def test_a_pin_holds_its_decision_against_more_samples(op: str) -> None:
    few = record(measured("a", samples_ms=(1.0,)), op=op, decision=decision("a"), pinned=True)
    many = record(measured("b", samples_ms=(1.0,) * 9), op=op, decision=decision("b", 9, 9.0))
    for both in (combine(few, many), combine(many, few)):
        assert both.decision is not None
        assert (both.decision.winner, both.pinned) == ("a", True)


def test_of_two_graphs_with_as_many_samples_the_later_decision_is_kept() -> None:
    early, late = (
        record(measured(name), op=GRAPH, decision=decision(name, 2, when))
        for name, when in (("tuned", 1.0), ("library", 2.0))
    )
    for both in (combine(early, late), combine(late, early)):
        assert both.decision == late.decision


def test_a_mark_that_is_not_needed_any_more_is_dropped_and_no_other_field() -> None:
    marked = replace(decision("a"), extra={"samples": 2, "because": "x"})
    both = combine(record(measured("a"), decision=marked), record(measured("b")))
    assert both.decision is not None
    assert both.decision.extra == {"because": "x"}
