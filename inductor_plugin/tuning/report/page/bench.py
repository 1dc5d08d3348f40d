"""Results of benchmarks as tables, sets of samples and figures, whatever their form. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inductor_plugin.cache.document import is_array, is_object
from inductor_plugin.cache.report import number, printable
from inductor_plugin.tuning.report.page.candidates import digits

SAMPLES = "samples_ms"
_MOST_ROWS = 5_000
_MOST_COLUMNS = 24
_DEPTH = 8


def bench(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables, samples and figures in the JSON of a benchmark.

    A list of objects is a table, an object that has objects with ``samples_ms`` is a set of samples, every other number or
    text is a figure, named by its path.
    """
    tables: list[dict[str, Any]] = []
    sets: list[dict[str, Any]] = []
    figures: list[list[Any]] = []
    for path, value in _walk("", content, 0):
        if is_array(value):
            tables.append(_table(path, [row for row in value if is_object(row)]))
        elif is_object(value):
            sets.append(_samples(path, value))
        else:
            figures.append([printable(path), _plain(value)])
    return {"tables": tables, "samples": sets, "figures": figures[:_MOST_ROWS]}


def compared(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[list[Any]]:
    """Return the numbers that two results of a benchmark name alike: path, left, right, and right over left."""
    lefts, rights = dict(_numbers("", left, 0)), dict(_numbers("", right, 0))
    return [
        [printable(path), digits(value), digits(other), digits(other / value, 4) if value else None]
        for path, value in lefts.items()
        if (other := rights.get(path)) is not None
    ][:_MOST_ROWS]


def _walk(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _DEPTH:
        return
    if is_object(value):
        arms = {n: v for n, v in value.items() if is_object(v) and is_array(v.get(SAMPLES))}
        if arms:
            yield path, arms
        for name, inner in value.items():
            if name not in arms:
                yield from _walk(_joined(path, name), inner, depth + 1)
    elif is_array(value):
        if any(map(is_object, value)):
            yield path, value
    else:
        yield path, value


def _numbers(path: str, value: Any, depth: int) -> Iterator[tuple[str, float]]:
    """Yield numbers by path; elements of a list by what names them, else by their place."""
    if depth > _DEPTH:
        return
    if is_object(value):
        for name, inner in value.items():
            if name != SAMPLES:
                yield from _numbers(_joined(path, name), inner, depth + 1)
    elif is_array(value):
        for index, inner in enumerate(value):
            yield from _numbers(_joined(path, _title(inner, index)), inner, depth + 1)
    elif (amount := number(value)) is not None:
        yield path, amount


def _title(row: Any, index: int) -> str:
    if not is_object(row):
        return str(index)
    names = [str(row[name]) for name in ("name", "shape", "what", "op") if name in row]
    return " ".join(dict.fromkeys(names)) or str(index)


def _joined(path: str, name: str) -> str:
    return f"{path} > {name}" if path else name


def _table(path: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for row in rows for name in row if _is_cell(row[name])))
    names = names[:_MOST_COLUMNS]
    return {
        "name": printable(path or "rows"),
        "columns": [printable(name) for name in names],
        "rows": [[_plain(row.get(name)) for name in names] for row in rows[:_MOST_ROWS]],
        "left_out": max(0, len(rows) - _MOST_ROWS),
    }


def _samples(path: str, arms: Mapping[str, Any]) -> dict[str, Any]:
    rows: list[list[Any]] = []
    for name, fields in arms.items():
        values = [amount for each in fields[SAMPLES] if (amount := number(each)) is not None]
        if values:
            rows.append([printable(name), [digits(value) for value in values]])
    return {"name": printable(path or "samples"), "rows": rows}


def _is_cell(value: Any) -> bool:
    return not is_object(value) and not is_array(value)


def _plain(value: Any) -> Any:
    """Return a cell: a finite number, a switch, text, or None for what is none of them."""
    if isinstance(value, bool) or value is None:
        return value
    amount = number(value)
    if amount is not None:
        return digits(amount)
    return printable(str(value)) if _is_cell(value) else None
