"""The names in a folder, read again only when the folder has changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from inductor_plugin.cache.guard import MISSING

SETTLED_S = 3.0
"""Age of a folder's last change from which its time tells of every later one: file systems round times, FAT to 2 s, so
two changes within one step look like one."""

_Signature = tuple[int, int, int]


class Listing:
    """Names in folders of a cache. A call costs one `stat` (1 us); opening a missing file costs 8 us."""

    def __init__(self) -> None:
        """Know no folder yet."""
        self._known: dict[Path, tuple[_Signature, frozenset[str]]] = {}

    def names(self, folder: Path) -> frozenset[str] | None:
        """Return the names in a folder, none if it does not exist; None if it cannot be listed.

        Any process may have changed the folder: that changes its time, so its names are read again. While
        its time is younger than `SETTLED_S`, they are read at each call.
        """
        try:
            status = os.stat(folder)  # noqa: PTH116 - a Path costs 3 us
            signature = (status.st_mtime_ns, status.st_ino, status.st_dev)
            known = self._known.get(folder)
            if known is not None and known[0] == signature:
                return known[1]
            names = frozenset(os.listdir(folder))  # noqa: PTH208 - only names are needed
        except MISSING:
            return frozenset()
        except OSError:
            return None
        if time.time() - status.st_mtime > SETTLED_S:
            self._known[folder] = (signature, names)
        return names
