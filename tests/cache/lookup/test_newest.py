"""The records that were written last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inductor_plugin.cache.lookup.newest import newest


@pytest.mark.parametrize(("limit", "left"), [(2, 1), (0, 0), (9, 0)])
def test_the_record_written_last_comes_first(tmp_path: Path, limit: int, left: int) -> None:
    for folder in ("mm", "bmm"):
        (tmp_path / folder).mkdir()
    names = {"mm/a.json": 2, "bmm/b.json": 3, "mm/c.json": 1, "mm/environment.txt": 9}
    for name, at in names.items():
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (at, at))
    folders = [str(tmp_path / folder) for folder in ("mm", "bmm", "gone")]
    last_first = [tmp_path / name for name in ("bmm/b.json", "mm/a.json", "mm/c.json")]
    assert newest(folders, limit) == (last_first[: limit or None], left)
