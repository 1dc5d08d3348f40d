"""Messages between parent and workers: frozen arguments of compile and benchmark jobs, and outcomes.

Everything here is plain data, pickled between our own processes (never to disk). The functions that
run the jobs are in `inductor_plugin.worker.child`; neither this module nor the parent's side needs
torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from inductor_plugin.cache import KernelKey, Resources
from inductor_plugin.kernels.call import Kernel, TensorSpec
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.problem.attention import Attention
from inductor_plugin.problem.number_check import NumberCheck

Status = Literal[
    "ok",
    "compile_failed",
    "raised",
    "crashed",
    "hung",
    "out_of_memory",
    "sticky_error",
    "wrong",
    "red_zone",
    "skipped",
    "pruned",
]
"""Status of a candidate. All but ``ok``, ``skipped`` (tried again next time) and ``pruned`` (built, but
not worth measuring on this device) put the candidate into quarantine."""

OUT_OF_TIME = "the tuning budget ended"
"""Reason of candidates that were not compiled or measured before their graph's budget ended."""
COMPARED_ONCE = "compared_once"
"""Condition of a candidate that cannot win: its numbers were compared on the operands as they are, and not on changed ones."""
CHANGED = "it changed its operand"
"""Beginning of the reason of a candidate that has changed an operand."""
INCOMPARABLE = "there are no numbers to compare"
"""End of the reason of a candidate whose operands hide wrong numbers, such as a weight of zeros."""
MAY_HAVE_CHANGED = "it, or another measured in turns with it, changed an operand"
"""Reason of finalists one of which has changed an operand, where none does so alone."""


@dataclass(frozen=True)
class BenchCandidate:
    """A candidate to measure.

    Attributes:
        candidate_id: Its stable identity, e.g. ``triton_mm-1f0c92aa81d3``.
        kernel: The kernel to call.
        inputs: Its operands; they may differ from the library kernel's (repacked weights).
        output: Its output.
        timeout_s: Limit in seconds for all its samples together; 0 for none.
    """

    candidate_id: str
    kernel: Kernel
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    timeout_s: float


@dataclass(frozen=True)
class Sampling:
    """Number and length of samples.

    Attributes:
        warmup: Unmeasured calls before the samples.
        samples: Measured calls.
        min_sample_ms: A sample repeats the call until it lasts this long (timer resolution).
        max_total_s: Stop sampling after this many seconds, with at least one sample taken.
        cold_cache: Evict the caches before each sample. On a CPU a sample also has calls with operands in the caches.
        retake_s: Seconds beyond ``max_total_s`` in which samples are taken again that other work on the machine has
            disturbed; 0 counts them as all others.
    """

    warmup: int
    samples: int
    min_sample_ms: float
    max_total_s: float
    cold_cache: bool
    retake_s: float = 0.0


@dataclass(frozen=True)
class ScreenJob:
    """Screening of a candidate: whether it runs, whether its results are correct, and roughly how fast.

    Attributes:
        problem_id: Groups the jobs of a problem, so that the worker keeps its operands.
        library: The library kernel whose results are the reference.
        candidate: The candidate; may be the library kernel itself.
        sampling: How much to measure.
        check: How its results are checked; None skips the check. With it a candidate is measured only if
            there is a reference: a library kernel, or the float64 reference of an attention.
        attention: The attention that is computed, if any; `attention.check.reference` then checks the results.
        ends: The same candidate at the ends of its size class, where its results are checked, too. Nothing is measured
            there.
        lead_ms: Milliseconds that its shortest sample may take to win; where it takes more, its results are compared once.
    """

    problem_id: str
    library: BenchCandidate | None
    candidate: BenchCandidate
    sampling: Sampling
    check: NumberCheck | None
    attention: Attention | None = None
    ends: tuple[ScreenJob, ...] = ()
    lead_ms: float = math.inf


@dataclass(frozen=True)
class FinalJob:
    """The leaders and the library kernel, sampled in turns so that clock drift affects all equally.

    Attributes:
        problem_id: As in `ScreenJob`.
        candidates: The candidates that take part.
        rounds: Number of turns; each gives one sample per candidate. A turn in which any is disturbed counts only
            where all are.
        sampling: Sampling of each turn; ``samples`` is ignored.
        library: As in `ScreenJob`.
        check: As in `ScreenJob`; results are compared after the last turn.
        attention: As in `ScreenJob`.
    """

    problem_id: str
    candidates: tuple[BenchCandidate, ...]
    rounds: int
    sampling: Sampling
    library: BenchCandidate | None = None
    check: NumberCheck | None = None
    attention: Attention | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a candidate.

    Attributes:
        candidate_id: The candidate.
        status: Its status.
        reason: One line for people; with ``ok``, what was not compared, or of the library kernel what is wrong. Else empty.
        samples_ms: Milliseconds per call, one value per sample.
        error: Error of its results relative to the reference's root mean square, if checked.
        elapsed_s: Seconds the job took.
        check_s: Seconds of them in which numbers were compared; of finals the first outcome has those of all.
        disturbed: True if other work on the machine has prolonged all samples, or of a screening all but too few.
        turns: Of finals: the turns that were taken, those included whose samples are left out since they were disturbed; 0
            if none is.
        no_device: True if it was skipped since its GPU cannot be used at the moment: its memory is full, or its driver
            refuses.
        conditions: How the device was when it was measured, for its record: clock, temperature, what disturbed.
    """

    candidate_id: str
    status: Status
    reason: str = ""
    samples_ms: tuple[float, ...] = ()
    error: float | None = None
    elapsed_s: float = 0.0
    check_s: float = 0.0
    disturbed: bool = False
    turns: int = 0
    no_device: bool = False
    conditions: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class CppCompileJob:
    """Several C++ kernels compiled as one translation unit (each costs about 1 s, the headers 1.8 s).

    Attributes:
        sources: The kernels.
        command: The compiler call as arguments, with ``{source}`` and ``{output}`` placeholders.
        workdir: Private folder for sources and libraries.
        timeout_s: Seconds the whole batch may take; 0 for no limit.
    """

    sources: tuple[CppSource, ...]
    command: tuple[str, ...]
    workdir: str
    timeout_s: float


@dataclass(frozen=True)
class TritonTarget:
    """The device Triton compiles for, named so that the driver need not be queried.

    Attributes:
        backend: ``cuda``, ``hip`` ...
        arch: Compute capability as Triton writes it (90 for 9.0), or a name (``gfx942``).
        warp_size: Threads of a warp.
    """

    backend: str
    arch: Any
    warp_size: int


@dataclass(frozen=True)
class TritonCompileJob:
    """One Triton template kernel, compiled for a named target without touching a GPU.

    Attributes:
        key: Its digest in the cache.
        kernel_name: Name of the function in the source.
        source: The Python module Inductor generated.
        environment: Environment variables of the parent that Triton reads (cache directory ...).
        timeout_s: Seconds it may take; 0 for no limit.
        target: The device reported to code that queries it while compiling; None reports none.
        kernel: Key of the compiled kernel in the cache; None stores nothing.
    """

    key: str
    kernel_name: str
    source: str
    environment: tuple[tuple[str, str], ...]
    timeout_s: float
    target: TritonTarget | None = None
    kernel: KernelKey | None = None


CompileJob = CppCompileJob | TritonCompileJob


@dataclass(frozen=True)
class Compiled:
    """The outcome of one kernel of a compile job.

    Attributes:
        key: Key of the kernel.
        status: ``ok``, ``compile_failed``, ``hung``, ``crashed`` or ``out_of_memory``.
        reason: The compiler's last lines when it failed.
        library: Path of the shared library (C++), if any.
        symbol: Name of the C function in that library.
        elapsed_s: Its share of the batch's seconds.
        resources: Its GPU resources; None if not known, and on a CPU.
    """

    key: str
    status: Status
    reason: str = ""
    library: str | None = None
    symbol: str = ""
    elapsed_s: float = 0.0
    resources: Resources | None = None


@dataclass(frozen=True)
class CallJob:
    """A call of a function in an importable module, for jobs other than compiling and measuring.

    Attributes:
        module: The module, importable from the parent's search path.
        function: Name of the function in the module.
        args: Its arguments; they and the result must be picklable.
    """

    module: str
    function: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class JobFailed:
    """Returned instead of a result when a job raised inside the worker.

    Attributes:
        status: ``raised``, ``out_of_memory`` or ``sticky_error``.
        reason: The exception in one line.
        traceback: The whole traceback, for the log.
        crowded: Where a device's memory ran out, whether it would have sufficed for this job alone; None elsewhere.
    """

    status: Status
    reason: str
    traceback: str = ""
    crowded: bool | None = None


@dataclass(frozen=True)
class Event:
    """A message of a worker while a job runs.

    Attributes:
        what: ``accepted`` (the job has arrived), ``build`` (the operands of ``subject`` are built
            next), ``start`` (``subject`` runs next: if the worker dies now, it is the culprit) or
            ``sample`` (another sample of ``subject``).
        subject: Candidate or compile key.
        value: Milliseconds per call of a ``sample``.
        disturbed: True if other work has prolonged this sample, or another of its turn.
    """

    what: Literal["accepted", "build", "start", "sample"]
    subject: str = ""
    value: float = 0.0
    disturbed: bool = False


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of the parent that a worker applies before its first job.

    Attributes:
        sys_path: The parent's module search path.
        kind: ``compile`` or ``bench``.
        device: Device a benchmark worker measures on, e.g. ``cpu`` or ``cuda:0``.
        device_reference: ``module:attribute`` that describes the device; empty for what is built in.
        threads: Intra-op threads of the parent; 0 leaves torch's default.
        idle_s: A worker without a job for this long ends.
        memory_bytes: Private memory a worker may take; 0 for no limit.
        allow_tf32: ``torch.backends.cuda.matmul.allow_tf32`` of the parent.
        cudnn_allow_tf32: ``torch.backends.cudnn.allow_tf32`` of the parent.
        float32_precision: ``torch.get_float32_matmul_precision()`` of the parent.
        deterministic: ``torch.are_deterministic_algorithms_enabled()`` of the parent.
        deterministic_warn_only: True if it warns only.
        reduced_precision: Whether cuBLAS may reduce in lower precision and split K, for fp16 and bf16, in the parent.
        switches: The parent's switches that are not at their default, as of `switches.differing`.
        nice: By how much it gives way to other processes (nice(2)): compiling, to what is measured on a GPU meanwhile.
        cache_dir: The parent's Inductor cache directory.
        kernel_folder: The parent's cache of kernels, which has the library of call sites; empty for none.
        trusted_keys: Whose signed kernels may be loaded from it.
    """

    sys_path: tuple[str, ...]
    kind: Literal["compile", "bench"]
    device: str = "cpu"
    device_reference: str = ""
    threads: int = 0
    idle_s: float = 60.0
    memory_bytes: int = 0
    allow_tf32: bool = False
    cudnn_allow_tf32: bool = True
    float32_precision: str = "highest"
    deterministic: bool = False
    deterministic_warn_only: bool = False
    reduced_precision: tuple[tuple[bool, bool], tuple[bool, bool]] = ((True, True), (True, True))
    switches: tuple[tuple[str, object], ...] = ()
    nice: int = 0
    cache_dir: str = ""
    kernel_folder: str = ""
    trusted_keys: str = ""
