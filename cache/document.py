"""The cache's file format: readable JSON whose first field is the SHA-256 of what follows it.

What lies in a cache may have been written by another version, by hand, or by someone else's export. So
each field is read by a reader of its type: a value of another one must not get further than the parser.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

T = TypeVar("T")

_SURROGATES = re.compile("[\ud800-\udfff]")
_HEAD = b'{\n  "sha256": "'
_TAIL = b'",\n'
_REST = len(_HEAD) + 64 + len(_TAIL)
_WIDTH = 96
_MAX_DEPTH = 64
"""Nesting up to which a document is read, as in keys; `plain` and `differences` recurse."""

_LATEST = 253402300799.0
"""The last second of the year 9999, as far as `time.localtime` goes."""

_SHOWN = 60
"""Characters of a value that an error shows."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


_NESTED, _TEXT, _FLOAT = frozenset({dict, list}), frozenset({str}), frozenset({float})
_NOTHING: dict[str, Any] = {}
"""Shared by all that have no unknown fields, so that 10,000 records do not keep 200,000 empty ones; never changed."""


class ForeignError(ValueError):
    """A sound document of another format: another version's, which is neither read nor removed."""


def dump(fields: Mapping[str, Any]) -> bytes:
    """Return the fields as a document with a checksum. Values that JSON lacks are written as text."""
    body = _pretty(plain(fields), "").encode()
    rest = body[2:]  # without "{\n"
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + _TAIL + rest


def check(data: bytes) -> str | None:
    """Return why these bytes are not a valid document, or None if they are."""
    if not data.startswith(_HEAD) or data[len(_HEAD) + 64 : _REST] != _TAIL:
        return "it does not start with its checksum"
    stated = data[len(_HEAD) : len(_HEAD) + 64]
    if stated != hashlib.sha256(data[_REST:]).hexdigest().encode():
        return "its checksum does not match its content"
    return None


def load(data: bytes) -> dict[str, Any]:
    """Return the fields of a checked document, without the checksum.

    Raises:
        ValueError: The bytes are damaged; the message gives the reason.
    """
    reason = check(data)
    if reason is not None:
        raise ValueError(reason)
    try:
        content = (b"{" + data[_REST:]).decode("utf-8", "surrogatepass")
        fields: dict[str, Any] = _DECODER.decode(content)
    except RecursionError:
        raise ValueError("its fields are nested too deeply") from None
    if data.count(b"{") + data.count(b"[") > _MAX_DEPTH and _too_deep(fields):
        raise ValueError(f"its fields are nested more than {_MAX_DEPTH} deep")
    if _SURROGATE.search(data):
        json.dumps(fields, ensure_ascii=False).encode()  # half of a character: UnicodeEncodeError
    return fields


def check_format(fields: Mapping[str, Any], number: int) -> None:
    """Check that the fields of a document are of a format.

    Raises:
        ForeignError: They are of another format.
        ValueError: They name no format.
    """
    stated = typed(fields, {"format": whole})["format"]
    if stated != number:
        raise ForeignError(f"its format is {stated}, not {number}")


def plain(value: Any) -> Any:
    """Return the value as JSON types; other objects and non-finite numbers become text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in cast("Sequence[Any]", value)]
    return str(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _too_deep(fields: dict[str, Any]) -> bool:
    """Return True if lists and objects are nested more than `_MAX_DEPTH` deep."""
    level: list[Any] = [fields]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for outer in level:
            values = cast("list[Any]", [*outer.values()] if isinstance(outer, dict) else outer)
            if not _NESTED.isdisjoint(map(type, values)):  # most lists are samples
                inner += [value for value in values if type(value) in _NESTED]
        if not inner:
            return False
        level = inner
    return True


def _pretty(value: Any, indent: str) -> str:
    """Return indented JSON in which lists of numbers and short values stay on one line."""
    if isinstance(value, dict) and value:
        fields = cast("dict[str, Any]", value)
        if indent and all(not isinstance(v, (dict, list)) for v in fields.values()):
            line = json.dumps(fields)
            if len(line) + len(indent) <= _WIDTH:
                return line
        inner = indent + "  "
        lines = (f"{inner}{json.dumps(k)}: {_pretty(v, inner)}" for k, v in fields.items())
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(
        isinstance(v, (dict, list)) for v in cast("list[Any]", value)
    ):
        inner = indent + "  "
        items = (inner + _pretty(v, inner) for v in cast("list[Any]", value))
        return "[\n" + ",\n".join(items) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def typed(fields: Any, readers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return the named fields, each as its reader returns it.

    Raises:
        ValueError: The fields are no object, one is missing, or one has another type.
    """
    named = cast("dict[str, Any]", fields) if type(fields) is dict else table(fields)
    with suppress(KeyError, ValueError):  # the common case at once; what is wrong is found below
        return {name: reader(named[name]) for name, reader in readers.items()}
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
    if len(fields) <= len(names) and all(map(names.__contains__, fields)):
        return _NOTHING
    return {name: value for name, value in fields.items() if name not in names}


def text(value: Any) -> str:
    """Return text.

    Raises:
        ValueError: It is something else, or half of a surrogate pair, which no file name can have.
    """
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, str) and not _SURROGATES.search(value):
        return value
    raise ValueError(f"{_short(value)} is not text")


def number(value: Any) -> float:
    """Return a finite number.

    Raises:
        ValueError: It is something else, True and False included.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):  # 10**400 is a whole number in JSON, and no float
            if math.isfinite(value):
                return float(value)
    raise ValueError(f"{_short(value)} is not a finite number")


def amount(value: Any) -> float:
    """Return a finite number that is not negative: milliseconds, seconds, an error.

    Raises:
        ValueError: It is something else.
    """
    if type(value) is float and 0.0 <= value < math.inf:
        return value
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
    if type(value) is dict:
        names = cast("dict[str, Any]", value)
        if _TEXT.issuperset(map(type, names)) and all(map(str.isascii, names)):
            return names.copy()
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


def amounts(value: Any) -> tuple[float, ...]:
    """Return a list of `amount`, as of samples, of which a record has a thousand.

    Raises:
        ValueError: It is something else.
    """
    if type(value) is list:
        numbers = cast("list[float]", value)
        # The sum is not finite if any is not; where large ones overflow, each is looked at.
        if (
            _FLOAT.issuperset(map(type, numbers))
            and numbers
            and min(numbers) >= 0.0
            and sum(numbers) < math.inf
        ):
            return tuple(numbers)
    return list_of(amount)(value)


def optional(reader: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Return a reader that takes None as well."""
    return lambda value: None if value is None else reader(value)


def _short(value: Any) -> str:
    form = repr(value)
    return form if len(form) <= _SHOWN else f"{form[:_SHOWN]}..."
