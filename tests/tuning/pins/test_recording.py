"""What a recording keeps of compiles in several threads."""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.pins.recording import Recording, active, recording
from tests.support.fakes.selection import offers, pinned_to, race, rig
from tests.support.fakes.tasks import problem
from tests.support.fakes.waiting import LIMIT_S

CPU = {"device": {"type": "cpu", "name": "Z80"}}


def test_graphs_that_two_threads_lower_at_once_are_both_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both, kept = threading.Barrier(2), Recording()

    def read(recording: Any) -> int:
        count = vars(recording)["graphs"]
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)  # the other thread has to stay outside
        return count

    def write(recording: Any, count: int) -> None:
        vars(recording)["graphs"] = count

    monkeypatch.setattr(Recording, "graphs", property(read, write), raising=False)
    threads = [threading.Thread(target=kept.count) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert vars(kept)["graphs"] == 2


def test_a_file_has_the_environment_of_each_pin_though_another_thread_compiles() -> None:
    inside, done = threading.Event(), threading.Event()

    class Slow(dict[str, Any]):
        """Takes its time between a pin and its environment."""

        def __setitem__(self, name: str, value: Any) -> None:
            inside.set()
            done.wait(0.2)
            super().__setitem__(name, value)

    kept = Recording()
    untyped: Any = kept
    untyped._environments = Slow()
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(kept.take_refused, problem(), "e", CPU, "library", "a reason")
        assert inside.wait(LIMIT_S)
        file = kept.file()
        done.set()
        taken.result(LIMIT_S)
    assert [pin.winner for pin in file.pins.values()] == ["library"]
    assert file.environments == {"e": CPU}


def test_a_recording_has_decisions_alone_whatever_failed_on_the_way(tmp_path: Path) -> None:
    """So a replay in an empty cache, where nothing was tried, records the same."""
    ticket, kept = rig(tmp_path).plan(offers("a", "b")), Recording()
    race(ticket, {"library": 3.0, "a": 1.0}, failed={"b": "wrong"})
    rig(tmp_path).selection.decide(ticket)
    kept.take([ticket])
    file = kept.file()
    assert [pin.winner for pin in file.pins.values()] == ["a"]
    assert (file.failed, file.spare) == ({}, {})


@pytest.mark.parametrize(("offered", "winner"), [(("a", "b"), "b"), (("a",), "library")])
def test_what_ran_is_recorded_where_its_pin_did_not_decide(
    tmp_path: Path, offered: tuple[str, ...], winner: str
) -> None:
    pins = pinned_to(rig(tmp_path).plan(offers("a", "b")), "b")
    tuned = rig(tmp_path, pins, policy="pinned", pin_file="pins.json")
    ticket, kept = tuned.plan(offers(*offered)), Recording()
    tuned.selection.decide(ticket)
    kept.take([ticket])
    (pin,) = kept.file().pins.values()
    assert pin.winner == winner


def test_what_a_graph_gave_up_is_recorded_as_the_winner_of_the_problem(tmp_path: Path) -> None:
    ticket, kept = rig(tmp_path).plan(offers("a")), Recording()
    race(ticket, {"library": 2.0, "a": 1.0})
    ticket.held = True
    assert ticket.selection.decide(ticket).winner == "library"
    kept.take([ticket])
    (pin,) = kept.file().pins.values()
    assert (pin.winner, pin.library, pin.winner_ms) == ("a", "library", 1.0)


def test_only_two_decisions_that_differ_are_warned_of_and_the_later_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Recording()
    for winner in ("library", "library", "a"):
        assert caplog.records == []
        kept.take_refused(problem(), "e", CPU, winner, "a reason")
    assert "decided twice, for library and for a" in caplog.text
    assert [pin.winner for pin in kept.file().pins.values()] == ["a"]


def test_a_recording_takes_decisions_inside_its_block_alone() -> None:
    outer, inner = Recording(), Recording()
    with recording(outer):
        with recording(inner):
            assert list(active()) == [outer, inner]
        assert list(active()) == [outer]
    with pytest.raises(ValueError, match="inside"), recording(outer):
        raise ValueError("inside")
    assert list(active()) == []


def test_what_is_not_decided_is_not_recorded(tmp_path: Path) -> None:
    undecided, kept = rig(tmp_path).plan(offers("a")), Recording()
    nothing = rig(tmp_path).plan(offers("b"))
    nothing.verdict = Verdict(None, None, "nothing was measured")
    kept.take([undecided, nothing])
    assert kept.file().pins == {}
