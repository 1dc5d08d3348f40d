from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from inductor_plugin.cache import document
from inductor_plugin.cache.document import (
    amount,
    amounts,
    flag,
    list_of,
    moment,
    number,
    optional,
    table,
    table_of,
    text,
    typed,
    unknown,
    whole,
)


def test_a_document_is_readable_json_and_comes_back():
    fields = {"name": "x", "list": [1.5, 2], "nested": {"a": {"b": [{"c": None}]}}, "text": "ü\n"}
    data = document.dump(fields)
    assert document.load(data) == fields
    shown = json.loads(data)
    assert len(shown.pop("sha256")) == 64
    assert shown == fields
    assert b"[1.5, 2]" in data


def test_every_changed_byte_is_noticed():
    data = document.dump({"name": "value", "number": 12})
    for index in range(len(data)):
        changed = bytes([*data[:index], data[index] ^ 1, *data[index + 1 :]])
        assert document.check(changed) is not None, index


@pytest.mark.parametrize("length", [0, 1, 20, 90, -1])
def test_a_cut_document_is_damaged(length: int):
    with pytest.raises(ValueError, match="checksum"):
        document.load(document.dump({"name": "value"})[:length])


def test_what_json_lacks_becomes_text():
    assert document.plain({"a": float("nan"), 1: (1, 2), "o": complex(1, 0)}) == {
        "a": "nan",
        "1": [1, 2],
        "o": "(1+0j)",
    }


def signed(body: str) -> bytes:
    """Return a document with this text after its checksum."""
    rest = body.encode()
    return b'{\n  "sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('"a": NaN}', "NaN"),
        ('"a": -Infinity}', "Infinity"),
        ('"a": "\\ud800"}', "surrogate"),
        ('"a": ' + "[" * 70 + "]" * 70 + "}", "nested more than 64"),
        ('"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('"a": [1, 2', "delimiter"),
    ],
)
def test_a_document_that_only_its_checksum_speaks_for_is_damaged(body: str, reason: str):
    assert document.check(signed(body)) is None
    with pytest.raises(ValueError, match=reason):
        document.load(signed(body))


def test_another_format_is_foreign_and_no_format_is_damage():
    document.check_format({"format": 1}, 1)
    with pytest.raises(document.ForeignError, match="format is 2, not 1"):
        document.check_format({"format": 2}, 1)
    for odd in ({}, {"format": "2"}, {"format": True}, {"format": -1}):
        with pytest.raises(ValueError, match="format") as caught:
            document.check_format(odd, 1)
        assert not isinstance(caught.value, document.ForeignError)


HUGE = 10**400
ODD: tuple[Any, ...] = (None, True, "1", b"1", [1], {"a": 1}, math.nan, math.inf, HUGE, -HUGE)


CASES: tuple[tuple[Callable[[Any], Any], Any, Any], ...] = (
    (text, "", [v for v in ODD if not isinstance(v, str)]),
    (number, -1, ODD),
    (amount, 1.5, [*ODD, -1]),
    (moment, 1.8e9, [*ODD, -1, 1e300]),
    (whole, 3, [*ODD, -1, 1.0]),
    (flag, False, [v for v in ODD if v is not True] + [1]),
    (table, {"a": [1]}, [v for v in ODD if not isinstance(v, dict)]),
    (table_of(text), {"a": "x"}, ODD),
    (list_of(whole), (1, 2), ["12", [1.0], {"a": 1}, None]),
    (optional(text), None, [1, []]),
)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_a_reader_returns_its_type_and_refuses_others(index: int):
    reader, taken, refused = CASES[index]
    result = reader(taken)
    assert result == taken
    for value in refused:
        with pytest.raises(ValueError, match=r"is|no"):
            reader(value)


def test_samples_are_taken_at_once_and_odd_ones_refused():
    for taken in ([], [0.0, 1.5], [0, 2.5], [1e308, 1e308]):
        assert amounts(taken) == tuple(map(float, taken))
    for refused in ("12", None, {"a": 1.0}):
        with pytest.raises(ValueError, match="is not a list"):
            amounts(refused)
    for value in (*ODD, -0.5):
        for samples in ([value], [1.0, value], [value, 1.0]):
            with pytest.raises(ValueError, match=r"is not a finite number|is negative"):
                amounts(samples)


def test_names_of_a_table_are_text():
    assert table({"ü": 1}) == {"ü": 1}
    for odd in ({1: 2}, {"a": 1, None: 2}, {"\ud800": 1}):
        with pytest.raises(ValueError, match="is not text"):
            table(odd)


def test_an_error_names_the_field_and_shows_only_the_start_of_its_value():
    with pytest.raises(ValueError, match=r"^its a: '9{59}\.\.\. is not a finite number$"):
        typed({"a": "9" * 1000}, {"a": number})
    with pytest.raises(ValueError, match="its b is missing"):
        typed({"a": 1}, {"b": number})
    with pytest.raises(ValueError, match="not an object"):
        typed([], {"b": number})


def test_fields_without_a_reader_are_unknown():
    assert typed({"a": 1, "b": 2}, {"a": whole}) == {"a": 1}
    assert unknown({"a": 1, "b": 2}, {"a"}) == {"b": 2}


@pytest.mark.parametrize("depth", [1, 63, 64, 65, 66, 129, 200])
@pytest.mark.parametrize("pair", ["list", "object", "both"])
def test_fields_are_nested_64_deep_at_most(depth: int, pair: str) -> None:
    value: Any = 0
    for level in range(depth):
        inner_list = pair == "list" or (pair == "both" and level % 2)
        value = [value] if inner_list else {"a": value}
    fields = {"text": "a text with [[[ {{{ ]", "deep": value}
    if depth < 64:  # the document itself is a level
        assert document.load(document.dump(fields))["deep"] == value
        return
    with pytest.raises(ValueError, match="nested"):
        document.load(document.dump(fields))
