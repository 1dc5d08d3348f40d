from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from inductor_plugin.cache.fields import (
    amount,
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
