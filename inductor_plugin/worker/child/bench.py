"""Jobs of the benchmark worker: build operands, run a candidate, check its results, measure it.

Exceptions are not caught here: they reach the border in `main`, and the parent identifies the
candidate by the last ``start`` event.
"""

from __future__ import annotations

import functools
import gc
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from inductor_plugin.attention.check import CheckResult
from inductor_plugin.kernels.call import ExternKernel, TensorSpec
from inductor_plugin.worker.child.attention import AttentionVerifier, verifier_of
from inductor_plugin.worker.child.garbage import garbage_in_new_memory
from inductor_plugin.worker.child.inductor import BoundSequence
from inductor_plugin.worker.child.launch import Call, bind
from inductor_plugin.worker.child.operands import Guarded
from inductor_plugin.worker.child.product import ProductVerifier
from inductor_plugin.worker.child.state import ProblemState
from inductor_plugin.worker.child.stress import Stress
from inductor_plugin.worker.jobs import BenchCandidate, Event, FinalJob, Outcome, ScreenJob
from inductor_plugin.worker.timer import repeats_for, take_samples, timer_for

Emit = Callable[[Event], None]

KEPT_PROBLEMS = 2
_SETTLE_S = 0.005
"""Between a candidate's last call and the comparison: a thread that it has left may still write."""
_CALLS_ALONE = 12
"""Calls in which a candidate that changes its operands now and then is to show it."""


_kept: OrderedDict[str, ProblemState] = OrderedDict()


def run(job: ScreenJob | FinalJob, emit: Emit) -> Outcome | tuple[Outcome, ...]:
    """Run one job of the benchmark worker."""
    return screen(job, emit) if isinstance(job, ScreenJob) else final(job, emit)


def release() -> None:
    """Free all operands after a failed job."""
    _kept.clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def screen(job: ScreenJob, emit: Emit) -> Outcome:
    """Run a candidate, check its results, take a few samples, and check its results again."""
    started = time.monotonic()
    candidate, library = job.candidate, job.library
    outcome = functools.partial(Outcome, candidate.candidate_id)
    problem = _prepared(job, candidate, emit)
    is_library = library is not None and library.candidate_id == candidate.candidate_id
    checked = not is_library and job.check is not None
    if checked:
        _reference(job, problem, emit)
        if not problem.comparable:
            return outcome("skipped", problem.incomparable)
        running, verdict = _first_verdict(candidate, problem, emit)
    else:
        running = _first_run(candidate, problem, emit)
        verdict = _keep(running, problem, emit) if is_library else CheckResult(None)
    # Without a check it is not known which inputs an attention kernel may write.
    damage = running.damage(problem) if checked else running.overrun()
    if checked and not damage and not verdict.reason:
        damage, reason = _wrong_at_ends(job, problem, emit)
        verdict = replace(verdict, reason=reason)
    samples: tuple[float, ...] = ()
    if not damage and (is_library or not verdict.reason):
        emit(Event("start", candidate.candidate_id))
        samples = take_samples(timer_for(candidate.output.device), running.call, job.sampling)
        if checked:
            verdict = _judged_again(running, problem, verdict, emit)
        damage = running.damage(problem) if checked else running.overrun()
    outcome = functools.partial(outcome, error=verdict.error, elapsed_s=time.monotonic() - started)
    if damage:
        return outcome("red_zone", damage)
    if verdict.reason and not is_library:
        problem.forget_operands()  # it may have damaged its operands, too: the next gets fresh ones
        return outcome("wrong", verdict.reason)
    return outcome("ok", verdict.reason, samples_ms=samples)


def _first_verdict(
    candidate: BenchCandidate, problem: ProblemState, emit: Emit
) -> tuple[_Running, CheckResult]:
    """Run a candidate and judge its results, again on fresh operands if they are wrong."""
    running = _first_run(candidate, problem, emit)
    verdict = _judged(running, problem, emit)
    if verdict.reason and not running.writes(problem):
        problem.forget_operands()  # another candidate may have damaged them
        running = _first_run(candidate, problem, emit)
        verdict = _judged(running, problem, emit)
    return running, verdict


def _wrong_at_ends(job: ScreenJob, problem: ProblemState, emit: Emit) -> tuple[str, str]:
    """Run a candidate at the ends of its size class; return what it damaged there, and what is wrong with its results."""
    for end in job.ends:
        state = problem.ends.setdefault(end.problem_id, ProblemState())
        if not _comparable_at(end, state, emit):
            continue
        running, verdict = _first_verdict(end.candidate, state, emit)
        damage = running.damage(state)
        if damage or verdict.reason:
            state.forget_operands()
            where = f" (at size {end.problem_id})"
            return damage and damage + where, verdict.reason and verdict.reason + where
    return "", ""


def _comparable_at(end: ScreenJob, state: ProblemState, emit: Emit) -> bool:
    """Return whether there is a reference at an end of the size class."""
    _prepare(end, state, end.candidate, emit)
    try:
        _reference(end, state, emit)
    except Exception:  # noqa: BLE001  the library kernel cannot be called there: nothing to compare with
        state.forget_operands()
    return state.comparable


def final(job: FinalJob, emit: Emit) -> tuple[Outcome, ...]:
    """Sample the candidates in turns; the order rotates, so that no candidate always runs first."""
    started = time.monotonic()
    problem = _prepared(job, job.candidates[0], emit)
    if job.check is not None:
        _reference(job, problem, emit)
    calls: dict[str, tuple[_Running, int]] = {}
    samples: dict[str, list[float]] = {candidate.candidate_id: [] for candidate in job.candidates}
    for candidate in job.candidates:
        first = _first_run(candidate, problem, emit)
        repeats = repeats_for(timer_for(candidate.output.device), first.call, job.sampling)
        calls[candidate.candidate_id] = first, repeats
    for turn in range(job.rounds):
        first = turn % len(job.candidates)
        for candidate in job.candidates[first:] + job.candidates[:first]:
            name = candidate.candidate_id
            emit(Event("start", name))
            running, repeats = calls[name]
            timer = timer_for(candidate.output.device)
            samples[name].append(timer.sample(running.call, repeats, cold=job.sampling.cold_cache))
            emit(Event("sample", name, samples[name][-1]))
        if time.monotonic() - started > job.sampling.max_total_s:
            break
    elapsed_s = (time.monotonic() - started) / len(job.candidates)
    library = job.library.candidate_id if job.library is not None else ""
    rivals = {name: running for name, (running, _) in calls.items() if name != library}
    damage = _dirty(rivals, problem, emit) if job.check is not None else {}
    outcomes: list[Outcome] = []
    for name, (first, _) in calls.items():
        running = rivals.get(name, first)
        outcome = Outcome(name, "ok", samples_ms=tuple(samples[name]), elapsed_s=elapsed_s)
        reason = damage.get(name) or running.overrun()
        if reason:
            outcome = replace(outcome, status="red_zone", reason=reason)
        elif job.check is not None and name in rivals and problem.comparable:
            outcome = _compared(outcome, running, problem, emit)
        outcomes.append(outcome)
    return tuple(outcomes)


def _dirty(rivals: dict[str, _Running], problem: ProblemState, emit: Emit) -> dict[str, str]:
    """Return which candidates changed which operand while they were measured in turns.

    If an operand has changed, each is called again alone on fresh operands, and its call in ``rivals`` is
    replaced by that; if none changes them then, it may be any.
    """
    specs = [spec for running in rivals.values() for spec in running.read()]
    changed = problem.changed(specs)
    if not changed:
        return {}
    culprits: dict[str, str] = {}
    for name, running in rivals.items():
        alone = rivals[name] = _first_run(running.candidate, problem, emit)
        for _ in range(_CALLS_ALONE):
            alone.call()
        if reason := alone.damage(problem):
            culprits[name] = reason
    return culprits or dict.fromkeys(
        rivals, "it, or another measured in turns with it, changed an operand"
    )


def _compared(outcome: Outcome, running: _Running, problem: ProblemState, emit: Emit) -> Outcome:
    """Return the outcome of a candidate after its numbers have been compared once more."""
    verdict = _judged_again(running, problem, CheckResult(None), emit)
    damage = running.damage(problem)
    if damage:
        return replace(outcome, status="red_zone", reason=damage)
    if verdict.reason:
        return replace(outcome, status="wrong", reason=verdict.reason, error=verdict.error)
    return replace(outcome, error=verdict.error)


@dataclass(frozen=True)
class _Running:
    """A candidate that has run; ``written`` are the inputs it writes besides its output."""

    candidate: BenchCandidate
    call: Call
    inputs: Sequence[torch.Tensor]
    result: torch.Tensor
    guarded: Guarded | None
    written: dict[int, Guarded]

    def repeat(self, emit: Emit, *, finite: bool = True) -> torch.Tensor:
        """Overwrite the outputs, run the candidate again and return its output."""
        for zone in self._zones():
            zone.refill(finite=finite)
        emit(Event("start", self.candidate.candidate_id))
        with garbage_in_new_memory():
            value = self.call()
            timer_for(self.candidate.output.device).synchronize()
        emit(Event("build", self.candidate.candidate_id))
        return value if isinstance(value, torch.Tensor) and not self.guarded else self.result

    @property
    def others(self) -> dict[str, torch.Tensor]:
        """What it writes besides its output, by name."""
        return {name: zone.tensor for name, zone in self._scratch.items()}

    def overrun(self) -> str:
        """Return what was written outside of the outputs, empty if nothing was."""
        return next(filter(None, (zone.overrun() for zone in self._zones())), "")

    def damage(self, problem: ProblemState) -> str:
        """Return what was written that is not an output, empty if nothing was."""
        return self.overrun() or problem.changed(self.read())

    def writes(self, problem: ProblemState) -> bool:
        """Return True if it has written anything that is not an output."""
        return bool(self.overrun()) or problem.first_changed(self.read()) is not None

    def read(self) -> list[TensorSpec]:
        """Return the operands that it may not write."""
        return [s for i, s in enumerate(self.candidate.inputs) if i not in self.written]

    def _zones(self) -> list[Guarded]:
        outputs = [self.guarded] if self.guarded else []
        return [*outputs, *self.written.values(), *self._scratch.values()]

    @property
    def _scratch(self) -> Mapping[str, Guarded]:
        return self.call.scratch if isinstance(self.call, BoundSequence) else {}


def _prepared(job: ScreenJob | FinalJob, candidate: BenchCandidate, emit: Emit) -> ProblemState:
    """Return the state of a problem; compute the float64 reference of an attention, if there is none yet."""
    problem = _kept.pop(job.problem_id, None) or ProblemState()
    _kept[job.problem_id] = problem
    while len(_kept) > KEPT_PROBLEMS:
        _kept.popitem(last=False)
    _prepare(job, problem, candidate, emit)
    return problem


def _prepare(
    job: ScreenJob | FinalJob, problem: ProblemState, candidate: BenchCandidate, emit: Emit
) -> None:
    if job.check is None or problem.attention is not None or problem.product is not None:
        return
    if job.attention is None:
        problem.product = ProductVerifier(job.check)
        problem.forget_operands()
        return
    emit(Event("build", candidate.candidate_id))
    problem.attention = verifier_of(job, candidate, problem.operand)
    for spec, tensor in problem.tensors.items():
        if problem.attention is not None:
            problem.attention.fill(spec, tensor)
    problem.sums.clear()


def _reference(job: ScreenJob | FinalJob, problem: ProblemState, emit: Emit) -> None:
    """Run the library kernel, if there is no reference yet."""
    if job.library is not None and not problem.known:
        _keep(_first_run(job.library, problem, emit), problem, emit)


def _first_run(candidate: BenchCandidate, problem: ProblemState, emit: Emit) -> _Running:
    """Build the operands, report the candidate to the parent, and run it once."""
    emit(Event("build", candidate.candidate_id))
    views = problem.attention.written(candidate) if problem.attention is not None else {}
    written = {i: Guarded(candidate.inputs[i]) for i in views}
    inputs = [
        written[i].tensor if i in written else problem.operand(spec)
        for i, spec in enumerate(candidate.inputs)
    ]
    problem.look(candidate.inputs)
    kernel = candidate.kernel
    returns = isinstance(kernel, ExternKernel) and not kernel.has_out
    guarded = None if returns else Guarded(candidate.output)
    emit(Event("start", candidate.candidate_id))
    with garbage_in_new_memory():
        call = bind(candidate, inputs, None if guarded is None else guarded.tensor)
        value = call()
        timer_for(candidate.output.device).synchronize()
    result = value if guarded is None else guarded.tensor
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"{candidate.candidate_id} returned {type(result).__name__}, not a tensor")
    return _Running(candidate, call, inputs, result, guarded, written)


def _outputs(
    running: _Running, trial: AttentionVerifier, result: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return all outputs of an attention kernel."""
    candidate = running.candidate
    views = trial.written(candidate)
    written = {i: running.written[i].seen_as(view) for i, view in views.items()}
    return trial.outputs(candidate, running.inputs, result, written)


def _poisoned(running: _Running, trial: AttentionVerifier, emit: Emit, *, library: bool) -> str:
    """Run an attention kernel again with NaN in its operands, and return why its outputs are wrong."""

    def run() -> dict[str, torch.Tensor]:
        return _outputs(running, trial, running.repeat(emit))

    return trial.poisoned(running.candidate, running.inputs, run, library=library)


def _keep(running: _Running, problem: ProblemState, emit: Emit) -> CheckResult:
    """Keep the results of the library kernel; the judgement's reason says what is wrong with them."""
    candidate, trial = running.candidate, problem.attention
    if problem.product is not None:
        emit(Event("build", candidate.candidate_id))
        problem.product.take(
            running.result,
            running.others,
            candidate.inputs,
            problem.tensors,
            lambda stress: _stressed(running, stress, emit),
        )
        problem.sums.clear()  # gaps of operands may have been filled
    if trial is None:
        return CheckResult(None)
    emit(Event("build", candidate.candidate_id))
    verdict = trial.take(_outputs(running, trial, running.result))
    poisoned = _poisoned(running, trial, emit, library=True)
    return replace(verdict, reason="; ".join(filter(None, (verdict.reason, poisoned))))


def _stressed(running: _Running, stress: Stress, emit: Emit) -> torch.Tensor:
    """Run a kernel again on changed operands."""
    tensors = dict(zip(running.candidate.inputs, running.inputs, strict=True))
    with stress.applied(tensors):
        return running.repeat(emit)


def _judged(running: _Running, problem: ProblemState, emit: Emit) -> CheckResult:
    """Return whether a candidate's first results are right, and those on changed operands."""
    emit(Event("build", running.candidate.candidate_id))
    if problem.attention is not None:
        trial = problem.attention
        verdict = trial.judge(_outputs(running, trial, running.result))
        if not verdict.reason:
            reason = _poisoned(running, trial, emit, library=False)
            verdict = replace(verdict, reason=reason)
        return verdict
    assert problem.product is not None
    verdict = problem.product.judge(running.result, running.others)
    if not verdict.reason and problem.product.stresses(running.candidate.inputs):
        output = _stressed(running, problem.product.stress, emit)
        verdict = replace(verdict, reason=problem.product.judge_stressed(output).reason)
    return verdict


def _judged_again(
    running: _Running, problem: ProblemState, before: CheckResult, emit: Emit
) -> CheckResult:
    """Run a candidate once more after its samples; return whether its results are still right."""
    result = running.repeat(emit)
    time.sleep(_SETTLE_S)
    if problem.attention is not None:
        verdict = problem.attention.judge(_outputs(running, problem.attention, result))
    else:
        assert problem.product is not None
        verdict = problem.product.judge(result, running.others)
    if not verdict.reason:
        return verdict if before.error is None else before
    return replace(verdict, reason=f"{verdict.reason} (right at first, wrong when called again)")
