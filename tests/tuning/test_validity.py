"""What was measured under other options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Measured, Quarantined, document
from inductor_plugin.cache.record import failed, to_fields
from inductor_plugin.config import Config
from inductor_plugin.problem.number_check import REVISION, NumberCheck
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.tuning import validity
from inductor_plugin.tuning.validity import (
    advice,
    checked,
    is_valid,
    keeps_out,
    limits,
    was_limited,
)
from tests.support.fakes.selection import (
    Rig,
    entries,
    fail,
    offers,
    pinned_to,
    race,
    rig,
)

EARLIER: tuple[dict[str, Any], ...] = ({}, {"check": REVISION - 1}, {"check": "2"})
"""What earlier revisions of the check have left in records."""


def measured(status: str, **provenance: Any) -> Measured:
    return Measured(
        candidate="c",
        name="c",
        kind="template",
        description="",
        status=status,
        reason="",
        samples_ms=(),
        median_ms=None,
        spread_ms=None,
        error=None,
        compile_s=None,
        kernel=None,
        measured_at=0.0,
        provenance=provenance,
    )


def config(**options: Any) -> Config:
    return Config.load(options, environ={})


@pytest.mark.parametrize(
    ("status", "then", "now", "again"),
    [
        ("hung", {"bench_timeout_s": 1.0}, {"bench_timeout_s": 30}, True),
        ("hung", {"bench_timeout_s": 30.0}, {"bench_timeout_s": 30}, False),
        ("hung", {"bench_timeout_s": 30.0}, {"bench_timeout_s": 1}, False),
        ("hung", {"compile_timeout_s": 5.0}, {"compile_timeout_s": 120}, True),
        ("out_of_memory", {"worker_memory_bytes": 1 << 20}, {"worker_memory_bytes": 1 << 30}, True),
        ("out_of_memory", {"worker_memory_bytes": 1 << 20}, {"worker_memory_bytes": 0}, True),
        ("out_of_memory", {"worker_memory_bytes": 0}, {"worker_memory_bytes": 1 << 30}, False),
        ("raised", {"bench_timeout_s": 1.0}, {"bench_timeout_s": 30}, False),
        ("hung", None, {"bench_timeout_s": 30}, False),
    ],
)
def test_a_raised_limit_gives_another_try(
    status: str, then: dict[str, float] | None, now: dict[str, Any], *, again: bool
) -> None:
    assert was_limited(status, then, config(**now)) is again
    row = measured(status, **({"limits": then} if then else {}))
    assert is_valid(row, config(**now), library=False) is not again


def test_what_is_noted_is_what_is_compared() -> None:
    noted = limits("hung", config(bench_timeout_s=2))
    assert noted == {"limits": {"bench_timeout_s": 2.0, "compile_timeout_s": 120.0}}
    assert was_limited("hung", noted["limits"], config(bench_timeout_s=3))
    assert limits("crashed", config()) == limits("out_of_memory", config()) == {}
    assert limits("crashed", config(worker_memory_bytes=5)) == {
        "limits": {"worker_memory_bytes": 5}
    }
    assert "bench_timeout_s" in advice("hung")
    assert advice("crashed") == ""


def test_a_library_kernel_that_took_too_long_is_tried_again() -> None:
    assert not is_valid(measured("hung"), config(), library=True)
    assert is_valid(measured("raised"), config(), library=True)


def test_unchecked_numbers_stand_only_where_nobody_asks() -> None:
    row = measured("ok", **checked(None, verify=False))
    assert not is_valid(row, config(verify_numerics=True), library=False)
    assert is_valid(row, config(verify_numerics=False), library=False)
    check = NumberCheck(Tolerance(0.1, 0.1))
    compared = replace(measured("ok", **checked(check, verify=True)), error=0.0)
    assert is_valid(compared, config(), library=False)
    nothing_to_compare_with = measured("ok", **checked(None, verify=True))
    assert is_valid(nothing_to_compare_with, config(), library=False, reference=False)
    assert not is_valid(nothing_to_compare_with, config(), library=False)


def test_a_measurement_of_earlier_versions_that_was_compared_with_nothing_is_repeated() -> None:
    """They recorded no error, and no word, where the library kernel had not run in the worker."""
    silent = measured("ok")
    assert not is_valid(silent, config(), library=False)
    assert is_valid(silent, config(), library=True)
    assert is_valid(silent, config(verify_numerics=False), library=False)
    assert is_valid(measured("raised"), config(), library=False)


@pytest.mark.parametrize(
    ("status", "reason", "by_check"),
    [
        ("wrong", "out: 3 numbers differ", True),
        ("red_zone", "it changed its operand 6", True),
        ("red_zone", "it wrote 64 bytes behind its output", False),
    ],
)
def test_what_an_earlier_check_refused_is_checked_again(
    status: Any, reason: str, by_check: bool
) -> None:
    """It refused right kernels: frozen int8 weights, results of large scales, gradients of attention that compute delta."""
    now = checked(NumberCheck(Tolerance(0.1, 0.1)), verify=True)
    for check, again in ((now, False), *((old, by_check) for old in EARLIER)):
        row = replace(measured(status, **check), reason=reason)
        assert is_valid(row, config(), library=False) is not again
        entry = Quarantined("environment", "a", status, reason, 0.0, 0.0, 1, check)
        assert keeps_out(entry, config()) is not again


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("Triton Error [CUDA]: out of memory", False),
        ("OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", False),
        ("OutOfMemoryError: NPU out of memory", True),
        ("benchmark worker of cuda:0 was killed by SIGKILL", True),
    ],
)
def test_want_of_a_gpu_s_memory_keeps_nobody_out(reason: str, kept: bool) -> None:
    """As earlier versions left it in a cache that cannot be written."""
    entry = Quarantined("environment", "a", "out_of_memory", reason, 0.0, 0.0, 2, {"mishaps": 2})
    assert keeps_out(entry, config()) is kept


def refused_by_an_earlier_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(validity, "REVISION", REVISION - 1)
        fail(rig(path).plan(offers("a")), "a", "wrong")


def test_a_right_kernel_that_an_earlier_check_condemned_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_by_an_earlier_check(tmp_path, monkeypatch)
    again = rig(tmp_path).plan(offers("a"))
    assert entries(again) == ["library", "a"]
    race(again, {"library": 1.0, "a": 0.5})
    later = rig(tmp_path)
    assert list(later.store.iter_quarantine()) == []
    known = later.plan(offers("a"))
    assert known.hit
    assert later.selection.decide(known).winner == "a"


def as_seen_elsewhere(rig_: Any, ticket: Any) -> None:
    """Let another machine's newer record say that all candidates are right and fast."""
    kept = rig_.record(ticket)
    rows = {
        name: replace(
            row,
            status="ok",
            reason="",
            median_ms=2.0 if name == "library" else 0.1,
            error=0.0,
            measured_at=4e9,
        )
        for name, row in kept.candidates.items()
    }
    path = rig_.store.layout.record(kept.environment, kept.op, kept.digest)
    path.write_bytes(document.dump(to_fields(replace(kept, candidates=rows))))


@pytest.mark.parametrize("policy", ["tune", "cached"])
def test_what_failed_here_is_not_run_because_another_machine_has_not_seen_it(
    tmp_path: Path, policy: str
) -> None:
    here = rig(tmp_path)
    ticket = here.plan(offers("a"))
    fail(ticket, "a", "wrong")
    as_seen_elsewhere(here, ticket)
    again = rig(tmp_path, policy=policy)
    assert again.selection.decide(again.plan(offers("a"))).winner == "library"


@pytest.mark.parametrize("why", ["wrong", "wrong by an earlier check", "unchecked"])
def test_a_pinned_kernel_that_is_wrong_or_unchecked_does_not_run(
    tmp_path: Path, why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = rig(tmp_path, verify_numerics=why != "unchecked")
    ticket = tuned.plan(offers("a"))
    if why == "unchecked":
        race(ticket, {"library": 2.0, "a": 1.0})
    else:
        with monkeypatch.context() as then:
            then.setattr(validity, "REVISION", REVISION - ("earlier" in why))
            fail(ticket, "a", "wrong")
    pins = pinned_to(ticket, "a")
    pinned = rig(tmp_path, pins, policy="pinned", pin_file="pins.json")
    verdict = pinned.selection.decide(pinned.plan(offers("a")))
    assert verdict.winner == "library"
    assert "the library kernel runs" in caplog.text
    trusting = rig(tmp_path, pins, policy="pinned", pin_file="pins.json", verify_numerics=False)
    winner = trusting.selection.decide(trusting.plan(offers("a"))).winner
    assert winner == ("a" if why == "unchecked" else "library")


def test_what_was_not_checked_is_measured_again_when_numbers_count(tmp_path: Path) -> None:
    race(rig(tmp_path, verify_numerics=False).plan(offers("a")), {"library": 1.0, "a": 0.5})
    assert rig(tmp_path, verify_numerics=False).plan(offers("a")).task is None
    again = rig(tmp_path).plan(offers("a"))
    assert entries(again) == ["library", "a"]
    race(again, {"library": 1.0, "a": 0.5})
    assert rig(tmp_path).plan(offers("a")).task is None


@pytest.mark.parametrize(
    ("status", "count", "then", "expected"),
    [
        ("wrong", 1, None, False),  # by a check of earlier versions, which recorded no revision
        ("red_zone", 1, None, True),
        ("failed", 1, None, True),  # an entry of an older version without a status
        ("hung", 1, None, False),
        ("hung", 2, None, True),
        ("hung", 9, {"bench_timeout_s": 1.0}, False),
        ("crashed", 9, {"worker_memory_bytes": 1 << 20}, False),
        ("crashed", 2, {"worker_memory_bytes": 0}, True),
    ],
)
def test_who_stays_out(
    status: str, count: int, then: dict[str, float] | None, *, expected: bool
) -> None:
    fields = {"limits": then, "mishaps": 0 if then else count}
    entry = Quarantined("environment", "candidate", status, "", 0.0, 0.0, count, fields)
    assert keeps_out(entry, config()) is expected


def test_what_does_not_fit_is_remembered_and_not_quarantined(tmp_path: Path) -> None:
    bench: Rig = rig(tmp_path, verify_numerics=False)
    ticket = bench.plan(offers("a", "b"))
    fail(ticket, "a", "pruned")
    assert bench.record(ticket).candidates["a"].status == "pruned"
    assert bench.record(ticket).candidates["a"].reason == "ended"
    assert list(bench.store.iter_quarantine()) == []
    assert bench.counters.snapshot().failed == 0
    assert not failed(bench.record(ticket).candidates["a"])
    again = rig(tmp_path, verify_numerics=False).plan(offers("a", "b"))
    assert again.hit
    assert again.task is None
    # With the check on, the others are measured again; what cannot be fast stays out.
    checking = rig(tmp_path).plan(offers("a", "b"))
    assert entries(checking) == ["library", "b"]


def test_another_machine_does_not_speak_for_what_an_earlier_check_refused_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_by_an_earlier_check(tmp_path, monkeypatch)
    there = rig(tmp_path)
    as_seen_elsewhere(there, there.plan(offers("a")))
    for policy in ("tune", "cached"):
        here = rig(tmp_path, policy=policy)
        ticket = here.plan(offers("a"))
        assert not ticket.hit
        assert "a" not in ticket.measured
        assert ticket.void["a"] == validity.REFUSED
