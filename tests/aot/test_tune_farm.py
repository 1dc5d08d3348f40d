"""A model tuned with a farm: the cache has the records and the kernels that the local pool leaves."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inductor_plugin import errors
from inductor_plugin.aot.tune import TuneReport, TuneRequest, tune
from inductor_plugin.cache import open_store
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.worker.farm.cluster import Cluster

pytestmark = pytest.mark.slow


def linear() -> tuple[nn.Module, Any]:
    return nn.Linear(96, 64), (torch.randn(48, 96),)


@pytest.fixture(autouse=True)
def forgotten(inductor_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(errors, "_SAID", set[str]())
    RUNTIME.forget()
    yield
    RUNTIME.forget()


def tuned(folder: Path, **more: str) -> TuneReport:
    options = {"cache_dir": str(folder), "table": "off", "progress": "off", "max_candidates": 2}
    report = tune(TuneRequest(f"{__name__}:linear", options | more), lambda _: None)
    RUNTIME.forget()
    return report


def kept(folder: Path) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return the kernel of each row of each record, and of each kernel in the cache the SHA-256 of its source."""
    store = open_store(folder, read_only=True)
    rows = {
        (each.op, each.digest, name): row.kernel
        for each in store.iter_records()
        for name, row in each.candidates.items()
    }
    sources = {
        each.digest: {n: sha for n, sha in each.files.items() if n.startswith("source.")}
        for each in store.iter_kernels()
    }
    return rows, sources


def test_a_model_that_is_tuned_with_a_farm_leaves_what_the_local_pool_does(
    tmp_path: Path,
    ray_on_this_machine: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start, started = Cluster.start, list[Any]()

    def counting(*arguments: Any, **more: Any) -> Any:
        started.append(start(*arguments, **more))
        return started[-1]

    monkeypatch.setattr(Cluster, "start", counting)
    here = tuned(tmp_path / "here")
    assert started == []
    there = tuned(tmp_path / "there", compile_farm=ray_on_this_machine)
    assert started
    assert here.stats.compiled == there.stats.compiled > 0
    assert {each.key for each in there.problems} == {each.key for each in here.problems}
    assert kept(tmp_path / "there") == kept(tmp_path / "here")
    assert any(kernel for kernel in kept(tmp_path / "here")[0].values())
    assert "compiled here" not in caplog.text
