"""The status of `bench --regret`, whose calls are not made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Store, open_store
from inductor_plugin.cli import main
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


def test_regret_needs_no_key_and_the_speedup_does(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(cache_dir)
    stored = record(measured("fast", 1.0), decision=decision("fast"))
    store.put_record(stored)
    where = ["--cache-dir", str(cache_dir)]
    for wrong, why in (
        (["bench"], "name a record by its key, or write --regret"),
        (["bench", stored.digest, "--op", "mm"], "--op chooses among all records"),
        (["bench", "--regret", "--op", "bmm"], "no record is of operator 'bmm'; there are mm"),
    ):
        assert main([*wrong, *where]) == 2
        assert why in capsys.readouterr().err
    # Of another machine, and with a single candidate: there is nothing to time.
    assert main(["bench", "--regret", *where]) == 0
    assert "0 of 0 winners" in capsys.readouterr().out
    assert main(["bench", "--regret", stored.digest, *where]) == 0
    assert "1 records have one candidate" in capsys.readouterr().out
