"""What is decided, kept and measured again where other work on the machine has prolonged samples."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache import Measured
from inductor_plugin.cache.record import merge
from inductor_plugin.config import Config
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.decision import PROVISIONAL, decide
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.tuning.validity import DISTURBED, attempts, disturbance, unused, why_void
from inductor_plugin.worker.jobs import Outcome
from tests.support.cache import measured, record

CONFIG = Config()


def row(
    name: str, ms: float = 1.0, before: int | None = 0, age_s: float = 0.0, **fields: Any
) -> Measured:
    """Return a measurement; a calm one if ``before`` is None."""
    provenance = {"race": "final"} | ({} if before is None else disturbance(before))
    when = time.time() - age_s
    return measured(name, ms, provenance=provenance, measured_at=when, error=0.0, **fields)


def test_a_disturbed_library_kernel_stays_for_now() -> None:
    verdict = decide({"library": 9.0, "a": 1.0}, ["library"], 1.02, {}, {"library"})
    assert verdict.winner == "library"
    assert verdict.reason == f"the library kernel stays for now ({PROVISIONAL})"


def test_the_library_kernel_that_is_compared_with_is_a_calm_one() -> None:
    times = {"first": 1.0, "second": 2.0, "a": 1.5}
    verdict = decide(times, ["first", "second"], 1.02, {}, {"first"})
    assert (verdict.winner, verdict.library) == ("a", "second")


def test_a_candidate_that_wins_in_spite_of_other_work_wins() -> None:
    verdict = decide({"library": 2.0, "a": 1.0}, ["library"], 1.02, {}, {"a"})
    assert verdict.winner == "a"
    assert verdict.reason.endswith(f"({PROVISIONAL})")
    assert decide({"library": 2.0, "a": 2.1}, ["library"], 1.02, {}, {"a"}).winner == "library"
    alone = decide({"library": 2.0}, ["library"], 1.02, {}, {"library"})
    assert PROVISIONAL not in alone.reason  # there is nothing to decide


@pytest.mark.parametrize(
    ("tried", "waits_s"), [(1, 10.0), (2, 60.0), (3, 360.0), (9, 10.0 * 6**8), (99, 10.0 * 6**8)]
)
def test_it_is_measured_again_later_and_later(tried: int, waits_s: float) -> None:
    for age_s, again in ((waits_s - 5, False), (waits_s + 5, True)):
        late = row("a", before=tried - 1, age_s=age_s)
        assert attempts(late) == min(tried, 9)
        assert (why_void(late, CONFIG, library=False) == DISTURBED) is again
    assert why_void(row("a", before=None, age_s=1e9), CONFIG, library=False) == ""


def test_only_where_something_is_measured_at_all() -> None:
    late = row("a", age_s=1e6)
    for policy in ("cached", "build"):
        assert why_void(late, replace(CONFIG, policy=policy), library=False) == ""


def test_samples_that_vary_by_more_than_their_median_are_disturbed_ones() -> None:
    """As a version before this left them, or a system that does not count how long threads wait."""
    noisy = replace(row("a", before=None, age_s=60.0), spread_ms=1.5)
    assert why_void(noisy, CONFIG, library=True) == DISTURBED


def test_finalists_are_measured_again_with_their_library_kernel() -> None:
    rows = {
        "library": row("library", age_s=60.0),
        "a": row("a", before=None, age_s=60.0),
        "screened": replace(row("screened", before=None), provenance={"race": "beaten"}),
        "failed": row("failed", before=None, status="raised"),
    }
    assert unused(rows, {"library"}, CONFIG) == {"library": DISTURBED, "a": DISTURBED}
    calm = rows | {"library": row("library", before=None)}
    assert unused(calm, {"library"}, CONFIG) == {}


def test_a_calm_measurement_is_worth_more_than_a_later_disturbed_one() -> None:
    calm, later = row("a", 1.0, before=None, age_s=60.0), row("a", 8.0)
    for one, other in ((calm, later), (later, calm)):
        assert merge(record(one), record(other)).candidates["a"].median_ms == 1.0


def finalist(*legs: tuple[tuple[float, ...], bool]) -> TaskCandidate:
    candidate = TaskCandidate(CandidateId("a", "a", "cpp", ""))
    candidate.screened(Outcome("a", "ok", samples_ms=(9.0,)))
    for samples_ms, disturbed in legs:
        candidate.raced(Outcome("a", "ok", samples_ms=samples_ms, disturbed=disturbed))
    return candidate


CALM, LATE = ((1.0, 1.0), False), ((5.0,), True)


@pytest.mark.parametrize(
    ("legs", "samples_ms"),
    [
        ((CALM, CALM), (1.0,) * 4),
        ((LATE, CALM), (1.0,) * 2),
        ((CALM, LATE), (1.0,) * 2),
        ((LATE, LATE), (5.0,) * 2),
    ],
)
def test_calm_legs_of_the_finals_count_and_disturbed_ones_where_there_are_no_others(
    legs: tuple[tuple[tuple[float, ...], bool], ...], samples_ms: tuple[float, ...]
) -> None:
    candidate = finalist(*legs)
    assert candidate.samples_ms == samples_ms
    assert candidate.disturbed is (samples_ms[0] == 5.0)
    assert candidate.rounds == len(samples_ms)


def test_finals_without_a_sample_leave_those_of_the_screening() -> None:
    candidate = finalist(((), True))
    assert (candidate.samples_ms, candidate.rounds) == ((9.0,), 0)
