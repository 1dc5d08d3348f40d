"""What the benchmark worker does: build operands, run a candidate, check it, measure it.

Nothing is caught here. What a candidate raises reaches the one border in `worker_main`; who it was,
the parent knows from the last ``start`` event.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from inductor_plugin.attention.check import Judgement
from inductor_plugin.kernels.call import (
    CppKernel,
    ExternKernel,
    OpKernel,
    SequenceKernel,
    TensorSpec,
)
from inductor_plugin.worker.child import inductor
from inductor_plugin.worker.child.attention import Trial, trial_of
from inductor_plugin.worker.child.operands import Guarded, build
from inductor_plugin.worker.jobs import BenchCandidate, Event, FinalJob, Outcome, ScreenJob
from inductor_plugin.worker.timer import repeats_for, take_samples, timer_for

Call = Callable[[], object]
Emit = Callable[[Event], None]

KEPT_PROBLEMS = 2


@dataclass
class _Problem:
    """What the jobs of one problem share."""

    tensors: dict[TensorSpec, torch.Tensor] = field(default_factory=dict[TensorSpec, torch.Tensor])
    reference: torch.Tensor | None = None
    trial: Trial | None = None

    def operand(self, spec: TensorSpec) -> torch.Tensor:
        if spec not in self.tensors:
            self.tensors[spec] = build(spec)
            if self.trial is not None:
                self.trial.fill(spec, self.tensors[spec])
        return self.tensors[spec]

    @property
    def known(self) -> bool:
        """Whether there is something to hold a candidate against."""
        return self.reference is not None if self.trial is None else self.trial.known


_kept: OrderedDict[str, _Problem] = OrderedDict()


def run(job: ScreenJob | FinalJob, emit: Emit) -> Outcome | tuple[Outcome, ...]:
    """Run one job of the benchmark worker."""
    return screen(job, emit) if isinstance(job, ScreenJob) else final(job, emit)


def release() -> None:
    """Forget all operands, after a job that failed."""
    _kept.clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def screen(job: ScreenJob, emit: Emit) -> Outcome:
    """Run a candidate once, check what it wrote, then take a few samples."""
    started = time.monotonic()
    candidate, library = job.candidate, job.library
    problem = _problem(job.problem_id)
    is_library = library is not None and library.candidate_id == candidate.candidate_id
    _prepare(job, problem, emit)
    checked = not is_library and job.tolerance is not None
    if library is not None and checked and not problem.known:
        _keep(_first_run(library, problem, emit), library, problem, emit)
    first = _first_run(candidate, problem, emit)
    verdict = Judgement(None)
    if is_library:
        verdict = _keep(first, candidate, problem, emit)
    elif first.overrun() is None and checked:
        verdict = _judged(first, job, problem, emit)
        if verdict.reason:
            first, verdict = _second_opinion(job, emit)
    outcome = functools.partial(Outcome, candidate.candidate_id, error=verdict.error)
    reason = first.overrun()
    if reason is not None:
        return outcome("red_zone", reason, elapsed_s=time.monotonic() - started)
    if verdict.reason and not is_library:
        return outcome("wrong", verdict.reason, elapsed_s=time.monotonic() - started)
    emit(Event("start", candidate.candidate_id))
    samples = take_samples(timer_for(candidate.output.device), first.call, job.sampling)
    reason = first.overrun()
    if reason is not None:
        return outcome("red_zone", reason, elapsed_s=time.monotonic() - started)
    elapsed_s = time.monotonic() - started
    return outcome("ok", verdict.reason, samples_ms=samples, elapsed_s=elapsed_s)


def final(job: FinalJob, emit: Emit) -> tuple[Outcome, ...]:
    """Sample the candidates in turns; the order rotates, so that none always follows the same."""
    started = time.monotonic()
    problem = _problem(job.problem_id)
    calls: dict[str, tuple[_Running, int]] = {}
    samples: dict[str, list[float]] = {one.candidate_id: [] for one in job.candidates}
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
    return tuple(
        Outcome(
            name,
            "ok" if running.overrun() is None else "red_zone",
            running.overrun() or "",
            samples_ms=tuple(samples[name]),
            elapsed_s=elapsed_s,
        )
        for name, (running, _) in calls.items()
    )


@dataclass(frozen=True)
class _Running:
    """A candidate that has run once; ``written`` are the inputs it writes besides its output."""

    call: Call
    inputs: Sequence[torch.Tensor]
    result: torch.Tensor
    guarded: Guarded | None
    written: dict[int, Guarded]

    def overrun(self) -> str | None:
        zones = [*([self.guarded] if self.guarded else ()), *self.written.values()]
        return next(filter(None, (zone.overrun() for zone in zones)), None)


def _problem(problem_id: str) -> _Problem:
    problem = _kept.pop(problem_id, None) or _Problem()
    _kept[problem_id] = problem
    while len(_kept) > KEPT_PROBLEMS:
        _kept.popitem(last=False)
    return problem


def _prepare(job: ScreenJob, problem: _Problem, emit: Emit) -> None:
    """Compute in float64 what an attention is held against, if there is none yet."""
    if job.attention is None or problem.trial is not None:
        return
    emit(Event("build", job.candidate.candidate_id))
    problem.trial = trial_of(job, problem.operand)
    for spec, tensor in problem.tensors.items():
        if problem.trial is not None:
            problem.trial.fill(spec, tensor)


def _first_run(candidate: BenchCandidate, problem: _Problem, emit: Emit) -> _Running:
    """Build the operands, say who runs, and run it once."""
    emit(Event("build", candidate.candidate_id))
    views = problem.trial.written(candidate) if problem.trial is not None else {}
    written = {i: Guarded(candidate.inputs[i]) for i in views}
    inputs = [
        written[i].tensor if i in written else problem.operand(spec)
        for i, spec in enumerate(candidate.inputs)
    ]
    kernel = candidate.kernel
    returns = isinstance(kernel, ExternKernel) and not kernel.has_out
    guarded = None if returns else Guarded(candidate.output)
    emit(Event("start", candidate.candidate_id))
    call = bind(candidate, inputs, None if guarded is None else guarded.tensor)
    value = call()
    timer_for(candidate.output.device).synchronize()
    result = value if guarded is None else guarded.tensor
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"{candidate.candidate_id} returned {type(result).__name__}, not a tensor")
    return _Running(call, inputs, result, guarded, written)


def _outputs(
    running: _Running, candidate: BenchCandidate, trial: Trial, result: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return all a kernel of an attention has written."""
    views = trial.written(candidate)
    written = {i: running.written[i].seen_as(view) for i, view in views.items()}
    return trial.outputs(candidate, running.inputs, result, written)


def _poisoned(
    running: _Running, candidate: BenchCandidate, trial: Trial, emit: Emit, *, library: bool
) -> str:
    """Run a kernel of an attention once more, with NaN in its operands, and return what is wrong."""

    def run() -> dict[str, torch.Tensor]:
        emit(Event("start", candidate.candidate_id))
        value = running.call()
        timer_for(candidate.output.device).synchronize()
        emit(Event("build", candidate.candidate_id))
        result = (
            value if isinstance(value, torch.Tensor) and not running.guarded else running.result
        )
        return _outputs(running, candidate, trial, result)

    return trial.poisoned(candidate, running.inputs, run, library=library)


def _keep(running: _Running, candidate: BenchCandidate, problem: _Problem, emit: Emit) -> Judgement:
    """Keep the numbers of the library kernel; a reason is what is wrong with them."""
    trial = problem.trial
    if trial is None:
        problem.reference = running.result.clone()
        return Judgement(None)
    emit(Event("build", candidate.candidate_id))
    verdict = trial.take(_outputs(running, candidate, trial, running.result))
    poisoned = _poisoned(running, candidate, trial, emit, library=True)
    return replace(verdict, reason="; ".join(filter(None, (verdict.reason, poisoned))))


def _judged(running: _Running, job: ScreenJob, problem: _Problem, emit: Emit) -> Judgement:
    """Return what is thought of a candidate's numbers; a reason is what is wrong with them."""
    trial = problem.trial
    if trial is not None:
        emit(Event("build", job.candidate.candidate_id))
        verdict = trial.judge(_outputs(running, job.candidate, trial, running.result))
        if verdict.reason:
            return verdict
        reason = _poisoned(running, job.candidate, trial, emit, library=False)
        return replace(verdict, reason=reason)
    if problem.reference is None:
        return Judgement(None)
    error = error_of(running.result, problem.reference)
    if error is None or error > (job.tolerance or 0.0):
        return Judgement(error, _wrong(error, job.tolerance))
    return Judgement(error)


def _second_opinion(job: ScreenJob, emit: Emit) -> tuple[_Running, Judgement]:
    """Run a candidate with wrong numbers again on fresh operands: another may have damaged them."""
    problem = _problem(job.problem_id)
    problem.tensors.clear()
    again = _first_run(job.candidate, problem, emit)
    problem.tensors.clear()  # if it is this one that damages its operands, the next gets fresh ones
    return again, _judged(again, job, problem, emit)


def _wrong(error: float | None, tolerance: float | None) -> str:
    if error is None:
        return "NaN or infinite where the library kernel has a number, or another shape"
    return f"error {error:.3g} of the reference's root mean square, accepted is {tolerance:.3g}"


def bind(
    candidate: BenchCandidate, inputs: Sequence[torch.Tensor], out: torch.Tensor | None
) -> Call:
    """Return the call that runs a candidate's kernel on these operands."""
    kernel = candidate.kernel
    if isinstance(kernel, ExternKernel):
        return inductor.bind_extern(kernel, inputs, out)
    assert out is not None
    if isinstance(kernel, OpKernel):
        return inductor.bind_op(kernel, inputs, out)
    if isinstance(kernel, CppKernel):
        return _bind_cpp(kernel, inputs, out)
    if isinstance(kernel, SequenceKernel):
        return inductor.bind_sequence(kernel, inputs, out)
    return inductor.bind_request(kernel, inputs, out)


def _bind_cpp(kernel: CppKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> Call:
    function = getattr(_library(kernel.library), kernel.symbol)
    arguments = [*(tensor.data_ptr() for tensor in (*inputs, out)), *kernel.sizes]
    function.argtypes = [ctypes.c_ulonglong] * len(arguments)
    function.restype = None
    return functools.partial(function, *arguments)


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


def error_of(result: torch.Tensor, reference: torch.Tensor) -> float | None:
    """Return max|result - reference| / rms(reference); of integers rms(result - reference).

    Where the reference is not finite itself, nothing is expected.

    Returns:
        None if the result has another shape, or is not finite where the reference is.
    """
    if result.shape != reference.shape:
        return None
    if reference.numel() == 0:
        return 0.0
    narrow = reference.dtype.is_floating_point and reference.dtype.itemsize <= 4
    wide = torch.float32 if narrow else torch.float64
    if reference.dtype.is_complex:
        result, reference = torch.view_as_real(result), torch.view_as_real(reference)
    expected, got = reference.to(wide), result.to(wide)
    known = torch.isfinite(expected)
    if not bool(known.all()):
        expected, got = expected[known], got[known]
    if expected.numel() == 0:
        return 0.0
    off = (got - expected).abs()
    stepped = not reference.dtype.is_floating_point
    largest = float((_rms(off) if stepped else off.max()).item())
    scale = float(_rms(expected).item())
    error = largest / scale if scale > 0 else largest
    return error if math.isfinite(error) else None


def _rms(values: torch.Tensor) -> torch.Tensor:
    return values.square().mean(dtype=torch.float64).sqrt()
