"""The status of `bench --regret`, whose calls are not made."""

from __future__ import annotations

from typing import Any

import pytest

from inductor_plugin.cache import Store
from inductor_plugin.cli.again import bench
from inductor_plugin.errors import CacheError
from tests.support.cache.records import decision, measured, record
from tests.support.cli.command import run


@pytest.mark.parametrize(("failing", "status"), [(set[int](), 0), ({8}, 1), ({8, 16}, 2)])
def test_records_that_could_not_be_timed_are_no_success(
    store: Store, monkeypatch: pytest.MonkeyPatch, failing: set[int], status: int
) -> None:
    for rows in (8, 16):
        timings = (measured("fast", 1.0), measured("next", 1.1))
        store.put_record(record(*timings, problem=rows, op="new", decision=decision("fast", 2)))
    numbers = iter((8, 16))

    def timed(*_: Any) -> dict[str, Any]:
        if next(numbers) in failing:
            raise CacheError("the call did not end")
        return {"samples_ms": {"fast": [1.0] * 20, "next": [2.0] * 20}}

    here: dict[str, dict[str, Any]] = {record().environment: {}}
    monkeypatch.setattr(bench, "environments_here", lambda: here)
    monkeypatch.setattr(bench, "_timed", timed)
    run(store, "bench", "--regret", "--op", "new", status=status)
