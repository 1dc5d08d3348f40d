"""Values that live as long as an object of Inductor, because they are its attributes.

A `weakref.WeakKeyDictionary` is no place for a value that leads back to its key (the choices of a graph's call lead
to its nodes, and those of an attention to the graph): it holds the value, the value holds the key, and neither ever
goes. A cycle of two objects does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_ATTRIBUTE = "_inductor_plugin"


def attached(owner: object, name: str, create: Callable[[], T]) -> T:
    """Return the value that ``owner`` has under a name, created at the first call."""
    values: dict[str, Any] = vars(owner).setdefault(_ATTRIBUTE, {})
    if name not in values:
        values[name] = create()
    return values[name]
