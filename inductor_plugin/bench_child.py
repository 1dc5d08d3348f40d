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
from dataclasses import dataclass, field

import torch

from inductor_plugin import lowering_runner
from inductor_plugin.jobs import (
    BenchCandidate,
    CppKernel,
    Event,
    ExternKernel,
    FinalJob,
    OpKernel,
    Outcome,
    ScreenJob,
    Tensor,
)
from inductor_plugin.measure import repeats_for, take_samples, timer_for

Call = Callable[[], object]
Emit = Callable[[Event], None]

KEPT_PROBLEMS = 2
ZONE_BYTES = (64 << 10, 8 << 20)
"""Least and most guard bytes on each side of an output."""
ZONE_ROWS = 128
"""A tile that forgets its bounds writes up to so many rows too far."""
_ZONE_BYTE = 0xA5
_UNWRITTEN_BYTE = 0xFF  # NaN in every float format but fnuz, -1 in the integers


@dataclass
class _Problem:
    """What the jobs of one problem share."""

    tensors: dict[Tensor, torch.Tensor] = field(default_factory=dict[Tensor, torch.Tensor])
    reference: torch.Tensor | None = None

    def operand(self, spec: Tensor) -> torch.Tensor:
        if spec not in self.tensors:
            self.tensors[spec] = build(spec)
        return self.tensors[spec]


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
    checked = library is not None and not is_library and job.tolerance is not None
    if library is not None and checked and problem.reference is None:
        problem.reference = _first_run(library, problem, emit).result.clone()
    first = _first_run(candidate, problem, emit)
    if is_library:
        problem.reference = first.result.clone()
    error = None
    if first.overrun() is None and checked and problem.reference is not None:
        error = error_of(first.result, problem.reference)
        if error is None or error > (job.tolerance or 0.0):
            first, error = _second_opinion(job, emit)
    outcome = functools.partial(Outcome, candidate.candidate_id, error=error)
    reason = first.overrun()
    if reason is not None:
        return outcome("red_zone", reason, elapsed_s=time.monotonic() - started)
    if checked and (error is None or error > (job.tolerance or 0.0)):
        return outcome("wrong", _wrong(error, job.tolerance), elapsed_s=time.monotonic() - started)
    samples = take_samples(timer_for(candidate.output.device), first.call, job.sampling)
    reason = first.overrun()
    if reason is not None:
        return outcome("red_zone", reason, elapsed_s=time.monotonic() - started)
    return outcome("ok", samples_ms=samples, elapsed_s=time.monotonic() - started)


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


class Guarded:
    """An output inside a larger buffer: guard bytes on both sides, and nothing written yet."""

    def __init__(self, spec: Tensor) -> None:
        dtype = dtype_of(spec)
        payload = -(-storage_elements(spec) * dtype.itemsize // 64) * 64
        row_bytes = max([0, *spec.stride]) * dtype.itemsize
        zone = min(max(ZONE_ROWS * row_bytes, ZONE_BYTES[0]), ZONE_BYTES[1])
        self._zone = -(-zone // 4096) * 4096
        self._end = self._zone + payload
        self._buffer = torch.empty(self._end + self._zone, dtype=torch.uint8, device=spec.device)
        self._buffer.fill_(_ZONE_BYTE)
        self._buffer[self._zone : self._end].fill_(_UNWRITTEN_BYTE)
        self.tensor = torch.as_strided(
            self._buffer.view(dtype),
            spec.size,
            spec.stride,
            self._zone // dtype.itemsize + spec.offset,
        )

    def overrun(self) -> str | None:
        """Return what was written outside, or None."""
        for where, zone in (
            ("before", self._buffer[: self._zone]),
            ("behind", self._buffer[self._end :]),
        ):
            damaged = int((zone != _ZONE_BYTE).sum().item())
            if damaged:
                return f"it wrote {damaged} bytes {where} its output"
        return None


@dataclass(frozen=True)
class _Running:
    """A candidate that has run once."""

    call: Call
    result: torch.Tensor
    guarded: Guarded | None

    def overrun(self) -> str | None:
        return None if self.guarded is None else self.guarded.overrun()


def _problem(problem_id: str) -> _Problem:
    problem = _kept.pop(problem_id, None) or _Problem()
    _kept[problem_id] = problem
    while len(_kept) > KEPT_PROBLEMS:
        _kept.popitem(last=False)
    return problem


def _first_run(candidate: BenchCandidate, problem: _Problem, emit: Emit) -> _Running:
    """Build the operands, say who runs, and run it once."""
    emit(Event("build", candidate.candidate_id))
    inputs = [problem.operand(spec) for spec in candidate.inputs]
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
    return _Running(call, result, guarded)


def _second_opinion(job: ScreenJob, emit: Emit) -> tuple[_Running, float | None]:
    """Run a candidate with wrong numbers again on fresh operands: another may have damaged them."""
    problem = _problem(job.problem_id)
    problem.tensors.clear()
    again = _first_run(job.candidate, problem, emit)
    problem.tensors.clear()  # if it is this one that damages its operands, the next gets fresh ones
    assert problem.reference is not None
    return again, error_of(again.result, problem.reference)


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
        return lowering_runner.bind_extern(kernel, inputs, out)
    assert out is not None
    if isinstance(kernel, OpKernel):
        return lowering_runner.bind_op(kernel, inputs, out)
    if isinstance(kernel, CppKernel):
        return _bind_cpp(kernel, inputs, out)
    return lowering_runner.bind_request(kernel, inputs, out)


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
    """Return max|result - reference| / rms(reference).

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
    largest = float((got - expected).abs().max().item())
    scale = float(expected.square().mean(dtype=torch.float64).sqrt().item())
    error = largest / scale if scale > 0 else largest
    return error if math.isfinite(error) else None


def dtype_of(spec: Tensor) -> torch.dtype:
    """Return the torch type a specification names."""
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch {torch.__version__} has no dtype {spec.dtype!r}")
    return dtype


def storage_elements(spec: Tensor) -> int:
    """Return how many elements the storage of a tensor needs."""
    if 0 in spec.size:
        return spec.offset
    pairs = zip(spec.size, spec.stride, strict=True)
    return spec.offset + 1 + sum((size - 1) * stride for size, stride in pairs)


def build(spec: Tensor) -> torch.Tensor:
    """Return the operand a specification describes."""
    storage = _from_file(spec) if spec.file is not None else _random(spec)
    dense = torch.as_strided(storage, spec.size, spec.stride, spec.offset)
    if spec.packing is None:
        return dense
    if spec.packing == "mkldnn_linear":
        return torch.ops.mkldnn._reorder_linear_weight(dense, spec.packing_batch)
    if spec.packing == "mkl_linear":
        return torch.ops.mkl._mkl_reorder_linear_weight(dense, spec.packing_batch)
    raise ValueError(f"unknown packing {spec.packing!r}; known are mkldnn_linear and mkl_linear")


def _from_file(spec: Tensor) -> torch.Tensor:
    dtype, elements = dtype_of(spec), storage_elements(spec)
    mapped = torch.from_file(
        str(spec.file), shared=False, size=elements * dtype.itemsize, dtype=torch.uint8
    )
    return mapped.clone().view(dtype).to(spec.device)


def _random(spec: Tensor) -> torch.Tensor:
    """Return normal floats or small integers; a seed gives the same values in every process."""
    dtype, elements = dtype_of(spec), storage_elements(spec)
    generator = torch.Generator(device=spec.device).manual_seed(spec.seed)
    if dtype.is_floating_point or dtype.is_complex:
        drawn = torch.complex64 if dtype.is_complex else torch.float32
        values = torch.randn(elements, generator=generator, dtype=drawn, device=spec.device)
        return (values.abs() if spec.dtype == "float8_e8m0fnu" else values).to(dtype)
    low, high = (0, 2) if dtype == torch.bool else (0, 8) if spec.dtype == "uint8" else (-8, 8)
    values = torch.randint(low, high, (elements,), generator=generator, device=spec.device)
    return values.to(dtype)
