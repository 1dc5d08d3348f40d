from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import inductor_plugin
from inductor_plugin.cli.again import child
from inductor_plugin.cli.again.child import DisturbedError, chosen, compared, in_turns, register
from inductor_plugin.device import BoundCall
from inductor_plugin.tuning.race import final_sampling
from inductor_plugin.worker.devices.cpu import CPU
from inductor_plugin.worker.echo import Echoed

FINALS = replace(final_sampling(CPU), retake_s=0.5)
"""As tuning samples where it is not under test."""


class BusyTimer:
    """Times calls by a machine that gets slower all the time; disturbed at the samples that it is given.

    Attributes:
        cold: Whether caches were evicted, for each sample.
        count: Samples so far.
    """

    host_bound, host_ms = False, 0.0

    def __init__(self, library: BoundCall, disturbs: Callable[[int], bool] = lambda _: False):
        self.disturbed = False
        self.cold: list[bool] = []
        self._library, self._disturbs = library, disturbs

    @property
    def count(self) -> int:
        return len(self.cold)

    def conditions(self) -> dict[str, object]:
        return {}

    def warm(self, call: BoundCall) -> None:
        call()

    def prepare(self) -> None:
        """Allocate nothing."""

    release = synchronize = prepare

    def sample(self, call: BoundCall, repeats: int, *, cold: bool) -> float:
        assert repeats == 1
        call()
        self.cold.append(cold)
        self.disturbed = self._disturbs(self.count)
        slow = 50.0 if self.disturbed else 1.0
        return slow * self.count**0.1 * (2.0 if call is self._library else 1.0)


def named_calls(turns: list[str]) -> dict[str, BoundCall]:
    def kernel(name: str) -> BoundCall:
        return lambda: turns.append(name)

    return {name: kernel(name) for name in ("winner", "library kernel", "rival")}


def test_calls_are_timed_in_turns_with_cold_caches() -> None:
    turns: list[str] = []
    calls = named_calls(turns)
    timer = BusyTimer(calls["library kernel"])
    samples, calls_a_sample = in_turns(calls, 0.0, timer, FINALS)
    report = compared(samples["winner"], samples["library kernel"])
    assert calls_a_sample == 1
    assert all(timer.cold)
    assert report["rounds"] == 12
    # In turns, the ratio is not moved by what slows down all.
    low, high = report["low"], report["high"]
    assert low is not None
    assert high is not None
    assert low <= 2.0 <= high
    assert report["speedup"] == pytest.approx(2.0, rel=0.05)
    assert statistics.median(samples["rival"]) == pytest.approx(report["winner_ms"], rel=0.1)
    firsts = turns[-30::3]
    assert firsts.count("winner") == firsts.count("rival") == 5


def test_a_turn_that_other_work_disturbs_leaves_no_sample() -> None:
    calls = named_calls([])
    timer = BusyTimer(calls["library kernel"], lambda sample: sample % 20 >= 8)
    samples, _ = in_turns(calls, 0.0, timer, FINALS)
    assert {len(each) for each in samples.values()} == {12}
    assert timer.count > 60
    assert max(max(each) for each in samples.values()) < 10.0


def test_where_all_turns_are_disturbed_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_PATIENCE_S", 0.0)
    calls = named_calls([])
    timer = BusyTimer(calls["library kernel"], lambda sample: sample > 12)
    with pytest.raises(DisturbedError, match="all but 3 of 12 turns"):
        in_turns(calls, 0.0, timer, FINALS)


@pytest.mark.parametrize(("rounds", "high"), [(4, None), (5, None), (6, 3.0)])
def test_of_few_turns_no_interval_is_claimed(rounds: int, high: float | None) -> None:
    library = [2.0, *[3.0] * (rounds - 1)]
    report = compared([1.0] * rounds, library)
    assert (report["speedup"], report["high"]) == (3.0, high)
    assert report["low"] == (2.0 if high else 0.0)


@pytest.mark.parametrize("policy", ["cached", "tune"])
def test_a_second_cache_has_no_say_where_no_record_is_wanted(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold this very record: the library kernel would be the winner, and nothing would be measured again."""
    options: list[Mapping[str, str]] = []

    def compiled(_script: Any, modules: Any, given: Mapping[str, str]) -> tuple[Any, list[Any]]:
        assert len({id(each) for each in modules}) == 2  # the call, and its echo
        options.append(given)
        return Mock(), [ticket("d", "fast")]

    monkeypatch.setattr(child, "_compiled", compiled)
    monkeypatch.setattr(child, "_time", Mock())
    monkeypatch.setattr(sys, "argv", ["run.py", "--policy", policy, "--bench", "0.1"])
    facts = {"DIGEST": "d", "WINNER": "fast", "EPILOGUE": None, "CACHE_DIR": "/cache"}
    assert child.main(SimpleNamespace(__doc__="A call.", Call=call_on("cpu"), **facts)) == 0
    run, library = options
    assert library["cache_read"] == ""
    assert run.get("cache_read") == ("" if policy == "tune" else None)


def call_on(device: str) -> Callable[[], Any]:
    """Return what makes modules with an operand on a device."""
    return lambda: SimpleNamespace(inputs=[SimpleNamespace(device=SimpleNamespace(type=device))])


@pytest.mark.parametrize(("device", "count"), [("cpu", 2), ("cuda", 1)])
def test_on_a_cpu_alone_a_call_has_an_echo_on_other_operands(device: str, count: int) -> None:
    script = SimpleNamespace(Call=call_on(device))
    module = script.Call()
    modules = child._with_echo(script, module)  # pyright: ignore[reportPrivateUsage]
    assert modules[0] is module
    assert len(modules) == len({id(each) for each in modules}) == count


def test_the_echo_is_compiled_as_the_call_is() -> None:
    def compiled(module: Any, **how: Any) -> Callable[[], Any]:
        assert how["options"] == {"a": "1", "b": "2", "remote_url": ""}
        return lambda: module

    script = SimpleNamespace(OPTIONS={"a": "0"}, compiled=compiled)
    call, _ = child._compiled(script, ["call", "echo"], {"a": "1", "b": "2"})  # pyright: ignore[reportPrivateUsage]
    assert isinstance(call, Echoed)
    assert (call(), call.echo()) == ("call", "echo")
    alone, _ = child._compiled(script, ["call"], {"a": "1", "b": "2"})  # pyright: ignore[reportPrivateUsage]
    assert not isinstance(alone, Echoed)


def test_a_template_is_found_in_the_folder_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_reader.py").write_text("class Kernel:\n    pass\n")
    registered: list[object] = []
    monkeypatch.setattr(inductor_plugin, "register", registered.append)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    register(["beside_the_reader:Kernel"])
    assert [type(each).__name__ for each in registered] == ["Kernel"]


def ticket(digest: str, winner: str | None) -> Any:
    verdict = None if winner is None else SimpleNamespace(winner=winner, reason="fastest")
    output = SimpleNamespace(device="cpu")
    problem = SimpleNamespace(describe=lambda: f"mm of {digest}", output=output)
    return SimpleNamespace(digest=digest, verdict=verdict, problem=problem)


@pytest.mark.parametrize(
    ("tickets", "winner", "said"),
    [
        ([ticket("other", "b"), ticket("d", "a")], "a", "chosen: a (as recorded; fastest)"),
        ([ticket("d", "b")], "b", "chosen: b (the record says 'a'; fastest)"),
        ([ticket("d", None), ticket("d", "a")], "a", "chosen: a (as recorded; fastest)"),
        ([ticket("other", "a")], None, "was not this record; what was decided: mm of other other"),
        ([], None, "what was decided: none"),
    ],
)
def test_the_kernel_of_the_record_is_named_and_no_other(
    tickets: list[Any], winner: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = SimpleNamespace(DIGEST="d", WINNER="a", EPILOGUE=None)
    assert chosen(script, tickets) == winner
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("winner", "how"),
    [
        ("fused.mm", "one kernel, fused"),
        ("unfused.mm", "two kernels, not fused"),
        ("fused+rest-mm", "two kernels, fused in part"),
    ],
)
def test_of_a_call_with_an_epilogue_it_says_how_far_it_is_fused(
    winner: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = SimpleNamespace(DIGEST="d", WINNER=winner, EPILOGUE={"step 0": "product"})
    assert chosen(script, [ticket("d", winner)]) == winner
    assert capsys.readouterr().out.endswith(f"; fastest; {how})\n")
