"""The gate between a record and a script: only what is checked here becomes code. Pure.

A record may be someone else's, from an archive or a bug report. Its texts are written into the script as
literals (`repr`), into comments and the docstring by `prose`, and as code only if a function of this module
returns them. What is refused leaves a script with metadata only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import cast

from inductor_plugin.cache import report

DTYPES = frozenset(
    (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("float8_e8m0fnu", "float4_e2m1fn_x2"),
    )
)
"""Names of torch's dtypes that products and attentions have."""

_DESCRIBE = re.compile(r"\w{1,64}\([\w, ]*\)( \+ [\w.]+)?", re.ASCII)
_DEPTH = 4


def dtype(value: object) -> str:
    """Return the name of a dtype, without ``torch.``.

    Raises:
        ValueError: torch has no such dtype.
    """
    return word(value, DTYPES, "dtype")


def word(value: object, known: Collection[str], what: str) -> str:
    """Return a text if it is one of the known ones.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{value!r} is no {what} that this version knows")
    return value


def literal(value: object) -> str:
    """Return a scalar argument as Python: a finite number, a switch, None, or a list of these.

    Raises:
        ValueError: It is something else.
    """
    if not _is_number(value, _DEPTH):
        raise ValueError(f"{value!r} is no number")
    return repr(value)


def _is_number(value: object, depth: int) -> bool:
    if isinstance(value, list | tuple) and depth:
        return all(_is_number(item, depth - 1) for item in cast("list[object]", value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int)


def describe(value: str) -> str:
    """Return a problem's one-line description: ``mm(512x512, 512x2048) + relu``.

    Raises:
        ValueError: It is something else.
    """
    if not _DESCRIBE.fullmatch(value):
        raise ValueError(f"{value!r} describes no call")
    return value


def prose(text: str) -> str:
    """Return a text for one line of a comment or a docstring, which it cannot end."""
    return report.printable(text).replace("\\", "\\\\").replace('"""', "'''")
