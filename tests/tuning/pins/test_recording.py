"""What a recording keeps of compiles in several threads."""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from inductor_plugin.tuning.pins.recording import Recording
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
