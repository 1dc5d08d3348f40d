"""Readers of a document's fields: each returns a value of one type, or raises.

What lies in a cache may have been written by another version, by hand, or by someone else's export.
A value of another type must not get further than the parser: `decide` would divide by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, TypeVar, cast

T = TypeVar("T")

_LATEST = 253402300799.0
"""The last second of the year 9999, as far as `time.localtime` goes."""

_SHOWN = 60
"""Characters of a value that an error shows."""


def typed(fields: Any, readers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return the named fields, each as its reader returns it.

    Raises:
        ValueError: The fields are no object, one is missing, or one has another type.
    """
    named = table(fields)
    values: dict[str, Any] = {}
    for name, reader in readers.items():
        if name not in named:
            raise ValueError(f"its {name} is missing")
        try:
            values[name] = reader(named[name])
        except ValueError as error:
            raise ValueError(f"its {name}: {error}") from None
    return values


def unknown(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the fields that this version does not know; a newer one may have written them."""
    return {name: value for name, value in fields.items() if name not in names}


def text(value: Any) -> str:
    """Return text.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, str):
        return value
    raise ValueError(f"{_short(value)} is not text")


def number(value: Any) -> float:
    """Return a finite number.

    Raises:
        ValueError: It is something else, True and False included.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):  # 10**400 is a whole number in JSON, and no float
            if isfinite(value):
                return float(value)
    raise ValueError(f"{_short(value)} is not a finite number")


def amount(value: Any) -> float:
    """Return a finite number that is not negative: milliseconds, seconds, an error.

    Raises:
        ValueError: It is something else.
    """
    result = number(value)
    if result < 0:
        raise ValueError(f"{_short(value)} is negative")
    return result


def moment(value: Any) -> float:
    """Return a time in seconds since 1970, before the year 10000.

    Raises:
        ValueError: It is something else.
    """
    result = amount(value)
    if result > _LATEST:
        raise ValueError(f"{_short(value)} is no time")
    return result


def whole(value: Any) -> int:
    """Return a whole number from 0 to 2^63 - 1.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    raise ValueError(f"{_short(value)} is not a whole number from 0 to 2^63 - 1")


def flag(value: Any) -> bool:
    """Return True or False.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, bool):
        return value
    raise ValueError(f"{_short(value)} is neither true nor false")


def table(value: Any) -> dict[str, Any]:
    """Return values by name.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, Mapping):
        return {text(name): content for name, content in cast("Mapping[Any, Any]", value).items()}
    raise ValueError(f"{_short(value)} is not an object with names")


def table_of(reader: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:
    """Return a reader of values by name, each read by ``reader``."""
    return lambda value: {name: reader(content) for name, content in table(value).items()}


def list_of(reader: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """Return a reader of a list whose elements are read by ``reader``."""

    def read(value: Any) -> tuple[T, ...]:
        if isinstance(value, (list, tuple)):
            return tuple(map(reader, cast("list[Any]", value)))
        raise ValueError(f"{_short(value)} is not a list")

    return read


def optional(reader: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Return a reader that takes None as well."""
    return lambda value: None if value is None else reader(value)


def _short(value: Any) -> str:
    form = repr(value)
    return form if len(form) <= _SHOWN else f"{form[:_SHOWN]}..."
