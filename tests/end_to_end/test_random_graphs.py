"""Random graphs under a choice list that is full of faults: the output equals eager's each time.

Candidates are run in this process by the benchmark worker's own code, on the operands a worker would
have; only a crash and a hang are told instead of had. Which of the right ones is the fastest is drawn,
so that library kernels, Inductor's C++ templates and the test's operators all come into the code. One
graph in three is dynamic: compiled once and run at three sizes. Extents in a compile vary together, for
with `use_duck_shape=False` stock's own C++ bmm template takes a batch for 3 without a guard. One
test goes the whole way, with workers that really crash and hang.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportPrivateUsage=false

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import Tensor
from torch._dynamo.utils import counters

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.kernels.call import CppKernel, OpKernel
from inductor_plugin.worker.child import bench as child_bench
from inductor_plugin.worker.child import compile as child_compile
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    Compiled,
    CppCompileJob,
    Outcome,
    Sampling,
    ScreenJob,
)
from tests.support.candidates import random_faults
from tests.support.graphs.random import (
    FORMS,
    OPERATORS,
    OTHERS,
    PRODUCTS,
    TOGETHER,
    Graph,
    graph,
    shrunk,
)
from tests.support.lowering import Lab
from tests.support.native import cpp_unit

GRAPHS = 200
"""In which every operator stands eight times or more, behind half of all others."""
_ONCE = Sampling(warmup=0, samples=1, min_sample_ms=0.0, max_total_s=0.0, cold_cache=False)


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    # Not optimized: what is tested is which kernels are called, with which operands.
    with inductor_config.patch({"fx_graph_cache": False, "aot_inductor.debug_compile": True}):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def drawn(candidate: BenchCandidate) -> float:
    """Return milliseconds that look random and are the same each time."""
    text = f"{candidate.candidate_id} {candidate.inputs}"
    return 1.0 + hashlib.sha256(text.encode()).digest()[0]


@dataclass
class Bench(Lab):
    """A lab that runs the candidates; their times are drawn.

    Attributes:
        ended: How candidates ended, by status; `cpp` counts Inductor's C++ templates that were right.
    """

    ended: Counter[str] = field(default_factory=Counter[str])

    def submit(
        self, job: Any, done: Callable[[list[Compiled]], None], memory: int = 0, *_order: Any
    ) -> None:
        """Compile Inductor's C++ templates in this process, with the compile worker's own code."""
        assert isinstance(job, CppCompileJob)
        self.units.append(job)
        done(child_compile.run(job, lambda event: None))

    def screen(self, job: ScreenJob) -> Outcome:
        outcome = self._ran(job)
        self.ended[outcome.status] += 1
        if outcome.status != "ok":
            return outcome
        self.ended["cpp"] += isinstance(job.candidate.kernel, CppKernel)
        return replace(outcome, samples_ms=(self.milliseconds(job.candidate),) * 3)

    def _ran(self, job: ScreenJob) -> Outcome:
        candidate = job.candidate
        kernel = candidate.kernel
        fault = (
            kernel.op.partition("::")[2].partition(".")[0] if isinstance(kernel, OpKernel) else ""
        )
        if fault in random_faults.COSTLY:
            return Outcome(
                candidate.candidate_id, "hung" if fault == "hangs" else "crashed", "told"
            )
        try:
            return child_bench.screen(replace(job, sampling=_ONCE), lambda event: None)
        except Exception as error:  # noqa: BLE001  the border to a candidate, as `serve` of the worker has
            return Outcome(candidate.candidate_id, "raised", str(error))


def compiled(graphs: Sequence[Graph], cache_dir: Path, **options: Any) -> Callable[..., Any]:
    def run(values: list[list[Tensor]]) -> list[list[Tensor]]:
        return [
            lowered_graph(*inputs) for lowered_graph, inputs in zip(graphs, values, strict=True)
        ]

    torch._dynamo.reset()
    counters.clear()
    settings = {"cache_dir": str(cache_dir), "table": "off", "progress": "off", **options}
    return torch.compile(run, backend="inductor_plugin", options=settings)


def inputs_at(graphs: Sequence[Graph], extents: Mapping[int, int] | None) -> list[list[Tensor]]:
    """Return the inputs of graphs at a size; at the first, what varies is marked as unknown."""
    inputs = [lowered_graph.tensors(extents) for lowered_graph in graphs]
    if extents is None:
        for code, tensors in zip(graphs, inputs, strict=True):
            for number, dim in code.unknown():
                # Raises where anything takes the dimension for the number it is at first.
                torch._dynamo.mark_dynamic(tensors[number], dim)
    return inputs


def outcomes(
    graphs: Sequence[Graph], cache_dir: Path, **options: Any
) -> Iterator[tuple[Graph, str]]:
    """Compile graphs together and once, run them at each size, and yield each with what is wrong."""
    run = compiled(graphs, cache_dir, **options)
    for extents in (
        (None, *OTHERS) if any(lowered_graph.varies for lowered_graph in graphs) else (None,)
    ):
        inputs = inputs_at(graphs, extents)
        with torch.no_grad():
            got = run(inputs)
        for code, ours, tensors in zip(graphs, got, inputs, strict=True):
            yield code, difference(code, ours, tensors)
    assert counters["stats"]["unique_graphs"] == 1, "another size compiled the graphs again"


def difference(lowered_graph: Graph, got: Sequence[Tensor], inputs: Sequence[Tensor]) -> str:
    """Return what is wrong with a graph's results, empty where nothing is."""
    wanted = lowered_graph(*inputs)
    if len(got) != len(wanted):
        return f"{len(got)} results instead of {len(wanted)}"
    wide = lowered_graph(*(value.double() for value in inputs))
    for number, (ours, theirs, exact) in enumerate(zip(got, wanted, wide, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"result {number} is {ours.dtype} {list(ours.shape)}"
        # As far from the exact result as eager is, or as one rounding of each product's sum is.
        unit = torch.finfo(lowered_graph.dtype).eps * (len(lowered_graph.steps) + 2)
        room = 4 * (theirs.double() - exact).abs().max() + 4 * unit * exact.abs().max()
        off = (ours.double() - exact).abs().max()
        if not bool(off <= room):
            return f"result {number} is off by {off:.3g}, eager by {(theirs.double() - exact).abs().max():.3g}"
    return ""


def examine(graphs: Sequence[Graph], cache_dir: Path, **options: Any) -> None:
    """Compile graphs together, compare each with eager, and fail with a shrunken reproduction."""
    for outcome, wrong in outcomes(graphs, cache_dir, **options):
        if wrong:
            small = shrunk(outcome, lambda tried: fails(tried, cache_dir, **options))
            pytest.fail(f"{wrong}\n{outcome.text()}\nshrunk to\n{small.text()}")


def fails(lowered_graph: Graph, cache_dir: Path, **options: Any) -> bool:
    """Return whether a graph alone goes wrong, in any way."""
    try:
        return any(wrong for _, wrong in outcomes([lowered_graph], cache_dir, **options))
    except Exception:  # noqa: BLE001  a graph that cannot be compiled is a finding, too
        return True


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all: graphs share problems."""
    return tmp_path_factory.mktemp("random") / "cache"


def batches(count: int) -> list[range]:
    return [range(first, first + TOGETHER) for first in range(0, count, TOGETHER)]


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(
            batch, marks=[] if batch.start == 0 else [pytest.mark.slow], id=f"from_{batch.start}"
        )
        for batch in batches(GRAPHS)
    ],
)
@pytest.mark.compat
def test_what_runs_is_right(seeds: range, shared: Path) -> None:
    graphs = [graph(seed) for seed in seeds]
    before = Counter(random_faults.CALLS)
    bench = Bench(drawn, shared)
    with random_faults.offered(), cpp_unit.together(), bench.open():
        try:
            examine(graphs, shared, gemm_backends="ATEN,CPP")
        finally:
            child_bench.release()
    assert bench.tasks or seeds.start
    if seeds.start == 0:
        assert bench.ended["raised"] > 3
        assert bench.ended["wrong"] > 3
        assert bench.ended["ok"] > 10
        assert bench.ended["cpp"]
        assert random_faults.CALLS["good"] > before["good"]


@pytest.mark.slow
def test_workers_that_crash_and_hang_change_no_result(cache_dir: Path) -> None:
    graphs: list[Graph] = []
    costly: Counter[str] = Counter()
    seen: list[str] = []
    original = random_faults.faults_of

    def noted(problem: Any) -> list[str]:
        names = original(problem)
        number = len(seen)
        seen.append(problem.describe())
        names += sorted(random_faults.COSTLY)[number % 2 : number % 2 + 1] if number < 2 else []
        costly.update(set(names) & random_faults.COSTLY.keys())
        return list(dict.fromkeys(names))

    with pytest.MonkeyPatch.context() as patch, random_faults.offered():
        patch.setattr(random_faults, "faults_of", noted)
        graphs = [graph(seed) for seed in range(8)]
        examine(graphs, cache_dir, gemm_backends="CPP", bench_timeout_s=3)
    statuses = Counter(refused.status for refused in open_store(cache_dir).iter_quarantine())
    assert statuses["crashed"] >= 1 <= statuses["hung"]
    assert statuses["wrong"] + statuses["raised"] >= 4
    assert set(costly) == set(random_faults.COSTLY)


def test_the_generator_gives_the_same_graph_for_a_seed_and_every_operator_in_two_hundred() -> None:
    assert graph(7) == graph(7) != graph(8)
    assert graph(7).text() == graph(7).text()
    graphs = [graph(seed) for seed in range(GRAPHS)]
    assert {len(lowered_graph.varies) for lowered_graph in graphs} == {0, 1, 4}
    assert sum(bool(lowered_graph.varies) for lowered_graph in graphs[:TOGETHER]) == TOGETHER // 3
    assert {
        step.name for lowered_graph in graphs for step in lowered_graph.steps
    } == OPERATORS.keys()
    assert {operand.form for whole in graphs for operand in whole.inputs} == FORMS.keys()
    assert {lowered_graph.dtype for lowered_graph in graphs} == {torch.float32, torch.bfloat16}
    for code in graphs[:50]:
        tensors = code.tensors()
        assert [tuple(value.shape) for value in tensors] == [
            operand.size for operand in code.inputs
        ]
        assert all(torch.equal(a, b) for a, b in zip(tensors, code.tensors(), strict=True))
        other = code.tensors(OTHERS[0])
        assert code.varies or all(torch.equal(a, b) for a, b in zip(tensors, other, strict=True))
        assert all(other[n].shape[d] == OTHERS[0][tensors[n].shape[d]] for n, d in code.unknown())


def test_a_failure_shrinks_to_the_step_that_causes_it() -> None:
    whole = next(
        index
        for index in map(graph, range(1000))
        if len(index.steps) == 4 and "sine" in [step.name for step in index.steps[1:-1]]
    )
    small = shrunk(whole, lambda tried: "sine" in [step.name for step in tried.steps], most=50)
    assert [step.name for step in small.steps if step.name not in PRODUCTS] == ["sine"]
    assert all(operand.form == "dense" for operand in small.inputs)
    small(*small.tensors())
