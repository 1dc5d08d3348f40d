"""Measuring on real nodes of a cluster: the CPU of this machine is what is measured. `test_bench_worker` has the suite."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.kernels.call import CppKernel, ExternKernel, OpKernel
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.bench_farm import finder as finder_module
from inductor_plugin.worker.bench_farm.bench import FarmBench, finder_of, on_nodes
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.farm.resource import resource_of
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    Compiled,
    CppCompileJob,
    FinalJob,
    Outcome,
    Sampling,
    ScreenJob,
    WorkerSettings,
)
from tests.support.candidates.operands import tensor
from tests.support.fakes.nodes import environment_here
from tests.support.fakes.waiting import until, wait_idle
from tests.support.ray_cluster import add_node, kill, ray_processes
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.slow

THREADS, LIMIT_S = 1, 240.0
SETTINGS = WorkerSettings((str(REPOSITORY), *sys.path), "bench", threads=THREADS)
QUICK = Sampling(warmup=1, samples=3, min_sample_ms=0.05, max_total_s=5.0, cold_cache=False)
A, B, C = tensor(16, 32, seed=1), tensor(32, 8, seed=2), tensor(16, 8)
LIBRARY = BenchCandidate("mm", ExternKernel("mm"), (A, B), C, 60.0)
NODE = b"ray::BenchNode"


@pytest.fixture
def bench(measuring_cluster: Any) -> Iterator[FarmBench]:
    farm = f"ray:{measuring_cluster.address}"
    worker = on_nodes(farm, SETTINGS, environment_here(THREADS))
    yield worker
    worker.close()
    until(lambda: not ray_processes(measuring_cluster.address, NODE), LIMIT_S)


def screen(candidate: BenchCandidate) -> ScreenJob:
    return ScreenJob("problem", None, candidate, QUICK, None)


def hanging(timeout_s: float) -> BenchCandidate:
    kernel = OpKernel("faults::hangs", imports=("tests.support.candidates.faults",))
    return BenchCandidate("hangs", kernel, (A, B), C, timeout_s)


def test_candidates_are_measured_in_a_process_of_one_node(
    bench: FarmBench, measuring_cluster: Any
) -> None:
    assert bench.why_not_available() is None
    outcome = bench.screen(screen(LIBRARY))
    assert (outcome.status, len(outcome.samples_ms)) == ("ok", 3)
    finals = bench.final(FinalJob("problem", (LIBRARY,), 4, QUICK))
    assert [(each.candidate_id, each.status) for each in finals] == [("mm", "ok")]
    (node,) = ray_processes(measuring_cluster.address, NODE)
    assert bench.pid not in (None, node)
    bench.release()


def test_a_job_whose_process_is_killed_is_done_again(
    bench: FarmBench, measuring_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert bench.why_not_available() is None
    (first,) = ray_processes(measuring_cluster.address, NODE)
    outcomes: list[Outcome] = []
    job = screen(hanging(8.0))
    with caplog.at_level(logging.INFO):
        thread = threading.Thread(target=lambda: outcomes.append(bench.screen(job)))
        thread.start()
        thread.join(3.0)
        kill(first)
        thread.join(LIMIT_S)
    assert [outcome.status for outcome in outcomes] == ["hung"]  # on the other node
    assert "its job is done again" in caplog.text
    assert ray_processes(measuring_cluster.address, NODE) != [first]
    assert bench.screen(screen(LIBRARY)).status == "ok"


def test_a_node_is_known_by_its_resource_and_asked_which_device_it_has(
    measuring_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder_module, "_AGAIN_S", 0.0)
    resource = {"inductor-plugin:only": 1.0}
    farm = f"ray:{measuring_cluster.address}"
    facts = environment_here(THREADS)
    wanted = {**facts, "device": {**facts["device"], "name": "only"}}
    bench = on_nodes(farm, SETTINGS, wanted)
    assert "no node of the farm has the resource 'inductor-plugin:only'" in str(
        bench.why_not_available()
    )
    node = add_node(measuring_cluster, resource)
    until(
        lambda: "device.name is " in str(bench.why_not_available()), LIMIT_S
    )  # another device than it is called
    with pytest.raises(WorkerError, match="'only' here"):
        bench.screen(screen(LIBRARY))
    measuring_cluster.remove_node(node, allow_graceful=False)
    until(lambda: "has the resource" in str(bench.why_not_available()), LIMIT_S)
    bench.close()


def test_libraries_and_weights_reach_the_node(bench: FarmBench, tmp_path: Path) -> None:
    text = """
#include <cstdint>
extern "C" void first(const float* a, float* c) { for (int i = 0; i < 128; ++i) c[i] = a[i]; }
"""
    command = ("g++", "{source}", "-O1", "-shared", "-fPIC", "-o", "{output}")
    answers: list[Compiled] = []
    settings = WorkerSettings((str(REPOSITORY), *sys.path), "compile")
    pool = CompilePool(1, settings, 0)
    source = CppSource("key", text, "first")
    pool.submit(CppCompileJob((source,), command, str(tmp_path), 60.0), answers.extend)
    assert wait_idle(pool, LIMIT_S)
    pool.close()
    weights = tmp_path / "weights.bin"
    weights.write_bytes(bytes(4 * 16 * 32))
    assert answers[0].library is not None
    kernel = CppKernel(answers[0].symbol, answers[0].library)
    candidate = BenchCandidate("cpp", kernel, (tensor(16, 32, file=str(weights)),), C, 60.0)
    outcome = bench.screen(screen(candidate))
    assert outcome.status == "ok", outcome.reason
    weights.unlink()  # what was sent stays there
    assert bench.screen(screen(LIBRARY)).status == "ok"


def test_an_idle_node_is_free_for_others(measuring_cluster: Any) -> None:
    farm, facts = f"ray:{measuring_cluster.address}", environment_here(THREADS)
    first = on_nodes(farm, replace(SETTINGS, idle_s=1.0), facts)
    assert first.screen(screen(LIBRARY)).status == "ok"
    until(lambda: not ray_processes(measuring_cluster.address, NODE), LIMIT_S)
    second = on_nodes(farm, SETTINGS, facts)
    assert second.screen(screen(LIBRARY)).status == "ok"
    first.close()
    second.close()


def test_of_two_kinds_of_gpus_a_process_measures_on_one_of_its_own_or_not_at_all(
    measuring_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes are called after GPUs that they do not have, and each worker stands for a process."""
    own, other = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
    nodes = {
        name: add_node(measuring_cluster, {resource_of(name): count})
        for name, count in ((own, 2.0), (other, 1.0))
    }
    farm = f"ray:{measuring_cluster.address}"
    first, second, third, fourth = workers = [
        FarmBench(SETTINGS, finder_of(farm, SETTINGS, name, lambda _: None))
        for name in (own, own, own, other)
    ]

    def measuring() -> tuple[int, int, int]:
        """Return how many GPUs are held: of the one kind, of the other, and of all nodes."""
        places = [nodes[name].raylet_socket_name for name in (own, other)]
        at_own, at_other = (len(ray_processes(place, NODE)) for place in places)
        return at_own, at_other, len(ray_processes(measuring_cluster.address, NODE))

    outcomes: list[Outcome] = []
    jobs = [
        threading.Thread(target=lambda: outcomes.append(first.screen(screen(LIBRARY))))
        for _ in range(3)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(LIMIT_S)
    assert [outcome.status for outcome in outcomes] == ["ok"] * 3
    assert measuring() == (1, 0, 1)  # one at a time, though another of that node is free
    assert second.screen(screen(LIBRARY)).status == "ok"
    assert measuring() == (2, 0, 2)
    with monkeypatch.context() as patch:
        patch.setattr(finder_module, "_SEARCH_S", 1.0)
        patch.setattr(finder_module, "_LEAST_S", 5.0)
        with pytest.raises(WorkerError, match="or others measure"):
            third.screen(screen(LIBRARY))
    assert measuring() == (2, 0, 2)  # the other kind is free, and is not taken
    assert fourth.screen(screen(LIBRARY)).status == "ok"
    assert measuring() == (2, 1, 3)
    for worker in workers:
        worker.close()
    until(lambda: measuring() == (0, 0, 0), LIMIT_S)
    for node in nodes.values():
        measuring_cluster.remove_node(node)
