"""The cache's file format: readable JSON whose first field is the SHA-256 of what follows it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from inductor_plugin.cache.fields import typed, whole

_HEAD = b'{\n  "sha256": "'
_TAIL = b'",\n'
_REST = len(_HEAD) + 64 + len(_TAIL)
_WIDTH = 96
_MAX_DEPTH = 64
"""Nesting up to which a document is read: half of what fits the stack of `plain` and `differences`."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


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
        fields: dict[str, Any] = json.loads(b"{" + data[_REST:], parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its fields are nested too deeply") from None
    if _too_deep(fields):
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


def _too_deep(fields: dict[str, Any]) -> bool:
    """Return True if lists and objects are nested more than `_MAX_DEPTH` deep."""
    level: list[Any] = [fields]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (
                cast("dict[str, Any]", outer).values() if isinstance(outer, dict) else outer
            )
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
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
