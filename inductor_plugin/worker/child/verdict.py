"""Judges the results of a candidate: those of its first call, those on changed operands, and those of its later calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator
from dataclasses import replace

import torch

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child.attention import AttentionVerifier, Rerun
from inductor_plugin.worker.child.running import Emit, Running, moved
from inductor_plugin.worker.child.state import Accepted, ProblemState
from inductor_plugin.worker.child.stress import Stress
from inductor_plugin.worker.jobs import Event

_SETTLE_S = 0.005
"""Between a candidate's last call and the comparison: a thread that it has left may still write."""
_KEPT_BYTES = 256 << 20
"""Largest outputs of which a copy is kept that equal ones need not be compared; to compare 2 GiB takes a GPU some 10 ms."""
_CALLS_STEADY, _STEADY_S = 12, 0.3
"""Calls, and seconds at most, in which a candidate that is wrong now and then is to show it."""


def _outputs(
    running: Running, trial: AttentionVerifier, result: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return all outputs of an attention kernel."""
    candidate = running.candidate
    views = trial.written(candidate)
    written = {i: running.written[i].seen_as(view) for i, view in views.items()}
    return trial.outputs(candidate, running.inputs, result, written)


def _changed(running: Running, trial: AttentionVerifier, emit: Emit, *, library: bool) -> str:
    """Run an attention kernel again with NaN in its operands, and with large scores; return why its outputs are wrong."""

    def run() -> dict[str, torch.Tensor]:
        return _outputs(running, trial, running.repeat(emit))

    kernel = Rerun(running.candidate, running.inputs, run, library)
    reasons = trial.poisoned(kernel), trial.with_large_scores(kernel)
    return "; ".join(filter(None, reasons))


class Stopwatch(ContextDecorator):
    """Adds up the seconds of what it is around.

    Attributes:
        total_s: The seconds so far.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.total_s = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        """Begin."""
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        """Add the seconds since then."""
        self.total_s += time.perf_counter() - self._started


CHECKING = Stopwatch()
"""What is done for the check of numbers in this process."""


@CHECKING
def keep(running: Running, problem: ProblemState, emit: Emit) -> CheckResult:
    """Keep the results of the library kernel; the judgement's reason says what is wrong with them."""
    candidate, trial = running.candidate, problem.attention
    problem.accepted = None
    if problem.product is not None:
        emit(Event("build", candidate.candidate_id))
        problem.product.take(
            running.result,
            running.others,
            candidate.inputs,
            problem.tensors,
            # Eager mode calls it as it is: that it needs aligned operands is no fault (_weight_int8pack_mm does).
            lambda stress: moved(running, stress, emit, aligned=True).outputs,
        )
        problem.sums.clear()  # gaps of operands may have been filled
    if trial is None:
        return CheckResult(None)
    emit(Event("build", candidate.candidate_id))
    verdict = trial.take(_outputs(running, trial, running.result))
    changed = _changed(running, trial, emit, library=True)
    return replace(verdict, reason="; ".join(filter(None, (verdict.reason, changed))))


@CHECKING
def judge(
    running: Running,
    problem: ProblemState,
    emit: Emit,
    may_win: Callable[[Running], bool] = lambda _running: True,
) -> CheckResult:
    """Return whether a candidate's results are right: the first, and if it may win those on changed operands and of more calls.

    Args:
        running: The candidate.
        problem: Its problem, which keeps that all was compared and right.
        emit: Sends an event to the parent.
        may_win: Asked once the first results are right.
    """
    emit(Event("build", running.candidate.candidate_id))
    verdict = _verdict(running, problem, running.result)
    if verdict.reason or not may_win(running):
        return verdict
    emit(Event("build", running.candidate.candidate_id))
    verdict = _on_changed_operands(running, problem, emit, verdict)
    if not verdict.reason:
        verdict = _steady(running, problem, emit)
    if not verdict.reason:
        problem.compared.add(running.candidate.candidate_id)
    return verdict


def _on_changed_operands(
    running: Running, problem: ProblemState, emit: Emit, verdict: CheckResult
) -> CheckResult:
    """Return whether the results on changed operands are right; ``verdict`` is that on the operands as they are."""
    if problem.attention is not None:
        trial = problem.attention
        verdict = replace(verdict, reason=_changed(running, trial, emit, library=False))
        if not verdict.reason:
            elsewhere = moved(running, Stress(), emit)
            reason = elsewhere.overrun() or _verdict(elsewhere, problem, elsewhere.result).reason
            verdict = replace(verdict, reason=reason and f"{reason} (with other addresses)")
        return verdict
    assert problem.product is not None
    verdict = replace(verdict, reason=running.rearranged(problem.product.reference))
    changes = problem.product.changes(running.candidate.inputs) if not verdict.reason else ()
    memory: dict[TensorSpec, torch.Tensor] = {}
    for how in changes:
        elsewhere = moved(running, how.stress, emit, memory)
        reason = (
            elsewhere.overrun()
            or elsewhere.shares(running)
            or problem.product.judge_changed(*elsewhere.outputs, how).reason
        )
        if reason:
            return replace(verdict, reason=reason)
        del elsewhere  # its output may be as large as all that is free
    return verdict


def _verdict(running: Running, problem: ProblemState, result: torch.Tensor) -> CheckResult:
    """Return whether the outputs on unchanged operands are right."""
    trial, product = problem.attention, problem.product
    outputs = {"": result, **running.others} if trial is None else _outputs(running, trial, result)
    if problem.accepted is not None and problem.accepted.is_same(outputs):
        return problem.accepted.verdict
    if trial is not None:
        verdict = trial.judge(outputs)
    else:
        assert product is not None
        verdict = product.judge(result, running.others)
    if not verdict.reason and sum(output.nbytes for output in outputs.values()) <= _KEPT_BYTES:
        problem.accepted = Accepted.of(outputs, verdict)
    return verdict


def _steady(running: Running, problem: ProblemState, emit: Emit) -> CheckResult:
    """Call a candidate that was right some more times, and judge each result whose bits differ from those before."""
    verdict = _verdict(running, problem, running.repeat(emit))
    before = _copies(running, problem)
    # Of a CPU this thread's own time: a busy machine must not cut the calls short.
    on_cpu = running.candidate.output.device == "cpu"
    clock = time.thread_time if on_cpu else time.monotonic
    until = clock() + _STEADY_S
    emit(Event("start", running.candidate.candidate_id))
    calls = _CALLS_STEADY if running.guarded is not None else 0
    for call in range(calls):
        if verdict.reason or (clock() > until and call):
            break
        if on_cpu and not call:  # a compiled model may be called by any thread
            with ThreadPoolExecutor(1, "check") as other:
                other.submit(running.again).result()
        else:
            running.again()
        after = (zone.tensor for zone in running.zones())
        if not all(map(torch.equal, before, after)):
            verdict = _verdict(running, problem, running.result)
    emit(Event("build", running.candidate.candidate_id))
    return verdict


def _copies(running: Running, problem: ProblemState) -> list[torch.Tensor]:
    """Return what a candidate has written, as copies: of a product those that were accepted, as an output may fill the memory."""
    accepted = problem.accepted
    if problem.attention is None and running.guarded is not None and accepted is not None:
        return list(accepted.outputs.values())
    return [zone.tensor.clone() for zone in running.zones()]


@CHECKING
def judge_again(
    running: Running, problem: ProblemState, before: CheckResult, emit: Emit
) -> CheckResult:
    """Run a candidate once more after its samples; return whether its results are still right."""
    result = running.repeat(emit)
    time.sleep(_SETTLE_S)
    verdict = _verdict(running, problem, result)
    if not verdict.reason:
        return verdict if before.error is None else before
    return replace(verdict, reason=f"{verdict.reason} (right at first, wrong when called again)")
