"""A worker, and what it measures: a library kernel and candidates of one product."""

from __future__ import annotations

import sys

from inductor_plugin.kernels.call import (
    ExternKernel,
    OpKernel,
)
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    Sampling,
    WorkerSettings,
)
from tests.support.candidates import faults
from tests.support.candidates.operands import tensor
from tests.support.repository import REPOSITORY

SETTINGS = WorkerSettings(
    sys_path=(str(REPOSITORY), *sys.path),
    kind="bench",
    threads=3,
    memory_bytes=faults.MEMORY_BYTES,
    allow_tf32=True,
    float32_precision="medium",
    deterministic=True,
)
A, B, C = tensor(16, 32, seed=1), tensor(32, 8, seed=2), tensor(16, 8)
LIBRARY = BenchCandidate("library-mm", ExternKernel("mm"), (A, B), C, 20.0)


def candidate(fault: str, timeout_s: float = 20.0) -> BenchCandidate:
    kernel = OpKernel(f"faults::{fault}", imports=("tests.support.candidates.faults",))
    return BenchCandidate(fault, kernel, (A, B), C, timeout_s)


GOOD = candidate("good")
ONCE = Sampling(
    warmup=1, samples=1, min_sample_ms=0.0, max_total_s=60.0, cold_cache=False, retake_s=0.5
)
