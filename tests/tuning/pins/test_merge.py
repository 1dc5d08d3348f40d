"""Pin files become one in any order, and what they disagree about is listed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies

from inductor_plugin.tuning.pins.document import dump, parse
from inductor_plugin.tuning.pins.merge import compare, merge
from inductor_plugin.tuning.pins.pin import Pin, PinFile, Tried, tried

CPU = {"device": {"type": "cpu", "name": "Z80"}, "software": {"torch": "2.14.1"}}
OTHER = {**CPU, "name": "its own", "pins": [6502], "own": {"digest": "d"}}


def pin(digest: str, winner: str, samples: int = 1, winner_ms: float | None = 1.0) -> Pin:
    return Pin(
        "e", "mm", digest, f"mm({digest})", winner, "t", winner_ms, samples, "mm-1", 2.0, "r"
    )


def written(content: PinFile) -> PinFile:
    """Return a pin file as it is read back from its text, which stays the same when it is written again."""
    text = dump(content)
    read = parse(text)
    assert dump(read) == text
    return read


def file(*pins: Pin, known: bool = True, failed: Mapping[Tried, str] | None = None) -> PinFile:
    return PinFile(
        {entry.place: entry for entry in pins},
        {"e": CPU, "f": OTHER} if known else {},
        failed or {},
    )


def seen(winner: str, digest: str = "a", status: str = "wrong") -> dict[Tried, str]:
    """Return what a cache knows that has seen a candidate fail on a problem."""
    return {tried("e", winner, digest): status}


environments = strategies.sampled_from("eef")  # most in the same one
pins = strategies.builds(
    replace,
    strategies.builds(
        pin,
        strategies.sampled_from("abc"),
        strategies.sampled_from(["mm-1", "x-1", "x-2"]),
        strategies.integers(0, 2),
        strategies.none() | strategies.sampled_from([1.0, 2.0]),
    ),
    environment=environments,
    describe=strategies.sampled_from(["", "mm(8x8)"]),
    library=strategies.sampled_from([None, "", "mm-1"]),
    fields=strategies.sampled_from([{}, {"size": (8, 8)}, {"size": [8, 8]}]),
    identities=strategies.sampled_from([(), ("T 1",), ("T 2",), ("T 2", "T 1")]),
)


def listed(some: list[Pin], known: bool, failed: dict[Tried, str]) -> PinFile:
    return file(*some, known=known, failed=failed)


failures = strategies.dictionaries(
    strategies.builds(
        tried,
        environments,
        strategies.sampled_from(["x-1", "x-2"]),
        strategies.sampled_from("ab"),
    ),
    strategies.sampled_from(["wrong", "raised"]),
    max_size=2,
)
files = strategies.builds(
    listed, strategies.lists(pins, max_size=4), strategies.booleans(), failures
)


def in_a_file(files: Sequence[PinFile]) -> PinFile:
    """Return a merge as the next one reads it from the file into which it was written."""
    return written(merge(files))


def without_identities(content: PinFile) -> PinFile:
    """Return a pin file that says nothing of templates."""
    bare = {place: replace(entry, identities=()) for place, entry in content.pins.items()}
    return replace(content, pins=bare)


def check(a: PinFile, b: PinFile, c: PinFile) -> None:
    """Hold merges in all orders and steps against one of all; each step may be a file that the next one reads."""
    expected = merge([a, b, c])
    assert (
        merge([without_identities(each) for each in (a, b, c)]).pins
        == without_identities(expected).pins
    )
    assert all(written(each) == each for each in (a, b, c) if each.pins == merge([each]).pins)
    assert written(expected) == expected
    for order in itertools.permutations((a, b, c)):
        assert merge(order) == expected
        assert dump(merge(order)) == dump(expected)
    for first, second, third in ((a, b, c), (b, c, a), (c, a, b)):
        for step in (merge, in_a_file):
            both, last = step([first, second]), step([third])
            assert merge([both, third]) == merge([last, both, both]) == expected
            rows = compare({"both": both, "third": third})
            assert all(row.pin == expected.pins.get(row.decided[0].place) for row in rows)
    for again in (expected, written(expected)):
        assert merge([again, a]) == merge([again, again]) == merge([again]) == expected
    assert not any(row.is_conflict for row in compare({"one": expected, "two": written(expected)}))
    failed = {**a.failed, **b.failed, **c.failed}
    assert not any(entry.tried in failed for entry in expected.pins.values())
    conflicts = [row for row in compare({"a": a, "b": b, "c": c}) if row.is_conflict]
    for row in conflicts:
        assert expected.pins.get(row.decided[0].place) == row.pin
        winners = {entry.winner for entry in row.decided}
        assert len(winners) > 1 or row.failed.keys() == winners
    gone = {*a.pins, *b.pins, *c.pins} - expected.pins.keys()
    assert gone == {row.decided[0].place for row in conflicts if row.pin is None}


@settings(max_examples=300, deadline=None, database=None)
@given(files, files, files)
def test_the_order_in_which_pin_files_merge_does_not_matter(a: PinFile, b: PinFile, c: PinFile):
    check(a, b, c)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, database=None)
@given(files, files, files)
def test_the_order_in_which_a_thousand_sets_of_pin_files_merge_does_not_matter(
    a: PinFile, b: PinFile, c: PinFile
):
    check(a, b, c)


def test_more_samples_win_and_the_other_is_listed_with_its_time():
    few, many = pin("a", "x-1", samples=3, winner_ms=0.5), pin("a", "x-2", samples=9)
    assert merge([file(few), file(many)]).pins == {many.place: many}
    (row,) = compare({"one": file(few), "two": file(many), "none": file()})
    assert row.is_conflict
    assert row.pins == {"one": few, "two": many, "none": None}
    assert row.pin == many


def test_what_only_some_decide_is_a_difference_and_no_conflict():
    same = pin("a", "x-1")
    (row,) = compare({"one": file(same, pin("b", "x-1")), "two": file(pin("a", "x-1", samples=7))})
    assert not row.is_conflict
    assert row.pin is not None
    assert row.pin.digest == "b"


def test_a_winner_that_a_cache_has_seen_fail_is_no_decision_however_many_samples_it_has() -> None:
    pinned, cached = pin("a", "fast", samples=50), pin("a", "lib", samples=5)
    sources = {"pins": file(pinned), "cache": file(cached, failed=seen("fast"))}
    assert merge([*sources.values()]).pins == {cached.place: cached}
    (row,) = compare(sources)
    assert row.is_conflict
    assert row.failed == {"fast": {"cache": "wrong"}}
    assert row.pin == cached


def test_what_nobody_else_decides_has_no_pin_once_its_winner_was_seen_to_fail() -> None:
    pinned, elsewhere = pin("a", "fast", samples=50), pin("b", "fast", samples=50)
    sources = {"pins": file(pinned, elsewhere), "cache": file(failed=seen("fast"))}
    assert merge([*sources.values()]).pins == {elsewhere.place: elsewhere}
    first, second = compare(sources)
    assert first.is_conflict
    assert first.pin is None
    assert not second.is_conflict


def test_a_failure_that_comes_later_lets_an_earlier_decision_count_again() -> None:
    pinned, cached = pin("a", "fast", samples=50), pin("a", "lib", samples=5)
    once = merge([file(pinned), file(cached)])
    assert once.pins == {pinned.place: pinned}
    assert merge([once, file(failed=seen("fast"))]).pins == {cached.place: cached}


def test_a_failure_that_comes_by_way_of_files_lets_an_earlier_decision_count_again() -> None:
    """A cache that has seen `fast` fail and decides nothing: merged last, first with the other cache, or at once."""
    a, b = file(pin("a", "fast", samples=100)), file(pin("a", "lib", samples=50))
    c = file(failed=seen("fast"))
    expected = merge([a, b, c])
    assert [kept.winner for kept in expected.pins.values()] == ["lib"]
    for steps in ([[a, b], c], [a, [b, c]], [[a, c], b]):
        parts = [in_a_file(step) if isinstance(step, list) else step for step in steps]
        assert in_a_file(parts) == expected


def test_what_a_file_does_not_use_is_listed_with_its_time_once_it_may_count_again() -> None:
    fast, lib = pin("a", "fast", samples=100), pin("a", "lib", samples=50, winner_ms=2.0)
    both = in_a_file([file(fast), file(lib)])
    sources = {"both": both, "cache": file(failed=seen("fast"))}
    (row,) = compare(sources)
    assert row.is_conflict
    assert row.pins == {"both": fast, "cache": None}
    assert row.spare == {"both": (lib,), "cache": ()}
    assert row.pin == lib == merge([*sources.values()]).pins[lib.place]
    assert compare({"after": in_a_file([*sources.values()]), "other": file(lib)}) == []


def test_environments_of_all_files_are_kept() -> None:
    new = {"device": {"name": "8080"}}
    for order in ((file(), PinFile({}, {"g": new})), (PinFile({}, {"g": new}), file())):
        assert in_a_file(order).environments == {"e": CPU, "f": OTHER, "g": new}


def test_each_pin_of_a_merge_keeps_the_version_of_its_own_template() -> None:
    old, new = (replace(pin(digest, "t.x-1"), identities=(f"T {digest}",)) for digest in ("a", "b"))
    unknown = pin("c", "t.x-1")
    parts = [file(old), file(new), file(unknown)]
    for order in itertools.permutations(parts):
        merged = in_a_file(order)
        assert merged.pins == {each.place: each for each in (old, new, unknown)}
        assert merged.templates == {"t": ("T a", "T b")}
    later = replace(old, samples=9, identities=new.identities)
    again = in_a_file([*parts, file(later)])
    assert (again.pins[old.place], again.templates) == (later, {"t": ("T b",)})


def test_a_pin_of_which_files_name_different_versions_may_be_of_each_of_them() -> None:
    old, new = (replace(pin("a", "x-1"), identities=(f"T {version}",)) for version in (1, 2))
    assert merge([file(old), file(new)]).pins[old.place].identities == ("T 1", "T 2")


def test_of_two_pins_with_as_many_samples_one_is_kept_whatever_the_order() -> None:
    first, second = pin("a", "x-1", winner_ms=1.0), pin("a", "x-1", winner_ms=2.0)
    forwards, backwards = (
        merge(order).pins for order in ((file(first), file(second)), (file(second), file(first)))
    )
    assert forwards == backwards
    assert len(forwards) == 1


def test_disagreements_are_listed_by_operator_and_problem() -> None:
    later, sooner = pin("a", "x-1"), replace(pin("b", "x-1"), op="bmm")
    rows = compare({"one": file(later, sooner), "none": file()})
    assert [row.pin for row in rows] == [sooner, later]
