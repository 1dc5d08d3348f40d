"""Jobs of the benchmark worker: build operands, run a candidate, check its results, measure it.

Exceptions are not caught here: they reach the border in `main`, and the parent identifies the
candidate by the last ``start`` event.
"""

from __future__ import annotations

import functools
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.worker.child import memory
from inductor_plugin.worker.child.attention import verifier_of
from inductor_plugin.worker.child.launch import launch_conditions, launched_as_generated
from inductor_plugin.worker.child.operands import GuardedOutput
from inductor_plugin.worker.child.product import ProductVerifier
from inductor_plugin.worker.child.running import Emit, Running, bound, echoed
from inductor_plugin.worker.child.state import ProblemState
from inductor_plugin.worker.child.verdict import CHECKING, judge, judge_again, keep
from inductor_plugin.worker.devices.lookup import known, uuid_of
from inductor_plugin.worker.failure import one_line
from inductor_plugin.worker.jobs import (
    COMPARED_ONCE,
    MAY_HAVE_CHANGED,
    BenchCandidate,
    Event,
    FinalJob,
    Outcome,
    Sampling,
    ScreenJob,
    Status,
)
from inductor_plugin.worker.timer import (
    Samples,
    release_timers,
    repeats_for,
    take_samples,
    timer_for,
)
from inductor_plugin.worker.turn import WAIT_S, Turn, turn

_CALLS_ALONE = 12
"""Calls in which a candidate that changes its operands now and then is to show it."""
_PAUSE_S = 0.5
"""Pause before turns are taken again that were all disturbed."""
_TRIES = 3
"""Tries in which a sample of the finals is to be undisturbed by other work."""


Conditions = tuple[tuple[str, object], ...]

_kept: OrderedDict[str, ProblemState] = OrderedDict()


def run(job: ScreenJob | FinalJob, emit: Emit) -> Outcome | tuple[Outcome, ...]:
    """Run one job of the benchmark worker, on a GPU while no other process of the machine runs one there."""
    before_s = CHECKING.total_s
    candidates = (job.candidate,) if isinstance(job, ScreenJob) else job.candidates
    device, subject = candidates[0].output.device, candidates[0].candidate_id
    memory.mark_start(device)
    uuid = uuid_of(device)
    # As a rule, others have the same options.
    wait_s = WAIT_S + max(each.timeout_s for each in candidates)
    # The parent ends a job of which it hears nothing.
    with turn(uuid, wait_s, waiting=lambda: emit(Event("build", subject))) as mine:
        emit_step = functools.partial(_emit_step, emit, mine)
        if isinstance(job, ScreenJob):
            outcome = screen(job, emit_step)
            disturbed = outcome.disturbed or (bool(outcome.samples_ms) and not mine)
            return replace(outcome, check_s=CHECKING.total_s - before_s, disturbed=disturbed)
        first, *rest = final(job, emit_step)
    return replace(first, check_s=CHECKING.total_s - before_s), *rest


def _emit_step(emit: Emit, mine: Turn, event: Event) -> None:
    """Send an event, and show life; a sample as one that another process may have disturbed, if one has been there."""
    mine.touch()
    disturbed = event.disturbed or (event.what == "sample" and not mine)
    emit(replace(event, disturbed=disturbed))


def release() -> None:
    """Free all operands, and give the GPU's memory back: after a failed job, and where nothing more is measured."""

    def drop() -> None:
        _kept.clear()
        release_timers()

    memory.give_back(drop)


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
        running, verdict = _first_verdict(
            candidate, problem, emit, functools.partial(_may_win, job, problem, emit)
        )
    else:
        running = _first_run(candidate, problem, emit)
        verdict = keep(running, problem, emit) if is_library else CheckResult(None)
    # Without a check it is not known which inputs an attention kernel may write.
    damage = running.damage(problem) if checked else running.overrun()
    gap = ""
    if checked and not damage and not verdict.reason:
        damage, reason, gap = _at_ends(job, problem, emit)
        verdict = replace(verdict, reason=reason)
    samples = Samples()
    if not damage and (is_library or not verdict.reason):
        running = echoed(running, problem, emit, cold=job.sampling.cold_cache)
        timer = timer_for(candidate.output.device)
        samples = take_samples(timer, running.timed, job.sampling)
        known = launched_as_generated(candidate.kernel, running.call)
        host_ms = samples.host_ms if known else 0.0
        own = launch_conditions(running.call, host_ms, host_bound=samples.host_bound)
        if checked:
            may_win = min(samples.used_ms) <= job.lead_ms
            verdict = _judged_again(running, problem, verdict, emit, may_win=may_win)
            if not may_win and candidate.candidate_id not in problem.compared:
                own = (*own, (COMPARED_ONCE, True))
        conditions = (*timer.conditions().items(), *own)
        outcome = functools.partial(outcome, conditions=conditions)
        damage = running.damage(problem) if checked else running.overrun()
    outcome = functools.partial(outcome, error=verdict.error, elapsed_s=time.monotonic() - started)
    if damage:
        return outcome("red_zone", damage)
    if verdict.reason and not is_library:
        problem.forget_operands()  # it may have damaged its operands, too: the next gets fresh ones
        return outcome("wrong", verdict.reason)
    sampled = outcome("ok", verdict.reason or gap, samples_ms=samples.used_ms)
    return replace(sampled, disturbed=samples.disturbed)


def _first_verdict(
    candidate: BenchCandidate,
    problem: ProblemState,
    emit: Emit,
    may_win: Callable[[Running], bool] = lambda _running: True,
) -> tuple[Running, CheckResult]:
    """Run a candidate and judge its results, again on fresh operands if they are wrong."""
    running = _first_run(candidate, problem, emit)
    verdict = judge(running, problem, emit, may_win)
    if verdict.reason and not running.writes(problem):
        problem.forget_operands()  # another candidate may have damaged them
        running = _first_run(candidate, problem, emit)
        verdict = judge(running, problem, emit, may_win)
    return running, verdict


def _may_win(job: ScreenJob, problem: ProblemState, emit: Emit, running: Running) -> bool:
    """Return whether a candidate may win, by the shorter of two samples; True where it has no rival yet."""
    if job.lead_ms == math.inf:
        return True
    timer = timer_for(running.candidate.output.device)
    cold = job.sampling.cold_cache
    call = echoed(running, problem, emit, cold=cold).timed
    return min(timer.sample(call, 1, cold=cold) for _ in range(2)) <= job.lead_ms


def _judged_again(
    running: Running, problem: ProblemState, before: CheckResult, emit: Emit, *, may_win: bool
) -> CheckResult:
    """Return whether the results after the samples are right, and all others of a candidate that may win and was compared once."""
    verdict = judge_again(running, problem, before, emit)
    if verdict.reason or not may_win or running.candidate.candidate_id in problem.compared:
        return verdict
    return judge(running, problem, emit)


def _at_ends(job: ScreenJob, problem: ProblemState, emit: Emit) -> tuple[str, str, str]:
    """Run a candidate at the ends of its size class.

    Returns what it damaged there, what is wrong with its results, and at which end they were not compared, and why.
    """
    gaps: list[str] = []
    for end in job.ends:
        state = problem.ends.setdefault(end.problem_id, ProblemState())
        gap = _incomparable_at(end, state, emit)
        if gap:
            gaps.append(f"not compared at size {end.problem_id}: {gap}")
            continue
        running, verdict = _first_verdict(end.candidate, state, emit)
        damage = running.damage(state)
        if damage or verdict.reason:
            state.forget_operands()
            where = f" (at size {end.problem_id})"
            return damage and damage + where, verdict.reason and verdict.reason + where, ""
    return "", "", "; ".join(gaps)


def _incomparable_at(end: ScreenJob, state: ProblemState, emit: Emit) -> str:
    """Return why candidates cannot be compared at an end of the size class; empty if they can be."""
    _prepare(end, state, end.candidate, emit)
    try:
        _reference(end, state, emit)
    # Any operator may be the library kernel, and what it raises at a size that the user never ran is no candidate's fault.
    except Exception as error:  # noqa: BLE001
        state.forget_operands()
        return f"the library kernel raised {type(error).__name__}: {one_line(str(error))}"
    return state.incomparable


def final(job: FinalJob, emit: Emit) -> tuple[Outcome, ...]:
    """Sample the candidates in turns; the order rotates, so that no candidate always runs first.

    The samples are sent as events: those from before a crash are kept.
    """
    started = time.monotonic()
    problem = _prepared(job, job.candidates[0], emit)
    if job.check is not None:
        _reference(job, problem, emit)
    first: dict[str, Running] = {}
    repeats = 1  # of all: the shortest of three calls is not the measure that a single call is
    for candidate in job.candidates:
        running = _first_run(candidate, problem, emit)
        running = echoed(running, problem, emit, cold=job.sampling.cold_cache)
        first[candidate.candidate_id] = running
        timer = timer_for(candidate.output.device)
        repeats = max(repeats, repeats_for(timer, running.timed, job.sampling))
    conditions = _take_turns(job, first, repeats, emit)
    elapsed_s = (time.monotonic() - started) / len(job.candidates)
    library = job.library.candidate_id if job.library is not None else ""
    rivals = {name: running for name, running in first.items() if name != library}
    damage = _dirty(rivals, problem, emit) if job.check is not None else {}
    outcomes: list[Outcome] = []
    for name, before in first.items():
        running = rivals.get(name, before)
        outcome = Outcome(name, "ok", elapsed_s=elapsed_s, conditions=conditions[name])
        reason = damage.get(name) or running.overrun()
        if reason:
            # It is not known which of several changed the operand, so none goes into quarantine for it.
            status: Status = "skipped" if reason == MAY_HAVE_CHANGED else "red_zone"
            outcome = replace(outcome, status=status, reason=reason)
        elif job.check is not None and name in rivals and problem.comparable:
            outcome = _compared(outcome, running, problem, emit)
        outcomes.append(outcome)
    return tuple(outcomes)


def _take_turns(
    job: FinalJob, runs: dict[str, Running], repeats: int, emit: Emit
) -> dict[str, Conditions]:
    """Sample the candidates in turns, and send the samples; return the conditions in which each was measured.

    On a GPU all turns are taken once more, after a pause, where each was disturbed.
    """
    started = time.monotonic()  # without building operands, the reference and first calls
    leader = job.candidates[0]
    timer = timer_for(leader.output.device)
    emit(Event("start", leader.candidate_id))
    timer.warm(runs[leader.candidate_id].call)
    before, host_bound = timer.conditions(), set[str]()
    host_ms = {
        name: math.inf if launched_as_generated(each.kernel, runs[name].call) else 0.0
        for name, each in ((each.candidate_id, each) for each in job.candidates)
    }
    again = job.rounds if leader.output.device != "cpu" else 0
    disturbances = 0
    for number in range(job.rounds + again):
        if number == job.rounds:
            if disturbances < number or not job.sampling.retake_s:
                break
            started += _PAUSE_S
            time.sleep(_PAUSE_S)
        first = number % len(job.candidates)
        order = job.candidates[first:] + job.candidates[:first]
        taken: dict[str, tuple[float, bool]] = {}
        for candidate in order:
            name = candidate.candidate_id
            taken[name] = _calm_sample(runs[name], repeats, job.sampling, emit)
            host_bound |= {name} if timer.host_bound else set()
            host_ms[name] = min(host_ms[name], timer.host_ms)
        disturbed = any(disturbed for _, disturbed in taken.values())
        disturbances += disturbed
        for name, (value_ms, _) in taken.items():
            emit(Event("sample", name, value_ms, disturbed))
        limit_s = job.sampling.max_total_s + (job.sampling.retake_s if disturbances else 0.0)
        if time.monotonic() - started > limit_s:
            break
    after = {f"{name}_before": value for name, value in before.items()} | timer.conditions()
    own = {
        name: launch_conditions(running.call, host_ms[name], host_bound=name in host_bound)
        for name, running in runs.items()
    }
    return {name: (*after.items(), *facts) for name, facts in own.items()}


def _calm_sample(
    running: Running, repeats: int, sampling: Sampling, emit: Emit
) -> tuple[float, bool]:
    """Return a sample in milliseconds, and whether it is disturbed; it is taken again a few times if it is."""
    timer = timer_for(running.candidate.output.device)
    shortest_ms = math.inf
    for _ in range(_TRIES):
        emit(Event("start", running.candidate.candidate_id))
        value_ms = timer.sample(running.timed, repeats, cold=sampling.cold_cache)
        if not (timer.disturbed and sampling.retake_s):
            return value_ms, False
        shortest_ms = min(shortest_ms, value_ms)
    return shortest_ms, True


def _dirty(rivals: dict[str, Running], problem: ProblemState, emit: Emit) -> dict[str, str]:
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
    return culprits or dict.fromkeys(rivals, MAY_HAVE_CHANGED)


def _compared(outcome: Outcome, running: Running, problem: ProblemState, emit: Emit) -> Outcome:
    """Return the outcome of a candidate after its numbers have been compared once more."""
    verdict = _judged_again(running, problem, CheckResult(None), emit, may_win=True)
    damage = running.damage(problem)
    if damage:
        return replace(outcome, status="red_zone", reason=damage)
    if verdict.reason:
        return replace(outcome, status="wrong", reason=verdict.reason, error=verdict.error)
    return replace(outcome, error=verdict.error)


def _prepared(job: ScreenJob | FinalJob, candidate: BenchCandidate, emit: Emit) -> ProblemState:
    """Return the state of a problem; compute the float64 reference of an attention, if there is none yet."""
    emit(Event("build", candidate.candidate_id))
    device = candidate.output.device
    problem = _kept.pop(job.problem_id, None) or ProblemState()
    while len(_kept) >= known(device).kept_problems:  # before the operands of this one are built
        _kept.popitem(last=False)
    _kept[job.problem_id] = problem
    if job.sampling.cold_cache:
        timer_for(device).prepare()  # what it lacks is no candidate's fault
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
    problem.echoes.clear()
    problem.sums.clear()


def _reference(job: ScreenJob | FinalJob, problem: ProblemState, emit: Emit) -> None:
    """Run the library kernel, if there is no reference yet."""
    if job.library is not None and not problem.known:
        keep(_first_run(job.library, problem, emit), problem, emit)


def _first_run(candidate: BenchCandidate, problem: ProblemState, emit: Emit) -> Running:
    """Build the operands, report the candidate to the parent, and run it once."""
    emit(Event("build", candidate.candidate_id))
    views = problem.attention.written(candidate) if problem.attention is not None else {}
    written = {i: GuardedOutput(candidate.inputs[i]) for i in views}
    inputs = [
        written[i].tensor if i in written else problem.operand(spec)
        for i, spec in enumerate(candidate.inputs)
    ]
    problem.look(candidate.inputs)
    return bound(candidate, inputs, written, emit)
