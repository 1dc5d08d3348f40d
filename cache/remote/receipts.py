"""What this process has written to a remote, read back later: where a store does not compare, another machine may have replaced it.

Bytes that are no edition may have been damaged on their way only. A record is written once more because of them, and no more: with a
store that damages all it sends, its editions would be used up (`MOST_EDITIONS`).
"""

from __future__ import annotations

import errno
import hashlib
import threading
from dataclasses import dataclass, field
from enum import Enum, auto

from inductor_plugin.cache.remote.edition import parse_edition
from inductor_plugin.cache.remote.files import Files
from inductor_plugin.cache.remote.name import Place

_TOGETHER = 64
"""Editions that are read at once; a usual one has 5 to 50 KB."""


class _Fate(Enum):
    """What has become of an edition: whole, gone or another machine's, or bytes that are no edition."""

    THERE = auto()
    REPLACED = auto()
    DAMAGED = auto()


@dataclass(frozen=True)
class _Receipt:
    place: Place
    name: str
    size: int
    sha256: str


@dataclass(eq=False)
class Receipts:
    """Editions that were written; used by any thread."""

    _open: list[_Receipt] = field(default_factory=list[_Receipt])
    _damaged: set[Place] = field(default_factory=set[Place])
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_open(self) -> bool:
        """Whether there are some that were not looked at since they were written."""
        return bool(self._open)

    def add(self, place: Place, name: str, data: bytes) -> None:
        """Remember an edition of a record."""
        receipt = _Receipt(place, name, len(data), hashlib.sha256(data).hexdigest())
        with self._guard:
            self._open.append(receipt)

    def lost(self, files: Files, timeout_s: float) -> tuple[list[Place], int]:
        """Return the records whose editions are not there as they were written, and how many bytes were read; forget them all.

        Raises:
            OSError: An edition could not be read; the next call looks at all of them.
        """
        seen: dict[_Receipt, _Fate] = {}
        read_bytes = 0
        with self._guard:
            left = [*self._open]
        for start in range(0, len(left), _TOGETHER):
            some = left[start : start + _TOGETHER]
            names, sizes = [each.name for each in some], [each.size for each in some]
            for each, content in zip(some, files.read(names, sizes, timeout_s), strict=True):
                seen[each] = _fate(each, content)
                read_bytes += len(content) if isinstance(content, bytes) else 0
        with self._guard:  # all or none: a lost record has to be returned, or it is not rewritten
            self._open = [each for each in self._open if each not in seen]
            damaged = {each.place for each, fate in seen.items() if fate is _Fate.DAMAGED}
            again = damaged & self._damaged
            self._damaged |= damaged
        lost = [
            each.place
            for each, fate in seen.items()
            if fate is _Fate.REPLACED or (fate is _Fate.DAMAGED and each.place not in again)
        ]
        return lost, read_bytes


def _fate(receipt: _Receipt, content: bytes | OSError) -> _Fate:
    """Return what has become of an edition, from what is read under its name.

    Raises:
        OSError: It could not be read.
    """
    if isinstance(content, OSError):
        if isinstance(content, FileNotFoundError) or content.errno == errno.EFBIG:
            return _Fate.REPLACED
        raise content
    if hashlib.sha256(content).hexdigest() == receipt.sha256:
        return _Fate.THERE
    try:
        parse_edition(content, receipt.place)
    except ValueError:
        return _Fate.DAMAGED
    return _Fate.REPLACED
