"""Numbers that two results of a benchmark name alike, side by side. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from inductor_plugin.cache.document import is_array, is_object
from inductor_plugin.cache.report import number
from inductor_plugin.errors import printable
from inductor_plugin.tuning.report.page.bench import SAMPLES, TITLES, joined
from inductor_plugin.tuning.report.page.candidates import digits

_Title = tuple[str, ...]
_Rows = Sequence[Mapping[str, Any]]
_MOST_NAMES = 32
"""Columns that are tried as parts of a row's title."""
_MEASURED = re.compile(r"(?:^|_)(?:ns|us|ms|s|seconds|bytes)\Z")
"""Columns of whole numbers that are results, by their unit."""


def compared(left: Mapping[str, Any], right: Mapping[str, Any]) -> tuple[list[list[Any]], int]:
    """Return the numbers that two results of a benchmark name alike, and how many are left out.

    Rows of a list are alike if their titles are. A title is made of ``name``, ``shape``, ``what`` and ``op``, then of
    further texts, then of whole numbers that stand before a text, until each row of both lists has its own. Rows without
    any of these are alike by their place. What several rows of a side share is no title: the left's numbers in such rows
    are left out and counted.

    Returns:
        Rows of path, left, right, and right over left; and the count.
    """
    rows: list[list[Any]] = []
    left_out = 0
    stack: list[tuple[str, Any, Any]] = [("", left, right)]
    while stack:  # a document may be deeper than calls may
        path, value, other = stack.pop()
        if is_object(value) and is_object(other):
            named = [(n, each) for n, each in value.items() if n != SAMPLES and n in other]
            stack += [(joined(path, name), each, other[name]) for name, each in named][::-1]
        elif is_array(value) and is_array(other):
            pairs, ambiguous = _paired(value, other)
            stack += [(joined(path, title), *pair) for title, *pair in pairs][::-1]
            left_out += sum(map(_numbers, ambiguous))
        elif (amount := number(value)) is not None and (second := number(other)) is not None:
            ratio = digits(second / amount, 4) if amount else None
            rows.append([printable(path), digits(amount), digits(second), ratio])
    return rows, left_out


def _paired(left: list[Any], right: list[Any]) -> tuple[list[tuple[str, Any, Any]], list[Any]]:
    """Return the elements that two lists name alike, by their titles, and those of the left with a title that is shared."""
    sides = [[each for each in values if is_object(each)] for values in (left, right)]
    names = _identifying(sides)
    if not names:
        return [(str(n), *pair) for n, pair in enumerate(zip(left, right, strict=False))], []
    pairs: list[tuple[str, Any, Any]] = [
        (str(n), value, other)
        for n, (value, other) in enumerate(zip(left, right, strict=False))
        if not is_object(value) and not is_object(other)
    ]
    lefts, rights = (_by_title(rows, names) for rows in sides)
    ambiguous: list[Any] = []
    for n, (title, values) in enumerate(lefts.items()):
        others = rights.get(title, [])
        if len(values) == len(others) == 1:
            pairs.append((_text(title) or str(n), values[0], others[0]))
        elif others:
            ambiguous += values
    return pairs, ambiguous


def _identifying(sides: Sequence[_Rows]) -> list[str]:
    """Return the columns whose values are the title of a row."""
    columns = _columns(sides)
    names = [name for name in TITLES if name in columns]
    for name in [name for name in columns if name not in names][:_MOST_NAMES]:
        counts = [len(_by_title(rows, names)) for rows in sides]
        if names and counts == list(map(len, sides)):
            break
        if [len(_by_title(rows, [*names, name])) for rows in sides] != counts or not names:
            names.append(name)
    return names


def _columns(sides: Sequence[_Rows]) -> list[str]:
    """Return the columns of texts, then those of whole numbers that stand before one: a parameter is written before results."""
    kinds: dict[str, set[type]] = {}
    for row in (row for rows in sides for row in rows):
        for name, value in row.items():
            kinds.setdefault(name, set()).add(_kind(value))
    texts = [name for name, types in kinds.items() if types <= {str, bool, type(None)}]
    texts = [name for name in texts if str in kinds[name]]
    before = list(kinds)[: 1 + max(map(list(kinds).index, texts), default=-1)]
    whole = [name for name in before if kinds[name] == {int} and not _MEASURED.search(name)]
    return texts + whole


def _kind(value: Any) -> type:
    """Return the type of a value; that of its elements for a list of whole numbers, such as a shape."""
    if is_array(value) and value and all(type(each) is int for each in value):
        return int
    return cast("type", value.__class__)


def _by_title(rows: _Rows, names: Sequence[str]) -> dict[_Title, list[Mapping[str, Any]]]:
    titled: dict[_Title, list[Mapping[str, Any]]] = {}
    for row in rows:
        titled.setdefault(tuple(_cell(row.get(name)) for name in names), []).append(row)
    return titled


def _cell(value: Any) -> str:
    if _kind(value) is int:
        return "x".join(map(str, value)) if is_array(value) else str(value)
    return str(value) if isinstance(value, str | bool | float) else ""


def _text(title: _Title) -> str:
    return " ".join(dict.fromkeys(part for part in title if part))


def _numbers(content: Any) -> int:
    """Return how many numbers there are in a row besides samples."""
    return sum(1 for value in _leaves(content) if number(value) is not None)


def _leaves(content: Any) -> Iterator[Any]:
    stack = [content]
    while stack:
        value = stack.pop()
        if is_object(value):
            stack += [each for name, each in value.items() if name != SAMPLES]
        elif is_array(value):
            stack += value
        else:
            yield value
