"""Lowers one network for a simulated GPU, with Inductor's decisions about fusions or the plugin's.

Both arms have the same products, candidates and times (`cost`); they differ in
`Scheduler.speedup_by_fusion` alone. Nothing is compiled and nothing runs.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import Scheduler

from benchmarks.fusion.cost import Cost, Product, Work
from benchmarks.fusion.models import ModelWithInputs
from benchmarks.fusion.work import kernel_name, kind_of, product_of, tile_of, work_of
from inductor_plugin.aot.fake_device import as_target, replaced
from inductor_plugin.aot.lower import lower_model
from inductor_plugin.cache import Resources
from inductor_plugin.config import Config
from inductor_plugin.inductor.fusion import decide
from inductor_plugin.inductor.graph import session
from inductor_plugin.kernels import triton_files
from inductor_plugin.kernels.call import ModuleKernel, SequenceKernel
from inductor_plugin.problem.product import factors
from inductor_plugin.tuning import runtime
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.pipeline import Pipeline
from inductor_plugin.tuning.task import Task
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    Compiled,
    CppCompileJob,
    FinalJob,
    Outcome,
    ScreenJob,
    TritonCompileJob,
)

Arm = Literal["stock", "all", "ours"]
"""Inductor as it is: the fastest Triton kernel is tried with an epilogue; Inductor that tries all of
them (``max_epilogue_benchmarked_choices``); the plugin."""

Facts: TypeAlias = Mapping[str, Resources]
Pair: TypeAlias = tuple[str, str, str]
"""The names of two nodes, and which of them is fused: ``epilogue`` or ``prologue``."""

SPILLS = 8
"""Bytes a thread of a fused kernel may spill, or Inductor takes it as infinitely slow
(``benchmark_codegened_module``, torch/_inductor/codegen/triton.py)."""
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})


@dataclass
class Counts:
    """What one arm did.

    Attributes:
        pairs: Pairs Inductor asked about, and whether they were fused.
        calls: Benchmarks Inductor ran itself, each with its pair and its kernel.
        screened: Candidates of fusions that our worker measured, each with its problem.
        compiled: Fused kernels compiled, by text.
        refused: Why a pair was not measured at all.
        rejected: Why a kernel was not measured with an epilogue.
        tasks: Fusions handed to our worker.
        problems: Different problems of fusions.
        code: Code that Inductor generated.
        asked: Pairs the plugin was asked about.
        pruned: Pairs of those that it refused unmeasured.
        kernels: The kernel of each product that ended up fused, by its buffer.
        products: The product's buffer of a pair.
    """

    pairs: dict[Pair, bool] = field(default_factory=dict[Pair, bool])
    calls: list[tuple[Pair, str, str]] = field(default_factory=list[tuple[Pair, str, str]])
    screened: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    compiled: list[str] = field(default_factory=list[str])
    refused: dict[Pair, str] = field(default_factory=dict[Pair, str])
    rejected: Counter[str] = field(default_factory=Counter[str])
    tasks: int = 0
    problems: int = 0
    asked: int = 0
    pruned: int = 0
    code: list[str] = field(default_factory=list[str])
    kernels: dict[str, str] = field(default_factory=dict[str, str])
    products: dict[Pair, str] = field(default_factory=dict[Pair, str])


class Bench:
    """Replaces the benchmark worker and the compile pool; answers with modelled times."""

    def __init__(self, cost: Cost, counts: Counts, facts: Facts) -> None:
        """Answer from ``cost`` and ``facts``, and count in ``counts``."""
        self.cost = cost
        self.counts = counts
        self.facts = facts
        self.workers = 1
        self.works: dict[str, Work] = {}
        self._names: dict[str, str] = {}
        self._bare_us: dict[tuple[Product, str], float] = {}
        self._task_us: dict[tuple[str, str], float] = {}
        self._fusions: dict[str, Product] = {}

    def expect(self, task: Task) -> None:
        """Compute the times of a task's candidates, or record that it is a fusion."""
        if task.problem.op not in PRODUCTS:
            for entry in task.entries:
                self._task_us[task.digest, entry.candidate_id] = 10.0 if entry.library else 20.0
            return
        a, b = (task.problem.inputs[index].size for index in factors(task.problem.op) or (0, 1))
        product = product_of(a, b)
        if task.problem.epilogue:
            self._fusions[task.digest] = product
            self.counts.tasks += 1
            return
        times = {
            entry.candidate_id: self.cost.triton(
                product, f"{entry.name} {entry.description}", tile_of(entry.description)
            )
            for entry in task.entries
            if not entry.library
        }
        library_us = self.cost.library(product, list(times.values()) or [20.0])
        times |= {entry.candidate_id: library_us for entry in task.entries if entry.library}
        for name, us in times.items():
            self._task_us[task.digest, name] = self._bare_us[product, name] = us
        for entry in task.entries:
            if isinstance(entry.build, TritonCompileJob):
                self._names[entry.build.key] = f"{entry.name} {entry.description}"

    def submit(self, job: Any, done: Callable[[list[Compiled]], None], *_: int) -> None:
        """Report a kernel as compiled."""
        if isinstance(job, CppCompileJob):
            failed = "compile_failed", "not built here"
            done([Compiled(source.key, *failed) for source in job.sources])
            return
        work = self.works.get(job.source)
        if work is not None:
            self.counts.compiled.append(job.source)
        named = work.kernel if work is not None else self._names.get(job.key, "")
        done([Compiled(job.key, "ok", elapsed_s=0.0, resources=self.facts.get(named))])

    def generated_us(self, source: str) -> float:
        """Return the time of a kernel that Inductor generated, in microseconds."""
        return self.cost.generated(self.works[source])

    def spills(self, source: str) -> int:
        """Return how many bytes a thread of it spills; 0 if the kernel is not in ``facts``."""
        resources = self.facts.get(self.works[source].kernel)
        return resources.spills or 0 if resources is not None else 0

    def prewarm(self, *job: Any) -> None:
        """Do nothing: there is no process to start."""

    def close(self) -> None:
        """Do nothing: there is no process to end, and no memory to give back."""

    release = close

    def screen(self, job: ScreenJob) -> Outcome:
        """Return the modelled time of a candidate."""
        if job.problem_id in self._fusions:
            self.counts.screened.append((job.problem_id, job.candidate.candidate_id))
        return self._outcome(job.problem_id, job.candidate, 5)

    def final(self, job: FinalJob) -> tuple[Outcome, ...]:
        """Return the modelled times of the finalists."""
        return tuple(
            self._outcome(job.problem_id, candidate, job.rounds) for candidate in job.candidates
        )

    def _outcome(self, problem: str, candidate: BenchCandidate, samples: int) -> Outcome:
        samples_ms = (self._us(problem, candidate) / 1e3,) * samples
        return Outcome(candidate.candidate_id, "ok", samples_ms=samples_ms, error=0.0)

    def _us(self, problem: str, candidate: BenchCandidate) -> float:
        kernel = candidate.kernel
        if not isinstance(kernel, SequenceKernel):
            return self._task_us[problem, candidate.candidate_id]
        bare = candidate.candidate_id.removeprefix("unfused.")
        product = self._fusions[problem]
        return sum(
            self.generated_us(part.kernel.source)
            if isinstance(part.kernel, ModuleKernel)
            else self._bare_us[product, bare]
            for part in kernel.parts
        )


def counted(
    make: Callable[[], ModelWithInputs], arm: Arm, cost: Cost, cache: Path, facts: Facts
) -> Counts:
    """Lower a network in one arm, and return its counts.

    Args:
        make: Returns the network.
        arm: Which code decides the fusions.
        cost: Model of kernel times.
        cache: An empty folder.
        facts: Resources of compiled kernels, by `Work.kernel`.
    """
    counts = Counts()
    before = COUNTERS.snapshot()
    lowered(make, arm, Bench(cost, counts, facts), cache)
    spent = COUNTERS.snapshot().since(before)
    counts.asked, counts.pruned = spent.fusions, spent.fusions_pruned
    return counts


def lowered(make: Callable[[], ModelWithInputs], arm: Arm, bench: Bench, cache: Path) -> None:
    """Lower a network; ``bench`` answers for workers and device."""
    options = {"cache_dir": str(cache), "gemm_backends": "ATEN,TRITON", "table": "off"}
    options["attention_backends"] = "FLASH"
    config = Config.load({**options, "progress": "off"})
    with as_target(bench.cost.target), _in_place(bench, arm), _observed(bench.counts):
        lower_model(make, config)


@contextmanager
def _observed(counts: Counts) -> Generator[None, None, None]:
    """Record why pairs and kernels are not measured."""

    def observe(tickets: Sequence[TuningTicket]) -> None:
        for ticket in tickets:
            if ticket.problem.epilogue:
                counts.problems += 1
                counts.rejected.update(kind_of(reason) for reason in ticket.rejected.values())

    class Refusals(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.args, tuple) and len(record.args) == 4:
                first, second, what, why = map(str, record.args)
                counts.refused[first, second, what] = why

    logger = logging.getLogger(decide.__name__)
    handler, level = Refusals(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    session.OBSERVERS.append(observe)
    try:
        yield
    finally:
        session.OBSERVERS.remove(observe)
        logger.setLevel(level)
        logger.removeHandler(handler)


@contextmanager
def _in_place(bench: Bench, arm: Arm) -> Generator[None, None, None]:
    """Replace the workers and Inductor's own benchmarks by modelled times."""
    submit = Pipeline.submit

    def submitted(pipeline: Pipeline, task: Task) -> None:
        bench.expect(task)
        submit(pipeline, task)

    def worker(_settings: Any) -> Bench:
        return bench

    def pool(_workers: Any, _settings: Any, **_: int) -> Bench:
        return bench

    with ExitStack() as stack:
        runtime.RUNTIME.forget()
        stack.callback(runtime.RUNTIME.forget)
        stack.enter_context(replaced(runtime, "BenchWorker", worker))
        stack.enter_context(replaced(runtime, "CompilePool", pool))
        stack.enter_context(replaced(Pipeline, "submit", submitted))
        # The cache has to keep the resources of a bare kernel, because pruning starts from them.
        stack.enter_context(replaced(triton_files, "collect", _collected))
        keep = staticmethod(bench.counts.code.append)
        stack.enter_context(replaced(GraphLowering, "save_output_code", keep))
        decide.uninstall()
        stack.callback(decide.uninstall)
        scheduling = _Scheduling(bench)
        scheduling.watch(stack)
        if arm == "ours":
            decide.install()
        else:
            stack.enter_context(replaced(decide, "install", lambda: None))
        most = 1 if arm == "stock" else 1000
        settings: Any = inductor_config  # untyped
        stack.enter_context(settings.patch(max_epilogue_benchmarked_choices=most))
        stack.enter_context(scheduling.asked())
        yield


def _collected(_: Path) -> dict[str, bytes]:
    return {"kernel": b"none"}


class _Scheduling:
    """Observes the questions, generated kernels and benchmarks of Inductor's scheduler."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._counts = bench.counts
        self._callers: dict[str, Any] = {}
        self._pair: Pair = ("", "", "")

    def watch(self, stack: ExitStack) -> None:
        """Observe the kernels that are generated, and answer with their modelled times."""
        scheduler: Any = Scheduler
        write = scheduler.generate_kernel_code_from_nodes

        def generate(scheduler: Any, nodes: Sequence[Any], *args: Any, **kwargs: Any) -> str:
            source = write(scheduler, nodes, *args, **kwargs)
            self._bench.works[source] = work_of(nodes, self._callers)
            return source

        def compiled(scheduler: Any, nodes: Sequence[Any], **kwargs: Any) -> tuple[None, Any]:
            source = generate(scheduler, nodes, benchmark_kernel=True, **kwargs)
            self._counts.compiled.append(source)
            return None, SimpleNamespace(source=source, pair=self._pair)

        def alone(scheduler: Any, nodes: Sequence[Any]) -> tuple[float, str]:
            source = generate(scheduler, nodes, benchmark_kernel=True)
            return self._measured(self._pair, "apart", source)

        def together(_: Any, module: Any, *_more: Any) -> tuple[float, str]:
            return self._measured(module.pair, "fused", module.source)

        for name, new in (
            ("generate_kernel_code_from_nodes", generate),
            ("compile_kernel", compiled),
            ("benchmark_fused_nodes", alone),
            ("benchmark_codegened_module", together),
        ):
            stack.enter_context(replaced(scheduler, name, new))
        self._watch_callers(stack)

    def _watch_callers(self, stack: ExitStack) -> None:
        buffers: Any = ir.MultiTemplateBuffer
        swap, settle = buffers.swap_as_triton_caller, buffers.finalize_as_triton_caller

        @contextmanager
        def swapped(buffer: Any, caller: Any) -> Generator[None, None, None]:
            kept = self._callers.get(buffer.get_name())
            self._callers[buffer.get_name()] = caller
            try:
                with swap(buffer, caller):
                    yield
            finally:
                self._callers[buffer.get_name()] = kept

        def settled(buffer: Any, caller: Any) -> None:
            self._callers[buffer.get_name()] = caller
            self._counts.kernels[buffer.get_name()] = kernel_name(caller)
            settle(buffer, caller)

        stack.enter_context(replaced(buffers, "swap_as_triton_caller", swapped))
        stack.enter_context(replaced(buffers, "finalize_as_triton_caller", settled))

    @contextmanager
    def asked(self) -> Generator[None, None, None]:
        """Record the pairs that Inductor asks about, and whether they are fused."""
        scheduler: Any = Scheduler
        is_faster, fuse = scheduler.speedup_by_fusion, scheduler.fuse_two_nodes

        def deciding(scheduler: Any, node1: Any, node2: Any) -> Any:
            templates = [node.get_template_node() for node in (node1, node2)]
            if not any(isinstance(t, ir.MultiTemplateBuffer) for t in templates):
                return is_faster(scheduler, node1, node2)
            kind = "epilogue" if templates[0] is not None else "prologue"
            self._pair = node1.get_name(), node2.get_name(), kind
            self._counts.pairs.setdefault(self._pair, False)
            product = next(t for t in templates if t is not None)
            self._counts.products[self._pair] = product.get_name()
            return is_faster(scheduler, node1, node2)

        def fusing(scheduler: Any, node1: Any, node2: Any, *args: Any) -> Any:
            for kind in ("epilogue", "prologue"):
                key = node1.get_name(), node2.get_name(), kind
                if key in self._counts.pairs:
                    self._counts.pairs[key] = True
            return fuse(scheduler, node1, node2, *args)

        with (
            replaced(scheduler, "speedup_by_fusion", functools.wraps(is_faster)(deciding)),
            replaced(scheduler, "fuse_two_nodes", fusing),
        ):
            yield

    def _measured(self, pair: Pair, what: str, source: str) -> tuple[float, str]:
        self._counts.calls.append((pair, what, source))
        if self._bench.spills(source) > SPILLS:
            return math.inf, ""
        return self._bench.generated_us(source) / 1e3, ""
