"""Ranks that share problems out: each is tuned once, and all take the same decision, whatever comes between."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import of_verdict
from inductor_plugin.tuning.task import Task
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.jobs import Outcome
from tests.support.fakes.tasks import entry, task
from tests.support.ranks.simulated import LIBRARY, TIMEOUT_S, Rank, agree, drive, job_of, measured

PROBLEMS = [f"problem{number}" for number in range(6)]


def test_each_problem_is_tuned_once_and_each_rank_tunes_its_share() -> None:
    ranks, _ = job_of(3)
    for rank in ranks:
        for name in PROBLEMS[rank.number :] + PROBLEMS[: rank.number]:
            rank.submit(name)
    drive(ranks)
    tuned = [rank.tuner.tuned for rank in ranks]
    assert sorted(name for each in tuned for name in each) == PROBLEMS
    assert [len(each) for each in tuned] == [2, 2, 2]
    assert all(set(rank.winners) == set(PROBLEMS) for rank in ranks)
    assert agree(ranks)
    assert [rank.counters.snapshot().ranks_tuned for rank in ranks] == [2, 2, 2]
    assert [rank.counters.snapshot().ranks_taken for rank in ranks] == [4, 4, 4]


def test_what_a_rank_never_sees_is_tuned_by_those_that_do() -> None:
    ranks, _ = job_of(3)
    for name in PROBLEMS:
        ranks[0].submit(name)
    ranks[1].submit(PROBLEMS[0])
    drive(ranks)
    assert agree(ranks)
    assert set(ranks[0].winners) == set(PROBLEMS)
    assert ranks[2].winners == {}


def test_times_are_those_of_the_rank_that_has_measured() -> None:
    ranks, _ = job_of(2)
    tickets = [rank.submit("problem") for rank in ranks]
    drive(ranks)
    assert tickets[0].measured == tickets[1].measured != {}


@pytest.mark.parametrize("also", [True, False])
def test_a_rank_that_dies_costs_a_time_out_and_the_library_kernel(also: bool) -> None:
    ranks, _ = job_of(2)
    ticket = ranks[0].submit("problem")
    ranks[0].step(0.0)
    assert ranks[0].state("problem") == "mine"
    other = ranks[1].submit("problem")
    drive(ranks[1:], seconds=int(TIMEOUT_S) - 1)
    assert other.agreed is None
    drive(ranks[1:], from_s=TIMEOUT_S)
    assert other.verdict is not None
    assert (other.verdict.winner, other.verdict.provisional) == (LIBRARY, True)
    assert "no sign of life" in other.verdict.reason
    if also:  # it was only stopped, and goes on: it takes what was decided without it
        ranks[0].finish_all()
        ranks[0].step(100.0)
        assert ticket.verdict is not None
        assert ticket.verdict.winner == LIBRARY


def test_a_rank_that_lives_is_waited_for() -> None:
    ranks, _ = job_of(2)
    ranks[0].submit("problem")
    ranks[0].step(0.0)
    ranks[1].submit("problem")
    for second in range(100):
        for rank in ranks:
            rank.step(float(second))
    assert ranks[1].winners == {}
    ranks[0].finish_all()
    drive(ranks, from_s=100.0)
    assert agree(ranks)
    assert ranks[1].winners == {"problem": "fast"}


def test_progress_of_another_rank_counts_as_progress_here() -> None:
    ranks, _ = job_of(2)
    ticket = ranks[0].submit("problem")
    ranks[0].step(0.0)
    ranks[1].submit("problem")
    ranks[1].step(1.0)
    before = ranks[1].tuner.progress
    assert ticket.task is not None
    ticket.task.entries[0].ready = True
    ranks[0].step(2.0)
    ranks[1].step(2.5)
    assert ranks[1].tuner.progress == before + 1
    ranks[0].step(3.5)
    ranks[1].step(4.0)
    assert ranks[1].tuner.progress == before + 1


def test_a_record_of_one_rank_decides_for_all() -> None:
    ranks, _ = job_of(3)
    known = {LIBRARY: measured(LIBRARY, 2.0), "slow": measured("slow", 1.0)}
    ranks[1].submit("problem", known=known)
    for rank in (ranks[0], ranks[2]):
        rank.submit("problem")
    for rank in (ranks[1], ranks[0], ranks[2]):
        rank.step(0.0)
    assert [rank.winners for rank in ranks] == [{"problem": "slow"}] * 3
    assert [rank.tuner.tuned for rank in ranks] == [[], [], []]


def test_a_record_that_comes_while_another_rank_tunes_decides_for_both() -> None:
    ranks, _ = job_of(2)
    ranks[0].submit("problem")
    ranks[0].step(0.0)
    known = {LIBRARY: measured(LIBRARY, 2.0), "slow": measured("slow", 1.0)}
    ranks[1].submit("problem", known=known)
    ranks[1].step(0.0)
    ranks[0].finish_all()  # by itself it would decide for "fast"
    ranks[0].step(1.0)
    assert [rank.winners for rank in ranks] == [{"problem": "slow"}] * 2


def test_two_records_that_differ_decide_the_same() -> None:
    ranks, _ = job_of(2)
    for rank, name in zip(ranks, ("fast", "slow"), strict=True):
        rank.submit("problem", known={LIBRARY: measured(LIBRARY, 2.0), name: measured(name, 1.0)})
        rank.step(0.0)
    assert ranks[0].winners == ranks[1].winners == {"problem": "fast"}


def test_a_candidate_that_has_failed_on_one_rank_wins_on_none() -> None:
    ranks, _ = job_of(2)
    ranks[0].submit("problem")
    ranks[0].step(0.0)
    ticket = ranks[1].ticket("problem")
    ticket.measured["fast"] = measured("fast", 1.0, "wrong")
    ranks[1].tickets["problem"] = ticket
    ranks[1].share.submit(ticket)
    ranks[1].step(0.0)
    ranks[0].finish_all()
    drive(ranks, from_s=1.0)
    assert ranks[0].winners == ranks[1].winners == {"problem": LIBRARY}
    verdict = ranks[0].tickets["problem"].verdict
    assert verdict is not None
    assert "fast has failed on rank 1" in verdict.reason


def test_a_rank_that_lacks_the_candidate_runs_the_library_kernel_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ranks, _ = job_of(2)
    ranks[0].submit("problem")
    drive(ranks[:1])
    ticket = ranks[1].submit("problem", names=["another"])
    drive(ranks[1:])
    assert ticket.verdict is not None
    assert (ticket.verdict.winner, ticket.verdict.provisional) == (LIBRARY, True)
    assert "fast, for which rank 0 has decided, is not offered here" in caplog.text


@pytest.mark.parametrize(
    ("outcome", "error", "said"),
    [
        (Outcome("fast", "compile_failed", "nvcc is gone"), "", "compile_failed (nvcc is gone)"),
        (None, "tuning made no progress", "tuning made no progress"),
        (None, "", ""),
    ],
    ids=["its compiler fails", "its compiler hangs", "it is built"],
)
def test_a_rank_that_cannot_build_what_was_decided_runs_the_library_kernel_and_says_so(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Outcome | None,
    error: str,
    said: str,
) -> None:
    ranks, _ = job_of(2)
    ranks[0].submit("problem")
    drive(ranks[:1])
    build = task([entry("fast")], digest="problem")
    build.entries[0].outcome, build.entries[0].ready = outcome, not said
    build.error = error
    build.done.set()

    def build_of(_: TuningTicket) -> Task:
        return build

    monkeypatch.setattr(ranks[1].selection, "build_of", build_of)
    ticket = ranks[1].submit("problem")
    drive(ranks[1:])
    ranks[1].share.wait(ticket, 60.0)
    assert ticket.verdict is not None
    assert (ticket.verdict.winner, ticket.verdict.provisional) == (
        (LIBRARY, True) if said else ("fast", False)
    )
    text = f"fast, for which rank 0 has decided, cannot be built here: {said}"
    assert (text in caplog.text) == (text in ticket.verdict.reason) == bool(said)
    assert ranks[1].selection.kept == ([] if said else ["problem"])


def test_what_a_graph_does_not_need_is_tuned_by_another_rank() -> None:
    ranks, _ = job_of(2)
    ticket = ranks[0].submit("problem")
    ranks[0].step(0.0)
    ranks[1].submit("problem")
    ranks[1].step(0.0)
    assert ranks[1].state("problem") == "theirs"
    ranks[0].share.release([ticket])
    ranks[0].step(1.0)
    assert ranks[0].tuner.running == {}
    drive(ranks[1:], from_s=1.0)
    assert ranks[1].tuner.tuned == ["problem"]


def test_a_later_ticket_about_the_same_problem_is_decided_at_once() -> None:
    ranks, store = job_of(2)
    ranks[0].submit("problem")
    drive(ranks[:1])
    before = store.calls.total()
    later = ranks[0].submit("problem")
    assert later.verdict is not None
    assert later.verdict.winner == "fast"
    assert store.calls.total() == before


def test_without_its_store_a_rank_runs_library_kernels(caplog: pytest.LogCaptureFixture) -> None:
    store_lost = job_of(2)[0][0]
    waits = [store_lost.submit(name) for name in PROBLEMS]
    untyped: Any = store_lost.share
    untyped._lose("it has not answered for 30 s")
    assert set(store_lost.winners.values()) == {LIBRARY}
    assert all(ticket.task.done.is_set() for ticket in waits if ticket.task)
    later = store_lost.submit("later")
    assert later.verdict is not None
    assert later.verdict.winner == LIBRARY
    assert "the store of the job is lost (it has not answered for 30 s)" in caplog.text


def test_a_wait_ends_when_the_job_has_decided() -> None:
    ranks, _ = job_of(2)
    ticket = ranks[0].submit("problem")
    waits = threading.Thread(target=ranks[0].share.wait, args=(ticket, 60.0))
    waits.start()
    drive(ranks[:1])
    waits.join(10.0)
    assert not waits.is_alive()
    assert ranks[0].selection.kept == []


def test_a_rank_keeps_what_another_has_measured() -> None:
    ranks, _ = job_of(2)
    for rank in ranks:
        rank.submit("problem")
    drive(ranks)
    for rank in ranks:
        rank.share.wait(rank.tickets["problem"], 60.0)
        rank.share.wait(rank.tickets["problem"], 60.0)
    kept = sorted(len(rank.selection.kept) for rank in ranks)
    assert kept == [0, 1]


def test_a_decision_that_nobody_measures_is_the_jobs_too() -> None:
    ranks, _ = job_of(2)
    own = [
        of_verdict(Verdict(name, None, "it was estimated"), None, rank.number)
        for rank, name in zip(ranks, ("unfused", "fused"), strict=True)
    ]
    assert ranks[0].share.look_up("mm/fusion") is None
    taken = [rank.share.decide("mm/fusion", own[rank.number]).winner for rank in ranks]
    assert taken == ["unfused", "unfused"]
    decision = ranks[1].share.look_up("mm/fusion")
    assert decision is not None
    assert decision.winner == "unfused"


def test_ranks_of_other_groups_decide_apart() -> None:
    ranks, store = job_of(2)
    other = Rank(1, 2, store, group="other GPU")
    ranks[0].submit("problem")
    other.submit("problem")
    drive([ranks[0], other])
    assert (ranks[0].winners, other.winners) == ({"problem": "fast"}, {"problem": "slow"})


def test_a_job_asks_its_store_little() -> None:
    ranks, store = job_of(8)
    for rank in ranks:
        for number in range(24):
            rank.submit(f"problem{number}")
    drive(ranks)
    assert agree(ranks)
    assert sum(len(rank.tuner.tuned) for rank in ranks) == 24
    # A claim and a decision for each problem of a rank, and a few looks.
    assert store.calls.total() / (8 * 24) < 8


def test_a_problem_of_two_graphs_is_tuned_for_the_other_when_one_ends() -> None:
    ranks, _ = job_of(2)
    first = ranks[0].submit("problem")
    ranks[0].step(0.0)
    second = ranks[0].submit("problem")
    ranks[0].share.release([first])
    drive(ranks[:1])
    assert ranks[0].tuner.tuned == ["problem"]
    assert second.verdict is not None
    assert second.verdict.winner == "fast"
    assert first.verdict is None


def test_a_graph_that_ends_gives_back_what_is_undecided_and_keeps_decisions() -> None:
    ranks, _ = job_of(2)
    decided = ranks[0].submit("decided")
    drive(ranks[:1])
    unknown, undecided = ranks[1].submit("of another rank"), ranks[0].submit("undecided")
    ranks[0].step(100.0)
    assert list(ranks[0].tuner.running) == ["undecided"]
    ranks[0].share.release([unknown, decided, undecided])
    ranks[0].step(101.0)
    assert ranks[0].tuner.running == {}
    assert ranks[0].submit("decided").verdict is not None
