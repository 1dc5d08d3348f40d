"""The records that were written last, without reading any."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from pathlib import Path

from inductor_plugin.cache.records import record_statuses


def newest(folders: Iterable[str], limit: int) -> tuple[list[Path], int]:
    """Return the records written last, the last first, and how many others there are.

    Args:
        folders: Folders of environments' operators.
        limit: Records that are returned; 0 for all.
    """
    written = [
        (-status.st_mtime_ns, folder, name)
        for folder in folders
        for name, status in record_statuses(folder)
    ]
    shown = heapq.nsmallest(limit, written) if limit else sorted(written)
    return [Path(folder, name) for _, folder, name in shown], len(written) - len(shown)
