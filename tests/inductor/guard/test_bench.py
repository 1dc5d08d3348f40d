"""What a worker is told of how this process compiles generated code, and whether it is ready."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import pytest
from torch._inductor import config as inductor_config
from torch._inductor import cpu_vec_isa

from inductor_plugin.errors import WorkerError
from inductor_plugin.inductor.guard import bench
from inductor_plugin.inductor.guard.comparison import Comparison
from inductor_plugin.worker.bench_worker import BenchWorker
from inductor_plugin.worker.graph_job import GraphTimes, LoadSettings
from inductor_plugin.worker.jobs import JobFailed, WorkerSettings


@pytest.mark.filterwarnings("error")
def test_options_that_change_how_code_is_compiled_are_carried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    isa = cpu_vec_isa.supported_vec_isa_list[0]
    monkeypatch.setattr(cpu_vec_isa, "pick_vec_isa", lambda: isa)
    monkeypatch.setattr(type(isa), "__bool__", lambda self: True)  # pyright: ignore
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    before, options = dict(bench.load_settings("cpu").options), cast("Any", inductor_config)
    with options.patch({"cpp.simdlen": 256, "max_autotune": True}):
        settings = bench.load_settings("cpu")
    assert dict(settings.options) == {**before, "cpp.simdlen": 256}
    assert dict(settings.environment) == {"TORCHINDUCTOR_CACHE_DIR": "/somewhere"}
    assert str(pickle.loads(settings.isa)) == str(isa)


def test_a_worker_that_has_run_graphs_is_ready_until_its_process_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids = [7]
    monkeypatch.setattr(bench, "_READY", WeakKeyDictionary[BenchWorker, Any]())
    monkeypatch.setattr(BenchWorker, "pid", property(lambda _: pids[-1]))  # pyright: ignore
    worker = BenchWorker(WorkerSettings((), "bench"))
    times = GraphTimes(((1.0,) * 5, (2.0,) * 5))
    monkeypatch.setattr(worker, "call", lambda *_: times)  # pyright: ignore
    described: Any = SimpleNamespace(inputs=(), constants=lambda _: ())  # pyright: ignore
    code = SimpleNamespace(source_code="", mutated_input_idxs=())
    graph: Any = SimpleNamespace(code=code, constants=dict)
    assert not bench.is_ready("cpu")
    bench.GraphBench(worker, described, LoadSettings()).compare([graph, graph], 0.5, 60.0)
    assert bench.is_ready("cpu")
    assert not bench.is_ready("cuda:0")
    pids.append(8)
    assert not bench.is_ready("cpu")


def test_a_thread_may_add_a_worker_while_another_asks_whether_theirs_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = [BenchWorker(WorkerSettings((), "bench")) for _ in range(3)]
    monkeypatch.setattr(bench, "_READY", WeakKeyDictionary[BenchWorker, Any]({workers[0]: 7}))

    def pid(_worker: BenchWorker) -> int:
        bench._READY.update(dict.fromkeys(workers, 7))  # as another thread does meanwhile
        return 8

    monkeypatch.setattr(BenchWorker, "pid", property(pid))  # pyright: ignore
    assert not bench.is_ready("cpu")
    assert len(bench._READY) == 3


def compared(
    monkeypatch: pytest.MonkeyPatch, answer: Any, **facts: Any
) -> tuple[Comparison, list[Any]]:
    """Return a comparison by a worker that gives an answer, and what the worker was asked."""
    asked: list[Any] = []

    def call(_worker: Any, job: Any, limit_s: float) -> Any:
        asked.extend((job.args[0], limit_s))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(bench, "_READY", WeakKeyDictionary[BenchWorker, Any]())
    monkeypatch.setattr(BenchWorker, "call", call)
    monkeypatch.setattr(BenchWorker, "pid", property(lambda _: 7))  # pyright: ignore
    worker = BenchWorker(WorkerSettings((), "bench", device=facts.get("device", "cpu")))
    described: Any = SimpleNamespace(inputs=(1, 2), constants=tuple)
    changed = facts.get("changed", ((), ()))
    graphs: list[Any] = [
        SimpleNamespace(
            code=SimpleNamespace(source_code=f"graph {place}", mutated_input_idxs=indices),
            constants=lambda: ("a constant",),
        )
        for place, indices in enumerate(changed)
    ]
    donated = facts.get("donated", ())
    limits_s = facts.get("limits_s", (0.5, 60.0))
    runner = bench.GraphBench(worker, described, LoadSettings(), donated)
    return runner.compare(graphs, *limits_s), asked


def test_graphs_are_run_on_inputs_that_any_of_them_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    times = GraphTimes(((1.0,) * 5, (2.0,) * 5, (3.0,) * 5), disturbed=True, run_s=7.0)
    result, (job, limit_s) = compared(monkeypatch, times, changed=((1,), (), (0, 1)))
    assert result == Comparison((1.0,) * 5, (2.0,) * 5, True, (3.0,) * 5, 7.0)
    assert [graph.source for graph in job.graphs] == ["graph 0", "graph 1", "graph 2"]
    assert (job.inputs, job.changed, job.limit_s) == ((1, 2), (0, 1), 0.5)
    assert (job.most_s, limit_s) == (60.0, bench.SETUP_S + bench.TURN_WAIT_S + 120.0)
    assert compared(monkeypatch, times, limits_s=(0.5, 0.2))[1][1] == limit_s - 119.0
    two = GraphTimes(((1.0,) * 5, (2.0,) * 5))
    assert compared(monkeypatch, two)[0] == Comparison((1.0,) * 5, (2.0,) * 5)


@pytest.mark.parametrize(("device", "changed"), [("cpu", (0, 1, 4)), ("cuda:0", (1,))])
def test_inputs_in_which_a_backward_graph_may_write_are_restored_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, device: str, changed: tuple[int, ...]
) -> None:
    """There decayed values become denormal, and slow."""
    times = GraphTimes(((1.0,) * 5, (2.0,) * 5))
    _, (job, _) = compared(monkeypatch, times, changed=((1,), ()), donated=(0, 4), device=device)
    assert job.changed == changed


@pytest.mark.parametrize(
    ("answer", "why", "ready"),
    [
        (GraphTimes((), reason="calls take too long", need_s=9.0), "calls take too long", True),
        (JobFailed("hung", "it took too long"), "hung: it took too long", False),
        (WorkerError("the worker has ended"), "crashed: the worker has ended", False),
    ],
)
def test_graphs_that_were_not_run_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, answer: Any, why: str, *, ready: bool
) -> None:
    with pytest.raises(bench.NotComparedError) as caught:
        compared(monkeypatch, answer)
    assert str(caught.value) == why
    assert getattr(caught.value, "need_s", None) == getattr(answer, "need_s", None)
    # A worker that has loaded graphs has imported Inductor.
    assert bench.is_ready("cpu") is ready
