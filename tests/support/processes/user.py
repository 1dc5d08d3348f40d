"""A process whose user has no folder: that of a container which is run with a number that is in no list of users."""

from __future__ import annotations

import pytest


def leave_without_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset `HOME` and the folder of caches, and let the list of users be empty."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "INDUCTOR_PLUGIN_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
