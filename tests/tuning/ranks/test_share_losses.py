"""What a rank costs the others that dies, lives without progress, cannot measure, or may not."""

from __future__ import annotations

import threading

import pytest

from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import of_verdict
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.ranks.simulated import (
    LIBRARY,
    TIMEOUT_S,
    MemoryStore,
    Rank,
    agree,
    drive,
    job_of,
)

PROBLEMS = [f"problem{number}" for number in range(6)]


def submitted(rank: Rank, digest: str, *, tuned: bool = True) -> TuningTicket:
    """Submit a problem that nobody waits for yet; with ``tuned`` off this rank may not measure it."""
    ticket = rank.tickets[digest] = rank.ticket(digest)
    if not tuned:
        ticket.task = None
    rank.share.submit(ticket)
    return ticket


def await_alone(rank: Rank, digest: str) -> None:
    """Let one problem be waited for, as a compile does."""
    for name, part in rank.parts.items():
        part.awaited = int(name == f"mm/{digest}")


def seconds(rank: Rank, first: int, last: int) -> None:
    for second in range(first, last + 1):
        rank.step(float(second))


def held(rank: Rank) -> list[str]:
    return [name for name in rank.tickets if rank.state(name) == "mine"]


def test_a_dead_rank_costs_one_time_out_whatever_it_holds() -> None:
    ranks, _ = job_of(2)
    for rank in ranks:
        for name in PROBLEMS:
            submitted(rank, name)
    ranks[0].step(0.0)
    ranks[0].step(0.1)
    lost = held(ranks[0])
    assert len(lost) == 3
    ranks[1].step(0.2)
    ranks[1].finish_all()
    ranks[1].step(0.3)
    await_alone(ranks[1], lost[0])
    seconds(ranks[1], 1, int(TIMEOUT_S))
    assert ranks[1].winners.keys() == {*PROBLEMS} - {*lost}
    seconds(ranks[1], int(TIMEOUT_S) + 1, int(TIMEOUT_S) + 3)  # it is watched since 2.0
    assert {name: ranks[1].winners[name] for name in lost} == dict.fromkeys(lost, LIBRARY)


def test_a_dead_rank_is_not_waited_for_again() -> None:
    ranks, _ = job_of(2)
    for name in PROBLEMS[:2]:
        submitted(ranks[0], name)
    ranks[0].step(0.0)
    assert held(ranks[0]) == PROBLEMS[:2]
    ranks[1].submit(PROBLEMS[0])
    seconds(ranks[1], 1, int(TIMEOUT_S) + 2)
    assert ranks[1].winners == {PROBLEMS[0]: LIBRARY}
    ranks[1].submit(PROBLEMS[1])  # of its next graph
    seconds(ranks[1], 100, 101)
    assert ranks[1].winners == dict.fromkeys(PROBLEMS[:2], LIBRARY)


def test_a_rank_that_goes_on_after_it_was_given_up_is_waited_for_again() -> None:
    ranks, _ = job_of(2)
    for name in PROBLEMS[:2]:
        submitted(ranks[0], name)
    ranks[0].step(0.0)
    ranks[1].submit(PROBLEMS[0])
    seconds(ranks[1], 1, int(TIMEOUT_S) + 2)
    ranks[0].step(100.0)
    ranks[1].submit(PROBLEMS[1])
    for second in range(101, 130):
        for rank in ranks:
            rank.step(float(second))
    assert ranks[1].winners == {PROBLEMS[0]: LIBRARY}
    ranks[0].finish_all()
    drive(ranks, from_s=130.0)
    assert ranks[1].winners == {PROBLEMS[0]: LIBRARY, PROBLEMS[1]: "fast"}


def test_a_rank_that_works_through_its_problems_is_waited_for() -> None:
    ranks, _ = job_of(2)
    for name in PROBLEMS[:2]:
        submitted(ranks[0], name)
    ranks[0].step(0.0)
    ranks[1].submit(PROBLEMS[1])
    ranks[1].step(1.0)
    before, task = ranks[1].tuner.progress, ranks[0].tickets[PROBLEMS[0]].task
    assert task is not None
    task.entries[0].ready = True  # of the problem before the one that is waited for
    ranks[0].step(2.0)
    ranks[1].step(2.5)
    assert ranks[1].tuner.progress == before + 1


def test_a_rank_without_its_device_leaves_its_problems_to_the_others() -> None:
    ranks, _ = job_of(2)
    ranks[0].tuner.absence = "out of memory"
    for rank in ranks:
        for name in PROBLEMS:
            rank.submit(name)
    drive(ranks)
    assert sorted(ranks[1].tuner.tuned) == PROBLEMS
    assert ranks[0].winners == ranks[1].winners == dict.fromkeys(PROBLEMS, "slow")


def test_a_rank_has_its_device_again_later() -> None:
    ranks, store = job_of(2)
    ranks[0].tuner.absence = "out of memory"
    for rank in ranks:
        rank.submit(PROBLEMS[0])
    drive(ranks)
    ranks[0].tuner.absence = ""
    ranks[0].submit(PROBLEMS[1])
    drive(ranks[:1], from_s=50.0)
    assert ranks[0].tuner.tuned == [PROBLEMS[1]]
    assert store.values["g/absent"] == "0"


def test_where_no_rank_has_its_device_nobody_waits() -> None:
    ranks, _ = job_of(2)
    for rank in ranks:
        rank.tuner.absence = "out of memory"
        for name in PROBLEMS[:2]:
            rank.submit(name)
    drive(ranks, seconds=int(TIMEOUT_S) - 2)
    assert [rank.winners for rank in ranks] == [dict.fromkeys(PROBLEMS[:2], LIBRARY)] * 2


def test_what_nobody_takes_over_has_the_library_kernel_after_a_time_out() -> None:
    ranks, _ = job_of(2)
    ranks[0].tuner.absence = "out of memory"
    ticket = ranks[0].submit("problem")
    seconds(ranks[0], 1, int(TIMEOUT_S))
    assert ticket.verdict is None
    seconds(ranks[0], int(TIMEOUT_S) + 1, int(TIMEOUT_S) + 5)
    assert ticket.verdict is not None
    assert (ticket.verdict.winner, ticket.verdict.provisional) == (LIBRARY, True)
    assert "no rank has measured it (out of memory)" in ticket.verdict.reason
    ranks[0].submit("next")  # is not waited for, since nobody has come to the first
    seconds(ranks[0], int(TIMEOUT_S) + 6, int(TIMEOUT_S) + 9)
    assert ranks[0].winners["next"] == LIBRARY


def test_a_rank_that_may_not_measure_waits_for_the_one_that_does() -> None:
    ranks, _ = job_of(2)
    ranks[0].submit("problem")
    ranks[0].step(0.0)
    ticket = submitted(ranks[1], "problem", tuned=False)
    ranks[1].step(0.5)
    assert ticket.verdict is None
    drive(ranks)
    assert ranks[0].winners == ranks[1].winners == {"problem": "fast"}


def test_a_rank_that_may_not_measure_decides_what_nobody_tunes() -> None:
    ranks, _ = job_of(2)
    submitted(ranks[1], "problem", tuned=False)
    ranks[1].step(0.0)
    assert ranks[1].winners == {"problem": LIBRARY}
    ranks[0].submit("another")
    ranks[0].step(0.0)
    ticket = submitted(ranks[1], "another", tuned=False)
    ranks[1].step(1.0)
    ranks[1].await_all()
    ranks[0].share.release([ranks[0].tickets["another"]])
    ranks[0].step(2.0)
    seconds(ranks[1], 2, int(TIMEOUT_S))
    assert ticket.verdict is None
    seconds(ranks[1], int(TIMEOUT_S) + 1, int(TIMEOUT_S) + 5)
    assert ranks[1].winners["another"] == LIBRARY


def test_a_rank_that_may_not_measure_gives_up_one_without_progress() -> None:
    ranks, _ = job_of(2)
    ranks[0].submit("problem")
    ranks[0].step(0.0)
    ticket = submitted(ranks[1], "problem", tuned=False)
    ranks[1].step(0.5)
    waits = threading.Thread(target=ranks[1].share.wait, args=(ticket, 0.1), daemon=True)
    waits.start()
    part = ranks[1].parts["mm/problem"]
    for _ in range(200):
        if not part.left:
            break
        waits.join(0.05)
    ranks[1].step(1.0)
    waits.join(10.0)
    assert not waits.is_alive()
    assert ranks[1].winners == {"problem": LIBRARY}


def test_claims_are_made_a_few_at_a_time_so_that_signs_of_life_go_on() -> None:
    ranks, _ = job_of(2)
    for number in range(40):
        submitted(ranks[0], f"problem{number}")
    for step in range(1, 7):
        ranks[0].step(float(step))
        assert len(ranks[0].tuner.running) == min(4 * step, 20)


def test_a_rank_that_looks_at_its_device_for_minutes_gives_signs_of_life() -> None:
    ranks, store = job_of(2)
    ranks[0].submit("first")
    ranks[0].step(0.0)
    looks, ends = threading.Event(), threading.Event()

    def examine(_ticket: TuningTicket) -> None:
        looks.set()
        assert ends.wait(10.0)

    ranks[0].tuner.examine = examine  # type: ignore[method-assign]
    submits = threading.Thread(target=submitted, args=(ranks[0], "second"), daemon=True)
    submits.start()
    assert looks.wait(10.0)
    before = store.values["g/beat/0"]
    ranks[0].step(5.0)  # it takes no lock that the other thread holds
    assert store.values["g/beat/0"] != before
    ends.set()
    submits.join(10.0)
    ranks[0].step(6.0)
    assert ranks[0].state("second") == "mine"


def test_nothing_is_examined_for_what_is_decided() -> None:
    ranks, _ = job_of(2)
    ranks[0].submit("problem")
    drive(ranks[:1])
    ranks[0].submit("problem")
    assert ranks[0].tuner.examined == ["problem"]


def test_a_rank_gives_a_sign_of_life_before_it_starts_what_it_has_claimed() -> None:
    ranks, store = job_of(2)
    beats: list[bool] = []
    ranks[0].tuner.start = lambda _: beats.append("g/beat/0" in store.values)  # type: ignore[method-assign]
    ranks[0].submit("problem")
    ranks[0].step(0.0)
    assert beats == [True]


def test_a_tuning_goes_on_when_another_graph_with_the_problem_ends() -> None:
    ranks, _ = job_of(2)
    submitted(ranks[0], "problem")
    ranks[0].step(0.0)
    later = ranks[0].ticket("problem")
    ranks[0].share.submit(later)
    ranks[0].share.release([later])
    assert ranks[0].state("problem") == "mine"  # it is not submitted once more


def test_a_wait_ends_when_everything_is_closed() -> None:
    ranks, _ = job_of(2)
    ticket = ranks[0].submit("problem")
    waits = threading.Thread(target=ranks[0].share.wait, args=(ticket, 60.0), daemon=True)
    waits.start()
    part = ranks[0].parts["mm/problem"]
    while part.awaited != 2:
        waits.join(0.01)
    ranks[0].share.close()
    waits.join(10.0)
    assert not waits.is_alive()
    ranks[0].share.wait(ticket, 60.0)  # it was released


def test_a_task_that_cannot_be_ended_lets_nobody_wait_for_ever() -> None:
    ranks, _ = job_of(2)
    ticket = ranks[1].submit("problem")
    part = ranks[1].parts["mm/problem"]
    ranks[0].submit("problem")
    drive(ranks[:1])

    def fail(_task: object, _error: str) -> None:
        raise OSError("the lock's disk is gone")

    ranks[1].tuner.end = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk is gone"):
        ranks[1].step(1.0)
    assert part.ready.is_set()
    assert ticket.verdict is not None
    assert ticket.verdict.winner == "fast"


def test_a_rank_whose_store_fails_once_runs_library_kernels_and_asks_nothing_more() -> None:
    ranks = [Rank(number, 3, store) for number, store in enumerate(MemoryStore().seen_by(3))]
    for rank in ranks:
        rank.submit("earlier")
    drive(ranks)
    for name in PROBLEMS:
        ranks[0].submit(name)
    ranks[0].step(30.0)
    lost = [name for name in PROBLEMS if ranks[0].state(name) == "mine"]
    ranks[0].store.failing = 1
    ranks[0].step(32.0)
    assert ranks[0].is_lost
    assert ranks[0].winners == {**dict.fromkeys(PROBLEMS, LIBRARY), "earlier": "fast"}
    assert ranks[0].tuner.running == {}
    before = ranks[0].store.calls.total()
    later, again = ranks[0].submit("later"), ranks[0].submit("earlier")
    own = of_verdict(Verdict(LIBRARY, LIBRARY, "it is refused"), None, 0)
    assert ranks[0].share.look_up("mm/fusion") is None
    assert ranks[0].share.decide("mm/fusion", own) == own
    ranks[0].share.close()
    assert ranks[0].store.calls.total() == before
    assert later.verdict is not None
    assert (later.verdict.winner, later.verdict.provisional) == (LIBRARY, True)
    assert again.verdict is not None
    assert again.verdict.winner == "fast"
    # It costs the others a time-out, and the problems that it held.
    for rank in ranks[1:]:
        for name in PROBLEMS:
            rank.submit(name)
    drive(ranks[1:], from_s=32.0, seconds=int(TIMEOUT_S) + 5)
    assert agree(ranks[1:])
    assert {*ranks[1].winners} == {*PROBLEMS, "earlier"}
    assert [name for name in PROBLEMS if ranks[1].winners[name] == LIBRARY] == lost != []


def test_a_rank_whose_store_fails_while_its_thread_asks_keeps_nobody_waiting() -> None:
    store = MemoryStore(failing=1)
    rank = Rank(0, 2, store, has_thread=True)
    ticket = rank.submit("problem")
    rank.share.wait(ticket, 60.0)
    assert rank.winners == {"problem": LIBRARY}


def test_where_no_thread_can_be_started_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rank = Rank(0, 2, MemoryStore(), has_thread=True)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        ticket = rank.submit("problem")
    assert ticket.verdict is not None
    assert "no thread can ask it: can't start new thread" in ticket.verdict.reason
    assert rank.winners == {"problem": LIBRARY}
    assert rank.parts["mm/problem"].ready.is_set()


def test_a_store_that_is_lost_ends_every_wait_whatever_cannot_be_ended() -> None:
    rank = Rank(0, 2, MemoryStore())
    for name in PROBLEMS:
        rank.submit(name)
    first = rank.tickets[PROBLEMS[0]]
    second = rank.ticket(PROBLEMS[0])
    rank.share.submit(second)

    def fail(_task: object, _error: str) -> None:
        raise OSError("the lock's disk is gone")

    rank.tuner.end = fail  # type: ignore[method-assign]
    rank.store.failing = 1
    rank.step(0.0)
    assert rank.winners == dict.fromkeys(PROBLEMS, LIBRARY)
    assert all(part.ready.is_set() for part in rank.parts.values())
    assert first.verdict == second.verdict


def test_a_part_that_is_closed_is_absent_no_more() -> None:
    ranks, store = job_of(2)
    ranks[0].tuner.absence = "out of memory"
    ranks[0].submit("problem")
    ranks[0].step(0.0)
    ranks[0].step(1.0)
    assert store.values["g/absent"] == "1"
    ranks[0].share.close()
    assert store.values["g/absent"] == "0"
