"""What a worker is told of how this process compiles generated code, and whether it is ready."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import pytest
from torch._inductor import config as inductor_config
from torch._inductor import cpu_vec_isa

from inductor_plugin.inductor.guard import bench
from inductor_plugin.worker.bench_worker import BenchWorker
from inductor_plugin.worker.graph_job import GraphTimes, LoadSettings
from inductor_plugin.worker.jobs import WorkerSettings


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
    bench.GraphBench(worker, described, LoadSettings()).compare([graph, graph], 0.5)
    assert bench.is_ready("cpu")
    assert not bench.is_ready("cuda:0")
    pids.append(8)
    assert not bench.is_ready("cpu")
