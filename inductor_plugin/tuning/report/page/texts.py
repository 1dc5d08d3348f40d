"""Values that many records share, each written once: a record names it by its index in a list."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from inductor_plugin.cache import report

T = TypeVar("T", bound=Hashable)


class Shared(Generic[T]):
    """A list of distinct values, in the order in which they were first asked for."""

    def __init__(self) -> None:
        self._places: dict[T, int] = {}

    def place(self, value: T) -> int:
        """Return the index of a value in the list; a new one is appended."""
        return self._places.setdefault(value, len(self._places))

    @property
    def values(self) -> list[T]:
        """The list."""
        return list(self._places)


class Texts(Shared[str]):
    """Distinct texts, without characters that a browser or a reader would obey, such as those that turn writing around."""

    def place(self, value: str) -> int:
        """Return the index of a text, `printable` line by line."""
        return super().place(report.plain_text(value))
