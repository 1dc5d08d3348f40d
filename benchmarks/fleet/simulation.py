"""One simulated fleet: the pipeline's own scheduling, on simulated workers and a simulated clock.

Each GPU has a process with a `Pipeline`, a `Builder` and a `FarmPool` on nodes that all processes share: the classes of the
product. Simulated are the processes, the nodes, the cache and the time. Without nodes all share one `CompilePool`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.fleet.clock import Clock
from benchmarks.fleet.nodes import SimulatedNodes
from benchmarks.fleet.times import Times
from benchmarks.fleet.world import (
    NONE,
    NOWHERE,
    Failures,
    SimulatedBench,
    SimulatedStore,
    SimulatedWorker,
    Spent,
    World,
)
from inductor_plugin.cache import KernelKey
from inductor_plugin.kernels.call import OpKernel, TensorSpec
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.tuning import budget, holder, pipeline
from inductor_plugin.tuning.builds import builder, queue
from inductor_plugin.tuning.builds.builder import Builder
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.holder import ProblemLocks
from inductor_plugin.tuning.pipeline import Pipeline
from inductor_plugin.tuning.report import journal, trace
from inductor_plugin.tuning.report.trace import SpanTrace
from inductor_plugin.tuning.task import CppBuild, Task, TaskCandidate
from inductor_plugin.worker import compile_pool
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.farm import flight, watch
from inductor_plugin.worker.farm import pool as farm_pool
from inductor_plugin.worker.farm.pool import FarmPool, Pool
from inductor_plugin.worker.jobs import BenchCandidate, TritonCompileJob, WorkerSettings

_MODULES = (
    *(budget, holder, pipeline, builder, queue, journal, trace),
    *(compile_pool, farm_pool, flight, watch),
)
_LIMIT_S = 1e9
_LATE = 20.0
"""Factor of the compile and measuring seconds that are to be expected, after which a run has come to a stop."""
_TIMEOUT_S = 120.0  # the default of option compile_timeout_s
_OUTPUT = TensorSpec((64, 64), (64, 1), "bfloat16", "cuda:0")
_OPERAND = Operand((64, 64), (64, 1), "bfloat16", "cuda")
_PROBLEM = Problem("mm", (_OPERAND, _OPERAND), _OPERAND)


@dataclass(frozen=True)
class Fleet:
    """What is simulated.

    Attributes:
        workers: Compile workers of the farm.
        gpus: GPUs, each with a process that measures on it.
        candidates: Kernels of all problems.
        problems: Problems of a model.
        per_problem: Kernels of a problem besides its library kernel; of 45, as many are CUTLASS kernels as of a Llama layer
            on an H200 (20 of 456, benchmarks/results/precompile_h200.json).
        cutlass_share: Share of CUTLASS kernels.
        farm: Whether the workers are CPUs of nodes, each process with a farm of its own; False for one pool of all.
        together: True submits all problems of a process at once; False graph after graph, as `tune` and compiles do.
        failures: How often something fails.
        seed: Of all chance.
        touch_s: Seconds between two simulated touches of a kernel's lock; the product's is 1, which is what is counted.
    """

    workers: int
    gpus: int
    candidates: int
    problems: int = 16
    per_problem: int = 20
    cutlass_share: float = 20 / 456
    farm: bool = True
    together: bool = False
    failures: Failures = NONE
    seed: int = 0
    touch_s: float = 1.0


@dataclass(frozen=True)
class Run:
    """How a fleet fared.

    Attributes:
        makespan_s: Simulated seconds until the last decision.
        bound_s: What no schedule can undercut: the larger of compile seconds for each worker, those included in which it is
            away, and measuring seconds for each GPU.
        ratio: Of both.
        limited_by: Which is the larger.
        chain_s: The longest chain of steps (`Spent.chain_s`): no schedule can undercut it, either.
        started_s: A worker's start and the compile seconds for each worker: nor that.
        spent: What was done.
        models: Models.
        undecided: Problems without a decision; 0 if nothing was lost.
        requests_per_s: Requests to the cache for each simulated second.
        compile_s_per_model: Seconds of compile workers for a model.
        gpu_s_per_model: Seconds of a GPU for a model.
        real_s: Seconds of this process: the time that scheduling takes, among others.
        switches: How often a simulated thread went on.
    """

    makespan_s: float
    bound_s: float
    ratio: float
    limited_by: str
    chain_s: float
    started_s: float
    spent: Spent
    models: int
    undecided: int
    requests_per_s: float
    compile_s_per_model: float
    gpu_s_per_model: float
    real_s: float
    switches: int

    @property
    def least_s(self) -> float:
        """What no schedule can undercut for any of these reasons."""
        return max(self.bound_s, self.chain_s, self.started_s)

    @property
    def over(self) -> float:
        """The makespan in that: what scheduling loses, and what failures cost beyond the seconds that they waste."""
        return self.makespan_s / self.least_s


def simulate(fleet: Fleet, times: Times) -> Run:
    """Tune all problems of a fleet.

    Raises:
        RuntimeError: The pipeline has come to a stop, or a thread of it has failed.
    """
    clock, spent, started = Clock(), Spent(), time.perf_counter()
    world = World(clock, times, fleet.failures, random.Random(fleet.seed), spent, fleet.seed)
    store = SimulatedStore(clock, spent, fleet.touch_s)
    with _replaced(world, store, fleet):
        pools = _pools(world, fleet)
        shares = _shares(fleet, clock, store)
        ends: list[float] = []
        for share in shares:
            lane = _pipeline(world, store, pools())

            def process(lane: Pipeline = lane, share: list[list[Task]] = share) -> None:
                for model in share:
                    for task in model:
                        lane.submit(task)
                    for task in model:
                        lane.wait(task, _LIMIT_S)
                ends.append(clock.now)

            clock.spawn(process)
        expected_s = fleet.candidates * max(times.cutlass_s) * (1 / fleet.workers + 1 / fleet.gpus)
        clock.run(lambda: len(ends) == len(shares), _LATE * (expected_s + _TIMEOUT_S))
    tasks = [task for share in shares for model in share for task in model]
    return _run(fleet, world, max(ends), tasks, time.perf_counter() - started)


def _run(fleet: Fleet, world: World, makespan_s: float, tasks: list[Task], real_s: float) -> Run:
    spent = world.spent
    compile_s = (spent.compile_s + spent.away_s) / fleet.workers
    measure_s = spent.measure_s / fleet.gpus
    bound_s = max(compile_s, measure_s)
    models = -(-len(tasks) // fleet.problems)
    return Run(
        makespan_s=makespan_s,
        bound_s=bound_s,
        ratio=makespan_s / bound_s,
        limited_by="compiling" if compile_s >= measure_s else "measuring",
        chain_s=spent.chain_s(world.times),
        started_s=world.times.worker_s + compile_s,
        spent=spent,
        models=models,
        undecided=sum(bool(task.error) or not task.done.is_set() for task in tasks),
        requests_per_s=spent.requests.total() / makespan_s,
        compile_s_per_model=spent.compile_s / models,
        gpu_s_per_model=spent.measure_s / models,
        real_s=real_s,
        switches=world.clock.switches,
    )


@contextmanager
def _replaced(world: World, store: SimulatedStore, fleet: Fleet) -> Generator[None]:
    """Replace the outside world of the pipeline's modules inside the block."""

    @contextmanager
    def folder() -> Generator[Path]:
        yield NOWHERE

    def collect(_folder: Path) -> dict[str, bytes]:
        return {"kernel.cubin": b""}

    def nothing(*_: object) -> None:
        pass

    def worker(*_: object) -> SimulatedWorker:
        return SimulatedWorker(world)

    def cores() -> range:
        return range(fleet.workers)

    others: dict[str, Any] = {
        f"{compile_pool.__name__}.WorkerProcess": worker,
        f"{compile_pool.__name__}.available_bytes": lambda: 1 << 62,
        f"{compile_pool.__name__}.own_cores": cores,
        f"{compile_pool.__name__}._warn": nothing,
        f"{builder.__name__}.scratch": SimpleNamespace(build_folder=folder),
        f"{builder.__name__}.triton_files": SimpleNamespace(collect=collect, place=nothing),
        f"{builder.__name__}.touch": store.touch,
        f"{builder.__name__}.TOUCH_S": fleet.touch_s,
        f"{holder.__name__}.touch": store.problems.touch,
    }
    with world.clock.replace(_MODULES, others):
        yield


def _pools(world: World, fleet: Fleet) -> Callable[[], Pool]:
    """Return what gives each process its pool of compile workers."""
    settings = WorkerSettings((), "compile")
    if not fleet.farm:
        pool = CompilePool(fleet.workers, settings, memory_bytes_per_job=0)
        return lambda: pool
    nodes = SimulatedNodes(world, fleet.workers)
    return lambda: FarmPool(nodes, CompilePool(1, settings, memory_bytes_per_job=0), 0)


def _pipeline(world: World, store: Any, pool: Pool) -> Pipeline:
    counters, silent = Counters(), SpanTrace("")
    bench: Any = SimulatedBench(world)
    return Pipeline(
        "cuda:0",
        Builder(store, pool, counters, silent, compile_timeout_s=_TIMEOUT_S),
        bench,
        _refuse,
        counters,
        silent,
        30.0,
        ProblemLocks(store.problems, silence_s=_LIMIT_S),
        lambda _name: None,
    )


def _refuse(*_: object) -> Any:
    raise AssertionError("every candidate can be sent to a worker")


def _shares(fleet: Fleet, clock: Clock, store: SimulatedStore) -> list[list[list[Task]]]:
    """Return the models of each process, each the problems of one model."""
    count = max(1, round(fleet.candidates / fleet.per_problem))
    chance = random.Random(fleet.seed)
    tasks = [_task(fleet, number, chance, clock, store) for number in range(count)]
    shares: list[list[list[Task]]] = []
    for process in range(fleet.gpus):
        own = tasks[process :: fleet.gpus]
        size = len(own) if fleet.together else fleet.problems
        shares.append([own[start : start + size] for start in range(0, len(own), max(1, size))])
    return [share for share in shares if share]


def _task(
    fleet: Fleet, number: int, chance: random.Random, clock: Clock, store: SimulatedStore
) -> Task:
    library = TaskCandidate(CandidateId(f"library-{number}", "library", "extern", "", library=True))
    library.bench = lambda _library, _symbol: _argument(library)
    entries = [library, *(_candidate(fleet, number, k, chance) for k in range(fleet.per_problem))]

    def refresh(_task: Task) -> int:
        store.look_up()
        return 0

    events = clock.threading()
    return Task(
        problem=_PROBLEM,
        digest=f"problem-{number}",
        entries=entries,
        check=None,
        budget=None,
        exclusive=False,
        refresh=refresh,
        finish=lambda _task: store.write(),
        done=events.Event(),
        news=events.Event(),
    )


def _candidate(fleet: Fleet, number: int, index: int, chance: random.Random) -> TaskCandidate:
    name = f"kernel-{number}-{index}"
    key = KernelKey("template", name, name, "cuda:90", "toolchain", "")
    build: CppBuild | TritonCompileJob
    if chance.random() < fleet.cutlass_share:
        source = CppSource(key.digest, f"// {name}", "kernel")
        build = CppBuild(key, source, ("nvcc",), "cuda")
    else:
        environment = (("TRITON_CACHE_DIR", str(NOWHERE)),)
        build = TritonCompileJob(key.digest, name, "", environment, _TIMEOUT_S, kernel=key)
    entry = TaskCandidate(CandidateId(name, name, "template", "", library=False), build=build)
    entry.bench = lambda _library, _symbol: _argument(entry)
    return entry


def _argument(entry: TaskCandidate) -> BenchCandidate:
    return BenchCandidate(entry.candidate_id, OpKernel("aten::mm.out"), (), _OUTPUT, 30.0)
