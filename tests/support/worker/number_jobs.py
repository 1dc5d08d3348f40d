"""Jobs that compare a kernel with wrong or right numbers with the library kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from inductor_plugin.kernels.call import ExternKernel, OpKernel, TensorSpec
from inductor_plugin.problem.definition import Operand, Problem
from inductor_plugin.problem.number_check import NumberCheck, amplitudes, tolerance_of
from inductor_plugin.worker.child import bench
from inductor_plugin.worker.jobs import BenchCandidate, FinalJob, Outcome, Sampling, ScreenJob
from tests.support.candidates import wrong_numbers

M, K, N = 24, 256, 40
A_SEED, B_SEED, C_SEED = 1, 2, 3
QUICK = Sampling(warmup=1, samples=12, min_sample_ms=0.0, max_total_s=60.0, cold_cache=False)
TYPES = ("float32", "bfloat16", "float16")


def spec(rows: int, columns: int, seed: int, dtype: str, *, pitch: int = 0) -> TensorSpec:
    pitch = pitch or columns
    return TensorSpec((rows, columns), (pitch, 1), dtype, "cpu", seed=seed, storage=rows * pitch)


def operands(dtype: str, op: str, *, pitch: int = 0) -> tuple[TensorSpec, ...]:
    a, b = spec(M, K, A_SEED, dtype, pitch=pitch), spec(K, N, B_SEED, dtype)
    c = TensorSpec((M, N), (0, 1), dtype, "cpu", seed=C_SEED, storage=N)
    return (c, a, b) if op == "addmm" else (a, b)


def check(dtype: str, op: str) -> NumberCheck:
    inputs = tuple(Operand(s.size, s.stride, dtype, "cpu") for s in operands(dtype, op))
    problem = Problem(op, inputs, Operand((M, N), (N, 1), dtype, "cpu"))
    factors = {C_SEED: amplitudes(problem)[0]} if op == "addmm" else {}
    return NumberCheck(
        tolerance_of(problem, tf32=False), tuple(factors.items()), frozenset(factors)
    )


def jobs(
    fault: wrong_numbers.Fault, dtype: str, op: str, *, pitch: int = 0, out_pitch: int = N
) -> tuple[ScreenJob, FinalJob]:
    inputs = operands(dtype, op, pitch=pitch)
    output = TensorSpec((M, N), (out_pitch, 1), dtype, "cpu")
    library = BenchCandidate("library", ExternKernel(op), inputs, output, 20.0)
    overload = ".c" if op == "addmm" else ""
    kernel = OpKernel(f"numbers::{fault.__name__}{overload}", imports=(wrong_numbers.__name__,))
    candidate = replace(library, candidate_id=fault.__name__, kernel=kernel)
    how = check(dtype, op)
    return (
        ScreenJob("a problem", library, candidate, QUICK, how),
        FinalJob("a problem", (library, candidate), 12, QUICK, library, how),
    )


def screened(job: ScreenJob) -> Outcome:
    return bench.screen(job, lambda _event: None)


def with_end(job: ScreenJob, rows: int, dtype: str) -> ScreenJob:
    """Return a screening that runs the candidate with another number of rows, too."""
    assert job.library is not None
    a, b = operands(dtype, "mm")
    moved = {
        a: replace(a, size=(rows, K), storage=rows * K),
        job.candidate.output: replace(job.candidate.output, size=(rows, N)),
    }

    def there(candidate: BenchCandidate) -> BenchCandidate:
        return replace(candidate, inputs=(moved[a], b), output=moved[candidate.output])

    end = replace(
        job,
        problem_id=f"{rows} rows",
        library=there(job.library),
        candidate=there(job.candidate),
    )
    return replace(job, ends=(end,))


def weighted(fault: wrong_numbers.Fault, weight: torch.Tensor, path: Path) -> ScreenJob:
    """Return a screening with a weight in a file."""
    screen, _ = jobs(fault, "float32", "mm")
    path.write_bytes(weight.numpy().tobytes())
    spec = TensorSpec((K, N), (N, 1), "float32", "cpu", file=str(path))
    assert screen.library is not None
    inputs = (screen.candidate.inputs[0], spec)
    library = replace(screen.library, inputs=inputs)
    return replace(screen, library=library, candidate=replace(screen.candidate, inputs=inputs))
