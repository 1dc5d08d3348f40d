"""The cache's file format: readable JSON whose first field is the SHA-256 of what follows it.

What lies in a cache may have been written by another version, by hand, or by someone else's export. So
each field is read by a reader of its type: a value of another one must not get further than the parser.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard, TypeVar, cast

T = TypeVar("T")

_SURROGATES = re.compile("[\ud800-\udfff]")
_HEAD = b'{\n  "sha256": "'
_TAIL = b'",\n'
_REST = len(_HEAD) + 64 + len(_TAIL)
_WIDTH = 96
_MAX_DEPTH = 64
"""Nesting up to which a document is read, as in keys; `plain` and `differences` recurse."""

LATEST = 253402300799.0
"""The last second of the year 9999, as far as `time.localtime` goes."""

_SHOWN = 60
"""Characters of a value that an error shows."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


_NESTED, _TEXT, _FLOAT = frozenset({dict, list}), frozenset({str}), frozenset({float})
NOTHING: dict[str, Any] = {}
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


def load(data: bytes, *, any_depth: bool = False) -> dict[str, Any]:
    """Return the fields of a checked document, without the checksum.

    Args:
        data: The bytes.
        any_depth: True if all fields go through readers, which see how deep they are nested: that halves the time.

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
    if not any_depth:
        _refuse_depth(fields)
    if b"\\" in data and _SURROGATE.search(data):
        json.dumps(fields, ensure_ascii=False).encode()  # half of a character: UnicodeEncodeError
    return fields


def check_format(fields: Mapping[str, Any], number: int) -> None:
    """Check that the fields of a document are of a format.

    Raises:
        ForeignError: They are of another format.
        ValueError: They name no format.
    """
    stated = fields.get("format")
    if type(stated) is int and stated == number:
        return
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


def inner(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the fields inside others; none if they are something else."""
    value = fields.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def refuse_constant(name: str) -> None:
    """Raise ValueError for NaN and infinities, which JSON does not have (``parse_constant`` of a decoder)."""
    raise ValueError(f"it holds {name}, which is no number")


def finite(digits: str) -> float:
    """Return the number that a document spells; 1e999 would be read as infinity (``parse_float`` of a decoder).

    Raises:
        ValueError: It is too large.
    """
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"it holds {_short(digits)}, which is too large a number")
    return value


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def _refuse_depth(fields: dict[str, Any]) -> None:
    """Raise ValueError if lists and objects are nested more than `_MAX_DEPTH` deep."""
    if _NESTED.isdisjoint(map(type, fields.values())):
        return
    level: list[Any] = [fields]
    for _ in range(_MAX_DEPTH):
        level = [
            value
            for outer in level
            for value in (outer.values() if is_object(outer) else outer)
            if type(value) in _NESTED
        ]
        if not level:
            return
    raise ValueError(f"its fields are nested more than {_MAX_DEPTH} deep")


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
    named = fields if is_object(fields) else table(fields)
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
        return NOTHING
    others = {name: value for name, value in fields.items() if name not in names}
    _refuse_depth(others)
    return others


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
    if result > LATEST:
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
        ValueError: It is something else, or nested too deeply.
    """
    values = names_of(value)
    _refuse_depth(values)
    return values.copy()


def names_of(value: Any) -> dict[str, Any]:
    """Return an object whose names are text; its values are for others to look at.

    Raises:
        ValueError: It is something else.
    """
    if is_object(value) and are_texts(value):
        return value
    if isinstance(value, Mapping):
        return {text(name): content for name, content in cast("Mapping[Any, Any]", value).items()}
    raise ValueError(f"{_short(value)} is not an object with names")


def table_of(reader: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:
    """Return a reader of values by name, each read by ``reader``."""
    return lambda value: {name: reader(content) for name, content in names_of(value).items()}


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
    if is_array(value) and are_amounts(value):
        return tuple(value)
    return list_of(amount)(value)


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return True for an object of JSON, whose names are text."""
    return type(value) is dict


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Return True for an array of JSON."""
    return type(value) is list


def are_texts(values: Iterable[Any]) -> bool:
    """Return True if each is text, as `text` has it; False where it is to look at each."""
    every = tuple(values)
    return _TEXT.issuperset(map(type, every)) and "".join(every).isascii()


def are_amounts(values: Iterable[Any]) -> bool:
    """Return True if each is an `amount`; False where that is to look at each."""
    every = tuple(values)
    # The sum is not finite if any is not, or if large ones overflow.
    is_usual = bool(every) and _FLOAT.issuperset(map(type, every))
    return is_usual and min(every) >= 0.0 and sum(every) < math.inf


def optional(reader: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Return a reader that takes None as well."""
    return lambda value: None if value is None else reader(value)


def _short(value: Any) -> str:
    form = repr(value)
    return form if len(form) <= _SHOWN else f"{form[:_SHOWN]}..."
