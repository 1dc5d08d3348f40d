"""Results of benchmarks as tables, sets of samples and figures, whatever their form; what does not fit is counted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, TypeGuard

from inductor_plugin.cache.document import is_array, is_object
from inductor_plugin.cache.report import number
from inductor_plugin.errors import printable
from inductor_plugin.tuning.report.page.candidates import digits

SAMPLES = "samples_ms"
TITLES = ("name", "shape", "what", "op")
"""Columns that name a row."""
MOST_ROWS = 5_000
"""Rows of a table, figures, and rows of a comparison."""
MOST_ARMS = 500
"""Arms of a set of samples, each a line of a drawing."""
MOST_COLUMNS = 100
_LISTED = 12
"""Values of a list that are written each."""
_Rows = list[Mapping[str, Any]]


def bench(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables, samples and figures in the JSON of a benchmark.

    A list of objects is a table: objects within its rows are further columns, lists of objects and objects of objects a
    table of their own. An object that has objects with ``samples_ms`` is a set of samples. Every other value is a figure,
    named by its path; a list of values is one in few words. ``left_out`` counts the values that are in none of them.
    """
    tables: list[dict[str, Any]] = []
    sets: list[dict[str, Any]] = []
    figures: list[list[Any]] = []
    left_out = 0
    for path, value in _walk(content):
        if _is_table(value):
            tables += _tables(path, value)
        elif is_object(value):
            drawn, unknown = _samples(path, value)
            sets += [drawn] if drawn["rows"] else []
            left_out += unknown
        elif len(figures) < MOST_ROWS:
            figures.append([printable(path), _plain(value)])
        else:
            left_out += 1
    return {"tables": tables, "samples": sets, "figures": figures, "left_out": left_out}


def _walk(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield tables, sets of samples and figures by path. A stack, since a document may be deeper than calls may."""
    stack: list[tuple[str, Any]] = [("", content)]
    while stack:
        path, value = stack.pop()
        if is_object(value):
            arms = {n: v for n, v in value.items() if is_object(v) and is_array(v.get(SAMPLES))}
            if arms:
                yield path, arms
            stack += reversed(list(_within(path, value, arms)))
        elif is_array(value) and not _is_table(value) and any(map(is_array, value)):
            stack += [(joined(path, str(n)), each) for n, each in enumerate(value)][::-1]
        else:
            yield path, value


def _within(
    path: str, value: Mapping[str, Any], arms: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield what is in an object besides the samples of its arms."""
    for name, inner in value.items():
        at = joined(path, name)
        if name not in arms:
            yield at, inner
            continue
        for field, each in inner.items():
            if field != SAMPLES:
                yield joined(at, field), each


def _is_table(value: Any) -> TypeGuard[list[Any]]:
    return is_array(value) and any(map(is_object, value))


def _title(row: Any, index: int) -> str:
    if not is_object(row):
        return str(index)
    names = [str(row[name]) for name in TITLES if name in row]
    return " ".join(dict.fromkeys(names)) or str(index)


def joined(path: str, name: str) -> str:
    """Return the path of a field within another."""
    return f"{path} > {name}" if path else name


def _tables(path: str, rows: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield a list of objects as a table, then the lists of objects in its rows, each with the title of its row."""
    queue: list[tuple[str, _Rows]] = [(path, list(map(_row, rows)))]
    for at, each in queue:
        cells: list[dict[str, Any]] = []
        inner: dict[str, _Rows] = {}
        for index, row in enumerate(each):
            flat, lists = _cells(row)
            cells.append(flat)
            for name, values in lists.items():
                of = {"of": _title(row, index)}
                inner.setdefault(name, []).extend({**of, **_row(value)} for value in values)
        yield _table(at, cells)
        queue += [(joined(at, name), values) for name, values in inner.items()]


def _row(value: Any) -> Mapping[str, Any]:
    return value if is_object(value) else {"value": value}


def _cells(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the values of a row by dotted name, and its lists of objects. An object whose values are all objects is such a list: its names are data."""
    cells: dict[str, Any] = {}
    lists: dict[str, list[Any]] = {}
    stack = list(row.items())[::-1]
    while stack:
        name, value = stack.pop()
        if is_object(value) and value and all(map(is_object, value.values())):
            lists[name] = [{"key": key, **each} for key, each in value.items()]
        elif is_object(value):
            stack += [(f"{name}.{field}", each) for field, each in value.items()][::-1]
        elif _is_table(value):
            lists[name] = value
        else:
            cells[name] = _plain(value)
    return cells, lists


def _table(path: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = names[:MOST_COLUMNS]
    return {
        "name": printable(path or "rows"),
        "columns": [printable(name) for name in shown],
        "rows": [[row.get(name) for name in shown] for row in rows[:MOST_ROWS]],
        "left_out": max(0, len(rows) - MOST_ROWS),
        "columns_left_out": len(names) - len(shown),
    }


def _samples(path: str, arms: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a set of samples, and how many of its values are no numbers, or of arms that are too many."""
    rows: list[list[Any]] = []
    left_out = 0
    for name, fields in arms.items():
        values = [amount for each in fields[SAMPLES] if (amount := number(each)) is not None]
        left_out += len(fields[SAMPLES]) - len(values)
        if len(rows) == MOST_ARMS:
            left_out += len(values)
        elif values:
            rows.append([printable(name), [digits(value) for value in values]])
    return {"name": printable(path or "samples"), "rows": rows}, left_out


def _plain(value: Any) -> Any:
    """Return a cell: a finite number, a switch, text, None for nothing; a list of values in few words."""
    if isinstance(value, bool) or value is None:
        return value
    if is_array(value):
        return _listed(value)
    amount = number(value)
    return printable(str(value)) if amount is None else digits(amount)


def _listed(values: Sequence[Any]) -> str:
    """Return a list as text: each of its values if they are few, else how many there are and their range."""
    every = list(_leaves(values))
    amounts = [amount for each in every if (amount := number(each)) is not None]
    if len(every) <= _LISTED:
        return ", ".join(str(_plain(each)) for each in every) or "none"
    if len(amounts) < len(every):
        first = ", ".join(str(_plain(each)) for each in every[:_LISTED])
        return f"{len(every)} values: {first} ..."
    low, middle, high = (digits(each) for each in (min(amounts), median(amounts), max(amounts)))
    return f"{len(every)} values from {low} to {high}, median {middle}"


def _leaves(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the values of a list and of the lists in it; of an object in them, its text."""
    stack = list(values)[::-1]
    while stack:
        value = stack.pop()
        if is_array(value):
            stack += list(value)[::-1]
        else:
            yield value
