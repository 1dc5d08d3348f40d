"""Locks of a cache that a test holds for as long as somebody else waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.cache.lock import LockTable


def wait_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every lock be waited for no longer than a moment, whatever limit it has."""
    acquire = LockTable.acquire

    def impatient(table: LockTable, name: str, path: Path | None, timeout_s: float) -> None:
        acquire(table, name, path, min(timeout_s, 0.02))

    monkeypatch.setattr(LockTable, "acquire", impatient)
