"""Values as the store has them: compressed JSON, in ASCII. Pure."""

from __future__ import annotations

import base64
import json
import zlib


def packed(value: object) -> str:
    """Return a value of JSON's types as a text."""
    data = json.dumps(value, separators=(",", ":")).encode()
    return base64.b85encode(zlib.compress(data)).decode("ascii")


def unpacked(stored: str) -> object:
    """Return a value out of the store.

    Raises:
        ValueError: It is damaged.
    """
    try:
        return json.loads(zlib.decompress(base64.b85decode(stored)))
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
