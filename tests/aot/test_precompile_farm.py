"""A layer of Llama-3-8B compiled ahead of time by the local pool and by a farm: the same keys and the same bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.aot.precompile import PackReport, Request, precompile
from inductor_plugin.cache import open_store
from inductor_plugin.config import Config
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.worker.farm import cluster, flight, pool
from tests.support.fakes.waiting import until
from tests.support.processes.farm_jobs import Attempt, NotedJobs
from tests.support.ray_cluster import add_node

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

LLAMA = "tests.support.graphs.models:llama_layer"
NODES, LIMIT_S = 3, 300.0


@pytest.fixture(autouse=True)
def forgotten(inductor_cache: Path) -> Iterator[None]:
    RUNTIME.forget()
    yield
    RUNTIME.forget()


def compiled(folder: Path, **options: str) -> PackReport:
    """Compile the layer into an empty cache."""
    config = Config.load(
        {
            "cache_dir": str(folder / "cache"),
            "gemm_backends": "ATEN,TRITON",
            "attention_backends": "EFFICIENT,TRITON",
            "max_candidates": 2,  # more than there are nodes, of the products that are lowered first
            "table": "off",
            "progress": "off",
            **options,
        },
        environ={},
    )
    folder.mkdir()
    request = Request("H200", (LLAMA,), folder / "llama.pack", config)
    return precompile(request, lambda _: None)


def contents(folder: Path) -> dict[str, dict[str, str]]:
    """Return the digest of each file's bytes, by the kernel's key."""
    kernels = open_store(folder / "cache").iter_kernels()
    return {entry.digest: dict(entry.files) for entry in kernels}


def test_a_layer_of_llama_is_the_same_from_both_pools_whatever_happens_to_the_farm(
    tmp_path: Path,
    ray_cluster: Any,
    ray_on_this_machine: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node comes and compiles with the others, and a process is killed meanwhile: its job is done again, and nothing differs."""
    here = compiled(tmp_path / "here")
    reports: list[PackReport] = []
    jobs = NotedJobs(tmp_path / "jobs")
    monkeypatch.setattr(cluster, "compile_parcel", jobs.noting())
    monkeypatch.setattr(pool, "_BEGIN_S", LIMIT_S)  # on a busy machine all are slow
    monkeypatch.setattr(flight, "_STRAGGLER_S", LIMIT_S)

    def compile_there() -> None:
        reports.append(compiled(tmp_path / "there", compile_farm=ray_on_this_machine))

    # Ray starts nodes in the main thread only.
    thread = threading.Thread(target=compile_there)
    thread.start()
    until(lambda: len(jobs.noted("begun")) == NODES, LIMIT_S)
    added: str = add_node(ray_cluster).node_id
    # The jobs on the other nodes wait, so that the next one begins here.
    until(lambda: any(attempt.node == added for attempt in jobs.noted("begun")), LIMIT_S)
    assert not jobs.noted("ended")
    jobs.open()
    killed: list[Attempt] = []

    def is_killed() -> bool:
        attempt = jobs.kill_one(but_on=added)
        killed.extend([] if attempt is None else [attempt])
        return bool(killed)

    until(is_killed, LIMIT_S)
    thread.join(LIMIT_S)
    (there,) = reports
    (lost,) = killed
    again = [attempt for attempt in jobs.noted("ended") if attempt.key == lost.key]
    assert again
    assert lost not in again
    assert any(attempt.node == added for attempt in jobs.noted("ended"))
    assert here.stats.compiled == there.stats.compiled > NODES
    assert there.pack.kernels == here.pack.kernels
    assert there.pack.problems == here.pack.problems
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert "compiled here" not in caplog.text
