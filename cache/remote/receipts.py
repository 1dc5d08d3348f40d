"""What this process has written to a remote, read back later: where a store does not compare, another machine may have replaced it."""

from __future__ import annotations

import errno
import hashlib
import threading
from dataclasses import dataclass, field

from inductor_plugin.cache.remote.files import Files
from inductor_plugin.cache.remote.name import Place

_TOGETHER = 64
"""Editions that are read at once; a usual one has 5 to 50 KB."""


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
        seen: list[_Receipt] = []
        lost: list[Place] = []
        read_bytes = 0
        with self._guard:
            left = [*self._open]
        for start in range(0, len(left), _TOGETHER):
            some = left[start : start + _TOGETHER]
            names, sizes = [each.name for each in some], [each.size for each in some]
            for each, content in zip(some, files.read(names, sizes, timeout_s), strict=True):
                if isinstance(content, bytes):
                    read_bytes += len(content)
                    is_there = hashlib.sha256(content).hexdigest() == each.sha256
                elif isinstance(content, FileNotFoundError) or content.errno == errno.EFBIG:
                    is_there = False
                else:
                    raise content
                seen.append(each)
                if not is_there:
                    lost.append(each.place)
        with self._guard:  # all or none: a lost record has to be returned, or it is not rewritten
            self._open = [each for each in self._open if each not in seen]
        return lost, read_bytes
