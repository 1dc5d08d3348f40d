"""Cache keys: named fields, their digest, and the differences of two keys."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, cast

SCHEMA = 1
"""Number of the cache's formats; part of every digest, so that formats never mix."""

ABSENT = "(absent)"
"""Value of a field that only the other side has."""

_MAX_DEPTH = 64


@dataclass(frozen=True)
class Difference:
    """One field in which two keys differ.

    Attributes:
        path: The field, nested names joined by dots: ``inputs.0.size``.
        left: Its value on the left, or `ABSENT`.
        right: Its value on the right, or `ABSENT`.
    """

    path: str
    left: Any
    right: Any


@dataclass(frozen=True)
class KernelKey:
    """What a compiled kernel depends on, one field per cause of change.

    Attributes:
        template: Name of its template.
        source: Digest of its source text.
        config: Tile sizes and other choices, in words or as a digest.
        target: The machine it is compiled for: ``sm_90a``, ``x86_64-avx512`` ...
        toolchain: Compiler and version.
        flags: Compiler flags.
    """

    template: str
    source: str
    config: str
    target: str
    toolchain: str
    flags: str

    def fields(self) -> dict[str, str]:
        """Return the named fields as plain JSON values."""
        return asdict(self)

    @cached_property
    def digest(self) -> str:
        """The key's name in the cache: 64 hexadecimal digits."""
        return digest_of(self.fields())


def digest_of(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the fields as sorted JSON, schema number included, in hexadecimal.

    Tuples count as lists. The order of fields does not matter; the type of a value does.

    Raises:
        TypeError: A value has no stable form (an object, a set, not a number), or a name is not text.
    """
    plain = _stable({"schema": SCHEMA, "fields": fields}, "", 0)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    """Return the fields in which two mappings differ, nested ones by dotted path."""
    return list(_differences("", left, right))


def _stable(value: Any, path: str, depth: int) -> Any:
    """Return the value as JSON types; raise TypeError if it has no stable form."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {_name(k, path): _stable(v, f"{path}.{k}", depth + 1) for k, v in items}
        if isinstance(value, (list, tuple)):
            values = cast("Sequence[Any]", value)
            return [_stable(v, f"{path}.{i}", depth + 1) for i, v in enumerate(values)]
    raise TypeError(
        f"key field {path.removeprefix('.fields.')!r} has no stable form: {value!r} "
        f"({type(value).__name__}); use text, whole or finite numbers, lists or mappings of them"
    )


def _name(name: Any, path: str) -> str:
    if isinstance(name, str):
        return name
    raise TypeError(
        f"a field of {path.removeprefix('.fields') or 'the key'} is named {name!r} "
        f"({type(name).__name__}); names must be text"
    )


def _differences(path: str, left: Any, right: Any) -> Iterator[Difference]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        yield from _mappings(
            path, cast("Mapping[str, Any]", left), cast("Mapping[str, Any]", right)
        )
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        lefts, rights = list(cast("Sequence[Any]", left)), list(cast("Sequence[Any]", right))
        if len(lefts) == len(rights) and any(isinstance(v, (Mapping, list, tuple)) for v in lefts):
            for index, (a, b) in enumerate(zip(lefts, rights, strict=True)):
                yield from _differences(f"{path}.{index}" if path else str(index), a, b)
        elif lefts != rights:
            yield Difference(path, lefts, rights)
    elif repr(cast("Any", left)) != repr(right):  # distinguishes 1 from True and from 1.0
        yield Difference(path, left, right)


def _mappings(path: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Difference]:
    for name in sorted({*left, *right}):
        inner = f"{path}.{name}" if path else name
        if name not in left:
            yield Difference(inner, ABSENT, right[name])
        elif name not in right:
            yield Difference(inner, left[name], ABSENT)
        else:
            yield from _differences(inner, left[name], right[name])
