"""A machine without the GPU measures on a node that has it: a node of the test, whose facts are those of an H200."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.aot.measure import as_node, node_of
from inductor_plugin.aot.precompile import Request, precompile
from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError, WorkerError
from inductor_plugin.problem.target import target
from inductor_plugin.tuning.environment import environment
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.version import __version__
from inductor_plugin.worker.bench_farm import bench as bench_module
from inductor_plugin.worker.bench_farm.fit import NodeFacts
from inductor_plugin.worker.bench_farm.node import NodeAnswer
from inductor_plugin.worker.jobs import FinalJob, Outcome, WorkerSettings
from tests.support.fakes.nodes import FakeBenchCluster, StubNode

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")

H200 = target("H200")


def facts(**device: object) -> NodeFacts:
    """Return what a node with an H200 says: its driver and memory are not those of the data sheet."""
    with as_target(H200):
        wanted = environment("cuda:0")
    own = {**wanted["device"], "memory_bytes": 150_000_000_000, **device}
    software = {**wanted["software"], "driver": "580.95.05"}
    return NodeFacts("gpu-node", __version__, {**wanted, "device": own, "software": software})


def fast(parcel: Any) -> NodeAnswer:
    """Answer every measurement: generated kernels take half of the library's time."""

    def outcome(name: str, rounds: int) -> Outcome:
        took_ms = 0.5 if name.startswith("triton") else 1.0
        return Outcome(name, "ok", samples_ms=(took_ms,) * rounds, error=1e-6)

    job = parcel.job
    if isinstance(job, FinalJob):
        return NodeAnswer(tuple(outcome(c.candidate_id, job.rounds) for c in job.candidates))
    return NodeAnswer(outcome(job.candidate.candidate_id, 5))


class Nodes:
    """The cluster of a test.

    Attributes:
        facts: What its node says.
        connected: The clusters that were connected to, one after another.
    """

    def __init__(self) -> None:
        self.facts = facts()
        self.connected: list[FakeBenchCluster] = []

    def connect(self, farm: str, *, on_gpu: bool) -> FakeBenchCluster:
        assert (farm, on_gpu) == ("ray:auto", True)
        self.connected.append(FakeBenchCluster("gpu-node", make=self._node))
        return self.connected[-1]

    def _node(self, settings: WorkerSettings) -> StubNode:
        node = StubNode(settings, fast)
        node.facts_answer = NodeAnswer(self.facts)
        return node


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, inductor_cache: Path) -> Iterator[Nodes]:
    cluster = Nodes()
    monkeypatch.setattr(bench_module, "BenchCluster", cluster.connect)
    monkeypatch.setattr(bench_module, "find_spec", str)
    RUNTIME.forget()
    yield cluster
    RUNTIME.forget()


def config(folder: Path, **options: Any) -> Config:
    stated = {
        "cache_dir": str(folder / "cache"),
        "gemm_backends": "ATEN,TRITON",
        "attention_backends": "EFFICIENT,TRITON",
        "max_candidates": 1,
        "table": "off",
        "progress": "off",
        "bench_farm": "ray:auto",
    }
    return Config.load({**stated, **options}, environ={})


def test_what_a_node_says_is_the_environment_of_its_gpu(nodes: Nodes, tmp_path: Path) -> None:
    node = node_of(H200, config(tmp_path))
    assert node == nodes.facts
    assert nodes.connected[0].closed
    with as_node(H200, node):
        assert environment("cuda:0") == nodes.facts.environment
    with as_target(H200):
        assert environment("cuda:0") != nodes.facts.environment


def test_without_a_farm_nothing_is_compiled(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"set option bench_farm .* or leave out --measure"):
        node_of(H200, config(tmp_path, bench_farm=""))
    request = Request(
        "H200",
        ("tests.support.graphs.models:half",),
        tmp_path / "half.pack",
        config(tmp_path, bench_farm=""),
        measure=True,
    )
    with pytest.raises(OptionError, match="measures on nodes"):
        precompile(request, lambda _: None)
    assert not (tmp_path / "cache" / "kernels").exists()


def test_a_node_with_another_gpu_is_refused_by_name(nodes: Nodes, tmp_path: Path) -> None:
    nodes.facts = facts(multiprocessors=114)
    with pytest.raises(WorkerError, match=r"gpu-node: device.multiprocessors is 114 there and 132"):
        node_of(H200, config(tmp_path))


@pytest.mark.slow
def test_all_problems_are_measured_there_and_recorded_under_its_environment(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    request = Request(
        "H200",
        ("tests.support.graphs.models:half",),
        tmp_path / "half.pack",
        config(tmp_path),
        measure=True,
    )
    report = precompile(request, lines.append)
    assert "gpu-node measures" in lines
    store = RUNTIME.store(request.config)
    records = [(each, store.environment(each.environment)) for each in store.iter_records()]
    own = [record for record, fields in records if fields == nodes.facts.environment]
    assert len(report.pack.problems) == 4
    assert set(report.pack.problems) <= {record.describe for record in own}  # and fusions
    winners = [record.decision.winner for record in own if record.decision is not None]
    assert len(winners) == len(own)
    assert any(str(winner).startswith("triton") for winner in winners)
    assert not any("are lost" in warning for warning in report.warnings)
    unwritten = itertools.chain((2,), itertools.repeat(5))
    monkeypatch.setattr(type(store), "unwritten", property(lambda _store: next(unwritten)))
    again = precompile(replace(request, out=tmp_path / "again.pack"), lines.append)
    assert f"3 measurements are lost, for {store.root} could not be written to" in again.warnings
    assert again.pack.kernels == report.pack.kernels
    measuring = nodes.connected[-1].nodes
    assert not any("measure" in node.asked for node in measuring)  # all is known
