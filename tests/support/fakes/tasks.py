"""Factories of problems, candidates, offers and tasks, as far as tests of the tuner need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from inductor_plugin.cache import KernelKey
from inductor_plugin.kernels.call import OpKernel, TensorSpec
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.tuning.budget import Budget
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import CppBuild, Task, TaskCandidate
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    TritonCompileJob,
)
from tests.support.fakes.waiting import LIMIT_S


def problem(*, device: str = "cuda", rows: int = 64, op: str = "mm") -> Problem:
    """Return a matrix product."""
    a = Operand((rows, 32), (32, 1), "float32", device)
    b = Operand((32, 48), (48, 1), "float32", device)
    return Problem(op, (a, b), Operand((rows, 48), (48, 1), "float32", device))


def bench_candidate(name: str) -> BenchCandidate:
    """Return a benchmark candidate that fakes identify by its name alone."""
    output = TensorSpec((2, 2), (2, 1), "float32", "cpu")
    return BenchCandidate(name, OpKernel(f"fake::{name}"), (), output, 5.0)


def triton_job(name: str, folder: Path | None = None) -> TritonCompileJob:
    """Return the job of a Triton kernel that has to be compiled; with a folder, it is kept."""
    return TritonCompileJob(
        key=name,
        kernel_name=name,
        source="",
        environment=(("TRITON_CACHE_DIR", str(folder)),) if folder else (),
        timeout_s=LIMIT_S,
        kernel=KernelKey("triton", name, name, "cuda:90", "toolchain", "") if folder else None,
    )


def cpp_build(name: str, command: tuple[str, ...] = ("c++",)) -> CppBuild:
    """Return a C++ kernel that has to be compiled."""
    key = KernelKey("cpp", name, "config", "target", "toolchain", "flags")
    return CppBuild(key, CppSource(key.digest, f"// {name}", "kernel"), command)


def entry(
    name: str,
    *,
    library: bool = False,
    build: CppBuild | TritonCompileJob | None = None,
    in_process: Callable[[], object] | None = None,
) -> TaskCandidate:
    """Return a candidate; with ``in_process`` it is not sent to a worker."""
    kind = "extern" if library else "template"
    identity = CandidateId(name, name, kind, f"how {name} is made", library)
    entry = TaskCandidate(identity, build=build, in_process=in_process)
    if in_process is None:
        entry.bench = lambda _library, _symbol: bench_candidate(name)
    return entry


def offer(name: str, kind: str = "", family: str = "", *, library: bool = False) -> CandidateOffer:
    """Return an offer; ``name`` is its identity."""
    kind = kind or ("extern" if library else "template")
    identity = CandidateId(name, family or name, kind, "", library)
    return CandidateOffer(identity, lambda own: entry(own.candidate_id, library=library))


def task(
    entries: Sequence[TaskCandidate],
    *,
    exclusive: bool = False,
    budget: Budget | None = None,
    digest: str = "digest",
    refresh: Callable[[Task], int] | None = None,
    finish: Callable[[Task], None] | None = None,
) -> Task:
    """Return a task whose hooks do nothing unless they are given."""
    return Task(
        problem=problem(device="cpu" if exclusive else "cuda"),
        digest=digest,
        entries=list(entries),
        check=None,
        budget=budget,
        exclusive=exclusive,
        refresh=refresh or (lambda _task: 0),
        finish=finish or (lambda _task: None),
    )


def budget(total_s: float) -> Budget:
    """Return a budget that runs."""
    started = Budget(total_s)
    started.start()
    return started
