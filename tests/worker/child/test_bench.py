"""Turns of the finals: which samples are taken again, and which count."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from inductor_plugin.kernels.call import (
    ExternKernel,
    ModuleKernel,
    OpKernel,
    RequestKernel,
    SequenceKernel,
    SequenceStep,
)
from inductor_plugin.ops.native import library
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.worker.bench_worker import BenchWorker
from inductor_plugin.worker.child import bench, launch, triton_launch
from inductor_plugin.worker.child.inductor import BoundSequence, _behind_zeroing, bind_op  # pyright: ignore[reportPrivateUsage]
from inductor_plugin.worker.devices.cpu import CPU
from inductor_plugin.worker.devices.cuda import CUDA
from inductor_plugin.worker.echo import Echoed
from inductor_plugin.worker.jobs import (
    Event,
    FinalJob,
    JobFailed,
    Outcome,
    Sampling,
    ScreenJob,
)
from inductor_plugin.worker.process import WorkerProcess
from inductor_plugin.worker.timer import take_samples
from tests.support.worker.benched import GOOD, LIBRARY, ONCE, SETTINGS

pytestmark = pytest.mark.usefixtures("few_objects")


class ScriptedTimer:
    """Takes samples of so many milliseconds; the negative ones are disturbed."""

    def __init__(self, samples_ms: Iterable[float]) -> None:
        self._samples_ms = iter(samples_ms)
        self.disturbed = False

    def prepare(self) -> None:
        """Nothing is needed."""

    host_bound, host_ms = False, 0.0

    def conditions(self) -> dict[str, object]:
        """Nothing is known."""
        return {}

    def warm(self, call: Callable[[], object]) -> None:
        """It is."""

    def release(self) -> None:
        """Nothing is held."""

    def synchronize(self) -> None:
        """Nothing runs on a device."""

    def sample(self, call: Callable[[], object], repeats: int, *, cold: bool) -> float:
        """Return the next sample."""
        call()
        sample_ms = next(self._samples_ms)
        self.disturbed = sample_ms < 0
        return abs(sample_ms)


def finals(
    monkeypatch: pytest.MonkeyPatch, samples_ms: Iterable[float], rounds: int, sampling: Sampling
) -> list[tuple[str, float, bool]]:
    """Run finals of a library kernel and a candidate; return the samples that are sent."""
    timer, events = ScriptedTimer(samples_ms), list[Event]()

    def timer_for(_: str) -> ScriptedTimer:
        return timer

    monkeypatch.setattr(bench, "timer_for", timer_for)
    job = FinalJob("finals", (LIBRARY, GOOD), rounds, sampling)
    outcomes = bench.final(job, events.append)
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
    return [(e.subject, e.value, e.disturbed) for e in events if e.what == "sample"]


def test_a_disturbed_sample_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = finals(monkeypatch, [1.0, -9.0, -8.0, 2.0], 1, ONCE)
    assert sent == [("library-mm", 1.0, False), ("good", 2.0, False)]


def test_of_three_disturbed_samples_the_shortest_is_sent_and_its_turn_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = finals(monkeypatch, [1.0, -9.0, -7.0, -8.0, 2.0, 1.0], 2, ONCE)
    assert sent == [
        ("library-mm", 1.0, True),
        ("good", 7.0, True),
        ("good", 2.0, False),  # the order rotates
        ("library-mm", 1.0, False),
    ]


def test_where_none_is_to_be_taken_again_each_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    as_they_are = Sampling(1, 1, 0.0, 60.0, cold_cache=False, retake_s=0.0)
    sent = finals(monkeypatch, [1.0, -9.0], 1, as_they_are)
    assert sent == [("library-mm", 1.0, False), ("good", 9.0, False)]


@pytest.mark.parametrize(("first_ms", "turns"), [(-1.0, 3), (1.0, 1)])
def test_disturbed_turns_have_more_time(
    monkeypatch: pytest.MonkeyPatch, first_ms: float, turns: int
) -> None:
    out_of_time = Sampling(1, 1, 0.0, 0.0, cold_cache=False, retake_s=60.0)
    first = [first_ms] * (3 if first_ms < 0 else 1)
    assert len(finals(monkeypatch, [*first, *[1.0] * 5], 3, out_of_time)) == 2 * turns


@pytest.mark.parametrize(
    ("device", "samples_ms", "turns"),
    [
        # Two turns of two, each in three tries; then calm ones.
        ("cuda:0", [*[-1.0] * 12, *[1.0] * 4], 4),
        ("cuda:0", [-1.0] * 24, 4),
        ("cuda:0", [1.0, -1.0, -1.0, -1.0, 1.0, 1.0], 2),
        ("cpu", [-1.0] * 12, 2),
    ],
)
def test_turns_that_were_all_disturbed_are_taken_again_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, samples_ms: list[float], turns: int
) -> None:
    """Another process on it, or a GPU that is too hot: a moment later it may be over."""
    monkeypatch.setattr(bench, "_PAUSE_S", 0.0)
    timer, events = ScriptedTimer(samples_ms), list[Event]()
    monkeypatch.setattr(bench, "timer_for", lambda _: timer)
    names = [replace(each, output=replace(each.output, device=device)) for each in (LIBRARY, GOOD)]
    job: Any = SimpleNamespace(candidates=names, rounds=2, sampling=ONCE)
    calls: Any = {
        each.candidate_id: SimpleNamespace(candidate=each, call=lambda: None, timed=lambda: None)
        for each in names
    }
    bench._take_turns(job, calls, 1, events.append)  # pyright: ignore[reportPrivateUsage]
    assert len([each for each in events if each.what == "sample"]) == 2 * turns


def test_what_is_done_before_the_first_turn_takes_none_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sample each decided, where operands or the first calls took longer than the limit."""
    clock_s = [0.0]
    run = bench._first_run  # pyright: ignore[reportPrivateUsage]

    def slow(*arguments: Any) -> Any:
        clock_s[0] += 100.0
        return run(*arguments)

    monkeypatch.setattr(bench, "_first_run", slow)
    monkeypatch.setattr(bench, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    assert len(finals(monkeypatch, [1.0] * 6, 3, ONCE)) == 6


def test_all_finalists_have_as_many_calls_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, taken = ScriptedTimer([0.3, 1.0, *[1.0] * 4]), list[int]()
    sample = timer.sample

    def noted(call: Callable[[], object], repeats: int, *, cold: bool) -> float:
        taken.append(repeats)
        return sample(call, repeats, cold=cold)

    monkeypatch.setattr(timer, "sample", noted)
    monkeypatch.setattr(bench, "timer_for", lambda _: timer)
    cold = replace(ONCE, min_sample_ms=0.8, cold_cache=True)
    bench.final(FinalJob("one", (LIBRARY, GOOD), 2, cold), lambda event: None)
    assert taken == [1, 1, 3, 3, 3, 3]


def test_each_sample_of_a_cpu_has_an_echo_where_caches_are_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer, echoes = ScriptedTimer([1.0] * 99), list[bool]()
    sample = timer.sample

    def noted(call: Callable[[], object], repeats: int, *, cold: bool) -> float:
        echoes.append(isinstance(call, Echoed))
        return sample(call, repeats, cold=cold)

    monkeypatch.setattr(timer, "sample", noted)
    monkeypatch.setattr(bench, "timer_for", lambda _: timer)
    monkeypatch.setattr(bench, "take_samples", lambda _, call, how: take_samples(timer, call, how))
    cold = replace(ONCE, min_sample_ms=0.8, cold_cache=True)
    for sampling in (cold, ONCE):
        bench.final(FinalJob("one", (LIBRARY, GOOD), 2, sampling), lambda event: None)
        screened = ScreenJob(
            "one", LIBRARY, GOOD, sampling, NumberCheck(Tolerance(1e-3, 1e-3)), lead_ms=9.0
        )
        bench.screen(screened, lambda event: None)
        assert set(echoes) == {sampling is cold}
        assert len(echoes) >= 7 - 2 * (sampling is not cold)
        echoes.clear()


def test_how_the_device_was_is_in_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = ScriptedTimer([1.0] * 20)
    monkeypatch.setattr(bench, "timer_for", lambda _: timer)
    monkeypatch.setattr(timer, "conditions", lambda: {"sm_clock_mhz": 1980})
    timer.host_bound = True
    screened = bench.run(ScreenJob("one", None, LIBRARY, ONCE, None), lambda event: None)
    assert screened.conditions == (("sm_clock_mhz", 1980), ("host_bound", True))  # type: ignore[union-attr]
    timer.host_bound, timer.host_ms = False, 0.0125
    (final,) = bench.run(FinalJob("one", (LIBRARY,), 1, ONCE), lambda event: None)  # type: ignore[misc]
    assert final.conditions == (  # type: ignore[union-attr]
        ("sm_clock_mhz_before", 1980),
        ("sm_clock_mhz", 1980),
        ("host_ms", 0.0125),
    )


def test_finals_begin_on_a_warm_gpu_and_keep_the_least_time_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other work on the machine only prolongs it."""
    timer, done = ScriptedTimer([1.0] * 20), list[str]()
    hosts_ms = iter([0.03, 0.01, 0.02])
    sample = timer.sample

    def taken(call: Callable[[], object], repeats: int, *, cold: bool) -> float:
        done.append("sample")
        timer.host_ms = next(hosts_ms)
        return sample(call, repeats, cold=cold)

    monkeypatch.setattr(timer, "sample", taken)
    monkeypatch.setattr(timer, "warm", lambda _: done.append("warm"))
    monkeypatch.setattr(bench, "timer_for", lambda _: timer)
    monkeypatch.setattr(bench, "repeats_for", lambda *_: 1)
    (final,) = bench.final(FinalJob("one", (LIBRARY,), 3, ONCE), lambda event: None)
    assert done == ["warm", "sample", "sample", "sample"]
    assert dict(final.conditions)["host_ms"] == 0.01


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize("place", ["alone", "in a sequence"])
def test_what_python_launches_until_there_is_a_call_site_is_marked(
    monkeypatch: pytest.MonkeyPatch, place: str, *, compiles: bool
) -> None:
    """20 us instead of 0.4: without a compiler generated code launches it so, too, else it is no time of that."""
    operator = OpKernel("inductor_plugin::cutlass_mm.out", ("k@/a/path", "tt", 1, 0, 1))
    out = torch.empty(4, 4)
    monkeypatch.setattr(library, "sites", lambda: None)
    monkeypatch.setattr(launch, "compiles_sites", lambda: compiles)
    call = bind_op(operator, (out, out), out)
    kernel: Any = operator
    if place == "in a sequence":
        call = BoundSequence((print, call), {})
        steps = (SequenceStep(ExternKernel("mm"), ()), SequenceStep(operator, ()))
        kernel = SequenceKernel(steps)
    assert launch.launched_by_python(call)
    assert launch.launched_as_generated(kernel, call) is not compiles
    own = launch.launch_conditions(call, 0.02, host_bound=False)
    assert dict(own) == {"host_ms": 0.02, "launched_by_python": True}
    native: Any = SimpleNamespace(launch=print)
    monkeypatch.setattr(library, "sites", lambda: SimpleNamespace(product_site=lambda *_: native))
    assert not launch.launched_by_python(bind_op(operator, (out, out), out))


def test_what_is_launched_otherwise_than_in_generated_code_has_no_host_time() -> None:
    operator = OpKernel("inductor_plugin::cutlass_mm.out", ("k@/a/path", "tt", 1, 0, 1))
    steps = (SequenceStep(operator, ()), SequenceStep(ExternKernel("mm"), ()))
    calls: tuple[Any, ...] = (print, print)
    fast: Any = triton_launch.BoundLaunch(print, (), 0, int)
    launched = launch.launched_as_generated
    assert launched(SequenceKernel(steps), BoundSequence(calls, {}))
    fused = SequenceKernel((*steps, SequenceStep(ModuleKernel("text"), ())))
    assert launched(fused, BoundSequence((*calls, fast), {}))
    assert not launched(fused, BoundSequence((*calls, print), {}))
    assert not launched(fused, BoundSequence((*calls, _behind_zeroing([torch.ones(1)], fast)), {}))
    assert launched(RequestKernel(b""), fast)
    assert not launched(RequestKernel(b""), print)


@pytest.mark.parametrize(
    ("turns", "samples_ms", "disturbed"),
    [
        ([(5.0, True), *[(1.0, False)] * 3, (6.0, True)], (1.0,) * 3, False),
        ([(5.0, True), (1.0, False), (6.0, True)], (1.0,), False),  # others may be in another leg
        ([(1.0, False)], (1.0,), False),
        ([(5.0, True), (6.0, True)], (5.0, 6.0), True),
        ([], (), False),
    ],
)
def test_calm_turns_count_and_disturbed_ones_where_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch,
    turns: list[tuple[float, bool]],
    samples_ms: tuple[float, ...],
    disturbed: bool,
) -> None:
    def attempt(_: WorkerProcess, job: Any, __: float, watch: Callable[[Event], Any]) -> Any:
        watch(Event("start", "good"))
        for value_ms, late in turns:
            watch(Event("sample", "good", value_ms, late))
        done = tuple(Outcome(each.candidate_id, "ok") for each in job.candidates)
        return done if turns else JobFailed("crashed", "it crashed")

    monkeypatch.setattr(WorkerProcess, "attempt", attempt)
    (outcome,) = BenchWorker(SETTINGS).final(FinalJob("finals", (GOOD,), 3, ONCE))
    assert (outcome.samples_ms, outcome.disturbed) == (samples_ms, disturbed)
    assert outcome.turns == len(turns)


@pytest.mark.parametrize(
    ("events", "failure", "status", "no_device"),
    [
        ("start", JobFailed("out_of_memory", "no room", crowded=True), "skipped", True),
        ("build", JobFailed("out_of_memory", "no room", crowded=True), "skipped", True),
        ("start", JobFailed("out_of_memory", "no room", crowded=False), "pruned", False),
        ("build", JobFailed("out_of_memory", "no room", crowded=False), "skipped", False),
        ("start", JobFailed("out_of_memory", "the machine's memory"), "out_of_memory", False),
        ("build", JobFailed("sticky_error", "the driver refuses"), "skipped", True),
        ("start", JobFailed("sticky_error", "a bad address"), "sticky_error", False),
        ("build", JobFailed("raised", "no such type"), "skipped", False),
    ],
)
def test_a_candidate_is_blamed_for_what_it_did_alone(
    monkeypatch: pytest.MonkeyPatch,
    events: Any,
    failure: JobFailed,
    status: str,
    no_device: bool,
) -> None:
    def attempt(_: WorkerProcess, job: Any, __: float, watch: Callable[[Event], Any]) -> Any:
        watch(Event("build", "good"))
        watch(Event(events, "good"))
        return failure

    monkeypatch.setattr(WorkerProcess, "attempt", attempt)
    outcome = BenchWorker(SETTINGS).screen(ScreenJob("one", None, GOOD, ONCE, None))
    assert (outcome.status, outcome.no_device) == (status, no_device)
    assert failure.reason in outcome.reason


def test_what_evicts_the_cache_is_allocated_before_a_candidate_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise its buffer of 256 MiB is the candidate's want of memory."""
    happened: list[str] = []
    timer = ScriptedTimer([1.0] * 20)
    monkeypatch.setattr(timer, "prepare", lambda: happened.append("prepare"))
    monkeypatch.setattr(bench, "timer_for", lambda _: timer)
    cold = Sampling(1, 1, 0.0, 60.0, cold_cache=True)
    for job in (
        ScreenJob("screened", None, LIBRARY, cold, None),
        FinalJob("raced", (LIBRARY,), 1, cold),
    ):
        happened.clear()
        bench.run(job, lambda event: happened.append(event.what))
        assert "prepare" in happened[: happened.index("start")]


def test_operands_of_one_problem_are_kept_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, count in ((CPU, 2), (CUDA, 1)):
        bench.release()
        monkeypatch.setattr(bench, "known", Mock(return_value=device))
        for name in ("first", "second", "third"):
            bench.run(ScreenJob(name, None, LIBRARY, ONCE, None), lambda event: None)
        assert len(bench._kept) == count  # pyright: ignore[reportPrivateUsage]
    bench.release()
    assert not bench._kept  # pyright: ignore[reportPrivateUsage]


def test_a_problem_beyond_those_that_a_device_keeps_takes_the_place_of_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "_kept", OrderedDict[str, Any]())
    for device, left in ((CPU, ["second", "third"]), (CUDA, ["third"])):
        bench._kept.clear()  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(bench, "known", Mock(return_value=device))
        for name in ("first", "second", "third"):
            job = ScreenJob(name, None, LIBRARY, ONCE, None)
            bench._prepared(job, LIBRARY, lambda event: None)  # pyright: ignore[reportPrivateUsage]
        assert list(bench._kept) == left  # pyright: ignore[reportPrivateUsage]
