"""Products with an epilogue, on a GPU that is not there, whose kernels take the milliseconds of a test."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.nn import functional

from inductor_plugin.kernels.call import (
    ExternKernel,
    SequenceKernel,
)
from inductor_plugin.tuning.task import Task
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.lowering import Arg, Lab

A, B, C = Arg((1024, 512)), Arg((512, 2048)), Arg((2048,))
Times = Callable[[BenchCandidate], float]


def activated(a: Any, b: Any, c: Any) -> Any:
    return (functional.relu(a @ b + c),)


def gated(a: Any, b: Any, c: Any) -> Any:
    return (functional.silu(a @ b) * (a @ c),)


def parts(candidate: BenchCandidate) -> int:
    kernel = candidate.kernel
    return len(kernel.parts) if isinstance(kernel, SequenceKernel) else 0


def times(fused: float, apart: float, library: float = 0.010, triton: float = 0.0105) -> Times:
    """Return milliseconds of the product's kernels, of a fused one, and of the two apart."""

    def taken(candidate: BenchCandidate) -> float:
        count = parts(candidate)
        if count:
            return fused if count == 1 else apart
        return library if isinstance(candidate.kernel, ExternKernel) else triton

    return taken


FUSED = times(fused=0.011, apart=0.020)
APART = times(fused=0.020, apart=0.011)


@pytest.fixture(name="lab")
def a_lab(cache_dir: Path) -> Callable[..., Any]:
    return lambda taken=FUSED, **more: Lab(taken, cache_dir, **more).open()


def fusions(lab: Lab) -> list[Task]:
    return [task for task in lab.tasks if task.problem.epilogue]


def screened(lab: Lab) -> dict[str, BenchCandidate]:
    """Return what was measured of fusions."""
    candidates = [job.candidate for job in lab.screens if parts(job.candidate)]
    return {candidate.candidate_id: candidate for candidate in candidates}


def launches(code: str) -> list[str]:
    """Return the kernels that the generated code calls, in order."""
    call = code[code.index("def call(") :]
    return re.findall(r"(extern_kernels\.\w+|triton_\w+)(?:\.run)?\(", call.split("\nrunner")[0])
