from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache import Record, document
from inductor_plugin.cache.merge import merge
from inductor_plugin.cache.record import AHEAD_S, failed, from_fields, rounded, to_fields
from tests.support.cache.records import decision, measured, record


def test_a_record_comes_back_from_its_document():
    kept = record(
        measured("a"), measured("b", None, status="hung", reason="x"), decision=decision("a", 2)
    )
    assert from_fields(document.load(document.dump(to_fields(kept)))) == kept


@pytest.mark.parametrize(
    ("spread_ms", "compared", "noisy"),
    [(1.1, "a", True), (1.0, "a", False), (None, "a", False), (9.0, "b", False)],
)
def test_a_record_is_noisy_where_what_decided_it_is(
    spread_ms: float | None, compared: str, noisy: bool
):
    quiet, loud = measured("b", 1.0), measured("a", 1.0, spread_ms=spread_ms)
    kept = record(loud, quiet, decision=decision(compared))
    assert kept.noisy == noisy
    assert replace(kept, decision=None).noisy is False
    assert loud.noisy == ((spread_ms or 0.0) > 1.0)
    assert "noisy" not in to_fields(kept)  # it is derived, so that old records have it too


def test_samples_keep_the_digits_that_mean_something():
    kept = rounded(
        record(measured("a", 0.123456789, error=math.inf, samples_ms=(1.23456789, math.nan)))
    )
    assert kept.candidates["a"].samples_ms == (1.23457,)
    assert kept.candidates["a"].median_ms == 0.123457
    assert kept.candidates["a"].error is None


def test_the_factor_of_a_rejected_candidate_is_no_speedup():
    stays = replace(decision("a"), library="a", speedup=1.0, rejected_speedup=1.0123456)
    kept = record(measured("a"), decision=stays)
    fields = to_fields(kept)
    assert fields["decision"]["rejected_speedup"] == 1.01235
    assert from_fields(fields) == rounded(kept)
    del fields["decision"]["rejected_speedup"]
    fields["decision"]["speedup"] = 2.21  # an earlier version wrote it there
    assert (read := from_fields(fields).decision) is not None
    assert (read.speedup, read.rejected_speedup) == (1.0, 2.21)
    both = {**fields, "decision": {**fields["decision"], "rejected_speedup": 1.5}}
    assert (read := from_fields(both).decision) is not None
    assert (read.speedup, read.rejected_speedup) == (1.0, 1.5)
    fields["decision"]["library"] = "b"
    assert (read := from_fields(fields).decision) is not None
    assert (read.speedup, read.rejected_speedup) == (2.21, None)
    assert "rejected_speedup" not in to_fields(record(decision=decision("a")))["decision"]
    for odd in ("fast", -1.0, math.nan):
        fields["decision"]["rejected_speedup"] = odd
        with pytest.raises(ValueError, match="its decision: its rejected_speedup"):
            from_fields(fields)
    fields["decision"] = ["no", "decision"]
    with pytest.raises(ValueError, match="its decision"):
        from_fields(fields)


def test_fields_of_another_format_are_refused():
    with pytest.raises(document.ForeignError, match="format"):
        from_fields({**to_fields(record()), "format": 99})
    fields = to_fields(record(measured("a")))
    del fields["candidates"]["a"]["status"]
    with pytest.raises(ValueError, match="not a record: its candidates: its status is missing"):
        from_fields(fields)
    assert replace(record(), op="x").place.split("/")[1] == "x"


ODD: tuple[Any, ...] = (None, True, -1.0, math.nan, 1e300, "abc", [], ["x"], {"a": 1})


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the fields of a record in which one has an odd value."""
    sound = to_fields(record(measured("a"), decision=decision("a"), epilogue={"v": "1"}))
    for place in ("", "candidates.a", "decision"):
        for name in functools.reduce(
            lambda at, part: at[part], filter(None, place.split(".")), sound
        ):
            for value in ODD:
                fields = copy.deepcopy(sound)
                at = functools.reduce(
                    lambda at, part: at[part], filter(None, place.split(".")), fields
                )
                at[name] = value
                yield f"{place}.{name}={value!r}", fields


def test_a_field_of_another_type_never_gets_past_the_parser():
    """Each value that is read has the type its annotation promises; all else is a ValueError."""
    refused = 0
    for name, fields in variants():
        try:
            parsed = from_fields(fields)
        except ValueError:
            refused += 1
            continue
        assert sound_types(parsed), name
    assert refused > 100


def sound_types(parsed: Record) -> bool:
    rows, chosen = list(parsed.candidates.values()), parsed.decision
    texts = [
        parsed.environment,
        parsed.op,
        parsed.digest,
        parsed.describe,
        *parsed.rejected.values(),
    ]
    texts += [
        t for row in rows for t in (row.candidate, row.name, row.kind, row.status, row.reason)
    ]
    texts += [t for row in rows for t in (row.description, row.kernel or "")]
    numbers = [parsed.created, parsed.updated]
    for row in rows:
        numbers += [row.measured_at, *row.samples_ms]
        rest = (row.median_ms, row.spread_ms, row.error, row.compile_s)
        numbers += [value for value in rest if value is not None]
        if not isinstance(row.provenance, dict):
            return False
    if chosen is not None:
        texts += [chosen.winner, chosen.reason, chosen.library or ""]
        numbers += [chosen.margin, chosen.decided_at, chosen.speedup or 0.0]
    return all(type(t) is str for t in texts) and all(
        type(n) is float and math.isfinite(n) and n >= 0 for n in numbers
    )


def test_fields_of_a_newer_version_are_kept_and_written_back():
    fields = to_fields(record(measured("a"), decision=decision("a")))
    fields["energy_j"] = {"extra": 1}
    fields["candidates"]["a"]["energy_j"] = 1.5
    fields["decision"]["because"] = ["x"]
    parsed = from_fields(fields)
    assert to_fields(parsed) == fields
    older = record(measured("b"), updated=3000.0)
    for both in (merge(parsed, older), merge(older, parsed)):
        again = to_fields(both)
        assert again["energy_j"] == {"extra": 1}
        assert again["candidates"]["a"]["energy_j"] == 1.5
        assert again["decision"]["because"] == ["x"]


def test_times_of_a_clock_that_was_ahead_are_not_believed(monkeypatch: pytest.MonkeyPatch):
    now = 2_000_000.0
    monkeypatch.setattr("inductor_plugin.cache.record.time.time", lambda: now)
    ahead = record(
        measured("a", measured_at=now + 4e9),
        measured("b", measured_at=now + 10),
        decision=decision("a", decided_at=now + 4e9),
        updated=now + 4e9,
    )
    read = from_fields(to_fields(ahead))
    assert read.candidates["a"].measured_at == 0.0
    assert read.candidates["b"].measured_at == now + 10  # clocks may differ a little
    assert read.decision is not None
    assert (read.decision.decided_at, read.updated, read.created) == (0.0, now, 1000.0)
    fresh = record(measured("a", 7.0, measured_at=now - 60), updated=now - 60)
    assert merge(read, fresh).candidates["a"].median_ms == 7.0
    made_ahead = record(created=now + AHEAD_S + 1.0, updated=now)
    assert from_fields(to_fields(made_ahead)).created == now
    a_little = record(created=now + AHEAD_S, updated=now + AHEAD_S)
    assert from_fields(to_fields(a_little)) == a_little


NOTE = {
    "version": "1",
    "product": "bfloat16 full size=4,8 readers=0",
    "read 0": "bfloat16 row operand=0 elements=8 stride=0,1 offset=0",
    "step 0": "product",
}


def test_the_note_of_an_epilogue_is_kept() -> None:
    kept = record(measured("a"), epilogue=NOTE)
    assert from_fields(document.load(document.dump(to_fields(kept)))) == kept
    assert (
        document.dump(to_fields(kept)).count(b'\n    "step 0": "product"') == 1
    )  # a line for each


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
    # An earlier version writes none: a later note is better than that, an earlier one may be of other sizes.
    bare = replace(first, epilogue={})
    assert merge(second, bare).epilogue == merge(bare, second).epilogue == other
    assert merge(first, bare).epilogue == merge(bare, first).epilogue == NOTE
    later = replace(bare, updated=2000.0, describe="mm(7x512)")
    assert merge(first, later).epilogue == merge(later, first).epilogue == {}


def test_a_library_kernel_without_digest_and_error_is_read_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = replace(measured("mm", 2.0), kernel=None, error=None, compile_s=None)
    stored = record(library, measured("fast", 1.0), decision=decision("fast"))

    def alone(fields: Any) -> None:
        raise AssertionError("a candidate was looked at alone, which takes twice as long")

    monkeypatch.setattr("inductor_plugin.cache.record._measured", alone)
    again = from_fields(document.load(document.dump(to_fields(stored))))
    assert again.candidates == stored.candidates


@pytest.mark.parametrize(
    ("status", "misbehaved"),
    [("ok", False), ("skipped", False), ("pruned", False), ("hung", True), ("wrong", True)],
)
def test_what_was_not_run_has_not_failed(status: str, misbehaved: bool) -> None:
    assert failed(measured("a", None, status=status)) is misbehaved


@pytest.mark.parametrize(
    ("median_ms", "provenance", "noisy"),
    [
        (1.0, {"disturbed": True}, True),
        (1.0, {"disturbed": 1}, False),
        (1.0, {}, False),
        (None, {"disturbed": True}, False),
    ],
)
def test_a_timing_beside_other_work_is_noisy(
    median_ms: float | None, provenance: dict[str, Any], noisy: bool
) -> None:
    assert measured("a", median_ms, provenance=provenance).noisy is noisy
