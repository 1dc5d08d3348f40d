"""Lowers graphs for a simulated CUDA device, with workers that answer as a test defines.

Run as ``python -m tests.support.lowering``, it prints the identities of the candidates of one graph.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false
# pyright: reportDeprecated=false

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from inductor_plugin.config import Config
from inductor_plugin.inductor import hooks
from inductor_plugin.inductor.candidates import template_choice
from inductor_plugin.kernels.call import (
    ExternKernel,
    Kernel,
    ModuleKernel,
    OpKernel,
    SequenceKernel,
    Single,
)
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.tuning import runtime
from inductor_plugin.tuning.pipeline import Pipeline
from inductor_plugin.tuning.task import Task, TaskCandidate
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    Compiled,
    CppCompileJob,
    FinalJob,
    Outcome,
    ScreenJob,
    TritonCompileJob,
)
from tests.support import gpu
from tests.support.native.spelled_out import operators_for_sites

BF16 = torch.bfloat16
Milliseconds = Callable[[BenchCandidate], float]


def library_first(candidate: BenchCandidate) -> float:
    """Return times by which the library kernel is ten times faster than all others."""
    return _together(candidate.kernel, library=1.0, other=10.0)


def library_last(candidate: BenchCandidate) -> float:
    """Return times by which the library kernel is ten times slower than all others."""
    return _together(candidate.kernel, library=10.0, other=1.0)


def is_visited(candidate: BenchCandidate) -> bool:
    """Return True for a CUTLASS kernel with an epilogue."""
    kernel = candidate.kernel
    return isinstance(kernel, SequenceKernel) and isinstance(kernel.parts[0].kernel, OpKernel)


def visited_first(candidate: BenchCandidate) -> float:
    """Return plausible times by which CUTLASS kernels with an epilogue are the fastest."""
    if isinstance(candidate.kernel, SequenceKernel):
        return 0.0090 if is_visited(candidate) else 0.0200
    return 0.0100 if isinstance(candidate.kernel, ExternKernel) else 0.0102


def _together(kernel: Kernel | Single, library: float, other: float) -> float:
    """Return the time of a kernel, or of all parts of a sequence: a pointwise kernel beside the product takes the shorter time."""
    if isinstance(kernel, SequenceKernel):
        fused = len(kernel.parts) == 1
        return sum(
            min(library, other)
            if isinstance(part.kernel, ModuleKernel) and not fused
            else _together(part.kernel, library, other)
            for part in kernel.parts
        )
    return library if isinstance(kernel, ExternKernel) else other


class _CalledError(Exception):
    pass


@contextmanager
def cpp_wrapper() -> Generator[None]:
    """Generate C++ without the autotuning pass, which runs Triton kernels on a device."""
    settings = {"cpp_wrapper": True, "triton.autotune_at_compile_time": True}
    untuned = mock.patch.object(
        PythonWrapperCodegen, "generate_and_run_autotune_block", mock.Mock()
    )
    with inductor_config.patch(settings), untuned:
        yield


@dataclass(frozen=True)
class Arg:
    """One input of a graph."""

    size: tuple[int, ...]
    dtype: torch.dtype = BF16
    stride: tuple[int, ...] | None = None
    device: str = "cuda:0"

    def tensor(self) -> torch.Tensor:
        if self.stride is None:
            return torch.empty(self.size, dtype=self.dtype, device=self.device)
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


@dataclass
class Lab:
    """Replaces the benchmark worker and the compile pool, and records their jobs.

    With ``hold``, nothing is measured until the lowering waits for a decision; with ``without_device`` nothing can be.
    """

    milliseconds: Milliseconds
    cache_dir: Path
    status: Callable[[BenchCandidate], str] = lambda candidate: "ok"
    screens: list[ScreenJob] = field(default_factory=list[ScreenJob])
    finals: list[FinalJob] = field(default_factory=list[FinalJob])
    builds: list[TritonCompileJob] = field(default_factory=list[TritonCompileJob])
    units: list[CppCompileJob] = field(default_factory=list[CppCompileJob])
    tasks: list[Task] = field(default_factory=list[Task])
    order: list[str] = field(default_factory=list[str])
    written: list[str] = field(default_factory=list[str])
    """Generated code as it is; what `lower` returns has operators in place of call sites."""
    workers: int = 2
    hold: bool = False
    without_device: bool = False
    awaited: threading.Event = field(default_factory=threading.Event)

    def entries(self, kind: str) -> list[TaskCandidate]:
        """Return the candidates of a kind over all tasks."""
        return [entry for task in self.tasks for entry in task.entries if entry.kind == kind]

    def record(self) -> dict[str, Any]:
        """Return the only record of a product without an epilogue."""
        records = [
            json.loads(path.read_text()) for path in self.cache_dir.glob("records/*/*/*.json")
        ]
        (record,) = [record for record in records if not record["problem"].get("epilogue")]
        return record

    @property
    def products(self) -> list[Task]:
        """The tasks without an epilogue."""
        return [task for task in self.tasks if not task.problem.epilogue]

    def submit(
        self, job: Any, done: Callable[[list[Compiled]], None], memory: int = 0, *_order: Any
    ) -> None:
        if isinstance(job, CppCompileJob):
            self.units.append(job)
            done([self._library(job, source) for source in job.sources])
        else:
            self.builds.append(job)
            done([Compiled(job.key, "ok", elapsed_s=0.1)])

    def _library(self, job: CppCompileJob, source: CppSource) -> Compiled:
        path = Path(job.workdir) / f"{source.key}.so"
        path.write_bytes(b"a library")
        return Compiled(source.key, "ok", library=str(path), elapsed_s=0.1)

    def prewarm(self, *job: Any) -> None: ...

    def close(self) -> None: ...

    def release(self) -> None: ...

    def screen(self, job: ScreenJob) -> Outcome:
        if self.hold:
            assert self.awaited.wait(60)
        self.screens.append(job)
        return self._outcome(job.candidate, 5)

    def final(self, job: FinalJob) -> tuple[Outcome, ...]:
        self.finals.append(job)
        return tuple(self._outcome(candidate, job.rounds) for candidate in job.candidates)

    def _outcome(self, candidate: BenchCandidate, samples: int) -> Outcome:
        if self.without_device:
            return Outcome(candidate.candidate_id, "skipped", "its memory is full", no_device=True)
        status: Any = self.status(candidate)
        if status != "ok":
            return Outcome(candidate.candidate_id, status, "as the test says")
        samples_ms = (self.milliseconds(candidate),) * samples
        return Outcome(candidate.candidate_id, "ok", samples_ms=samples_ms, error=0.0)

    @contextmanager
    def open(self) -> Iterator[Lab]:
        """Replace the workers by it."""
        submit, wait = Pipeline.submit, Pipeline.wait

        def submitted(pipeline: Pipeline, task: Task) -> None:
            self.order.append("submit")
            # The race removes candidates that another process has measured: a copy keeps all offers.
            self.tasks.append(replace(task, entries=[*task.entries]))
            submit(pipeline, task)

        def waited(pipeline: Pipeline, task: Task, limit_s: float) -> bool:
            self.order.append("wait")
            self.awaited.set()
            return wait(pipeline, task, limit_s)

        with ExitStack() as stack:
            runtime.RUNTIME.forget()
            stack.callback(runtime.RUNTIME.forget)
            for owner, name, new in (
                (runtime, "BenchWorker", lambda settings: self),
                (runtime, "CompilePool", lambda workers, settings, memory_bytes_per_job: self),
                (Pipeline, "submit", submitted),
                (Pipeline, "wait", waited),
                (template_choice, "prepare", lambda config: None),
            ):
                stack.enter_context(mock.patch.object(owner, name, new))
            yield self

    def lower(self, function: Callable[..., Any], *arguments: Arg, **options: Any) -> str:
        """Lower a function of tensors, and return the code that would run."""
        mode = FakeTensorMode(shape_env=ShapeEnv())
        with mode:
            tensors = [argument.tensor() for argument in arguments]
            graph = make_fx(function, decomposition_table=select_decomp_table())(*tensors)
        return self.lower_graph(graph, mode, tensors, **options)

    def lower_graph(
        self, graph: torch.fx.GraphModule, mode: FakeTensorMode, tensors: Any, **options: Any
    ) -> str:
        """Lower a graph of ATen calls, and return the code that would run."""
        with (
            self._codes() as codes,
            inductor_config.patch(self._patches(options)),
            tracing(TracingContext(mode)),
            V.set_fake_mode(mode),
        ):
            compile_fx_inner(graph, tensors, cpp_wrapper=inductor_config.cpp_wrapper)
        (code,) = codes
        return code

    def lower_dynamic(self, function: Callable[..., Any], *arguments: Arg, **options: Any) -> str:
        """Lower a function by way of Dynamo, the rows of its first argument unknown."""

        def called(*inputs: Any) -> Any:
            raise _CalledError  # all is compiled; the call itself would want a device

        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            compile_fx(graph, inputs, config_patches=self._patches(options))
            return called

        torch._dynamo.reset()
        with self._codes() as codes, FakeTensorMode(shape_env=ShapeEnv()):
            tensors = [argument.tensor() for argument in arguments]
            torch._dynamo.mark_dynamic(tensors[0], 0)
            with suppress(_CalledError):
                torch.compile(function, backend=backend)(*tensors)
        (code,) = codes
        return code

    @contextmanager
    def _codes(self) -> Iterator[list[str]]:
        codes: list[str] = []

        def kept(code: str) -> None:
            self.written.append(code)
            codes.append(operators_for_sites(code))

        keep = staticmethod(kept)
        with mock.patch.object(GraphLowering, "save_output_code", keep):
            yield codes

    def _patches(self, options: dict[str, Any]) -> dict[str, Any]:
        settings = {
            "cache_dir": str(self.cache_dir),
            "table": "off",
            "progress": "off",
            "gemm_backends": "ATEN,TRITON",
        } | options
        return hooks.compile_options(None, Config.load(settings), {})


def main() -> None:
    """Print the identities of a graph's candidates."""
    with tempfile.TemporaryDirectory() as folder, gpu.installed():
        with Lab(library_first, Path(folder)).open() as lab:
            lab.lower(lambda a, b: (torch.mm(a, b),), Arg((256, 128)), Arg((128, 512)))
        (task,) = lab.tasks
        json.dump([entry.candidate_id for entry in task.entries], sys.stdout)


if __name__ == "__main__":
    main()
