"""The status of `bench --regret`, whose calls are not made."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from inductor_plugin.cache import Record, Store, open_store
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.cli import main
from inductor_plugin.cli.again import bench
from inductor_plugin.errors import CacheError
from tests.support.cache.records import decision, measured, record
from tests.support.cli.command import answer_of, run


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


@pytest.mark.parametrize(("rival_ms", "status"), [(2.0, 0), (0.5, 1)])
def test_regret_is_of_calls_of_this_machine(
    store: Store, monkeypatch: pytest.MonkeyPatch, rival_ms: float, status: int
) -> None:
    timings = (measured("fast", 1.0), measured("next", 1.1))
    won = decision("fast", 2)
    here = store.put_record(record(*timings, problem=8, op="bmm", decision=won))
    store.put_record(record(*timings, problem=9, op=GRAPH, decision=won))
    store.put_record(record(*timings, problem=8, op="bmm", environment="f" * 64, decision=won))
    timed: list[tuple[str, str]] = []

    def times(_: object, __: object, kept: Record, names: list[str]) -> dict[str, Any]:
        timed.append((kept.environment, kept.op))
        assert names == ["next"]
        return {"samples_ms": {"fast": [1.0] * 20, "next": [rival_ms] * 20}}

    environments: dict[str, dict[str, Any]] = {here.environment: {}}
    monkeypatch.setattr(bench, "environments_here", lambda: environments)
    monkeypatch.setattr(bench, "_timed", times)
    store.remove_record(here.environment, "mm", record().digest)  # which has a rival, too
    run(store, "bench", "--regret", status=status)
    assert timed == [(here.environment, "bmm")]


@pytest.mark.parametrize(("high", "status"), [(1.0, 0), (0.99, 1), (None, 0)])
def test_a_winner_that_is_surely_slower_is_no_success(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    high: float | None,
    status: int,
) -> None:
    times = {"winner_ms": 1.0, "library_ms": 0.9, "speedup": 0.9, "low": 0.8, "high": high}
    monkeypatch.setattr(bench, "_timed", Mock(return_value={**times, "rounds": 10, "calls": 1}))
    digest = record(problem=2).digest
    answer = answer_of(store, capsys, "bench", digest, status=status)
    assert (answer["key"], answer["recorded"]) == (digest, None)
    run(store, "bench", digest, status=status)
    said = capsys.readouterr().out
    assert ("`inductor-plugin retune` measures it again" in said) == bool(status)
    assert ("too few turns" in said) == (high is None)


def test_another_kernel_than_the_recorded_winner_is_not_timed_in_its_place(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = store.put_record(
        record(measured("fast", 1.0), measured("next", 1.1), problem=8, decision=decision("fast"))
    )
    samples = {"substitute": [1.0] * 20, "next": [2.0] * 20}
    times = {"winner_ms": 1.0, "library_ms": 1.0, "speedup": 1.0, "low": 1.0, "high": 1.0}
    answer: dict[str, Any] = {
        **times,
        "rounds": 20,
        "calls": 1,
        "samples_ms": samples,
        "winner": "substitute",
    }

    def timed(*_: Any) -> dict[str, Any]:
        return dict(answer)

    monkeypatch.setattr(bench, "_times", timed)
    monkeypatch.setattr(bench, "script", Mock(return_value=Mock(refused="", text="")))
    run(store, "bench", kept.digest, status=2)
    assert "fast does not run here, but substitute" in capsys.readouterr().err
    run(store, "bench", "--regret", kept.digest, status=2)
    assert "fast does not run here" in capsys.readouterr().out
    answer = {**times, "rounds": 20, "calls": 1, "winner": "fast"}
    assert answer_of(store, capsys, "bench", kept.digest)["speedup"] == 1.0


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo refused; echo trace >&2; exit 2", "could not be timed: refused"),
        ("echo refused; echo trace >&2; exit 1", "could not be timed: trace"),
        ("exit 3", "could not be timed: 3"),
        ("exit 0", "could not be timed: 0"),  # and has written nothing
        ("exec sleep 60", "did not end within 0 s"),
    ],
)
def test_a_call_that_writes_no_times_says_why(script: str, said: str, tmp_path: Path) -> None:
    times = bench._times  # pyright: ignore[reportPrivateUsage]
    limit_s = 0.05 if "sleep" in script else 60.0
    with pytest.raises(CacheError, match=said):
        times(["/bin/sh", "-c", script], tmp_path / "times.json", limit_s)


def test_the_times_that_a_call_writes_are_read(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    times = bench._times  # pyright: ignore[reportPrivateUsage]
    assert times(["/bin/sh", "-c", f"echo '{{\"low\": 1}}' > {file}"], file, 60.0) == {"low": 1}
