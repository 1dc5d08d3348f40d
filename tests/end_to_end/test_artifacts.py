"""What a process has tuned is tuned in another one that loads its artifacts, with empty caches of its own."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.candidates.providers import offered
from tests.support.compile import Spent, compiled, fresh
from tests.support.lowering import Lab, library_first
from tests.support.pages import environment
from tests.support.repository import REPOSITORY

__all__ = ["fresh"]  # the fixture
pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def of_its_own() -> Iterator[None]:
    """Keep the artifacts of other tests apart."""
    with CacheArtifactManager.with_fresh_cache():
        yield


def records(info: Any) -> list[str]:
    return sorted(key for key in info.artifacts["inductor_plugin"] if key.startswith("record/"))


def anew() -> None:
    """Begin what is a new process to the plugin."""
    RUNTIME.forget()
    torch._dynamo.reset()


def test_a_decision_is_saved_where_it_is_made_and_where_it_is_replayed(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = torch.randn(65, 33), torch.randn(33, 47)
    with offered("good", "raises"):
        compiled(torch.mm, cache_dir)(a, b)
        first = torch.compiler.save_cache_artifacts()
        assert first is not None
        (known,) = open_store(cache_dir).iter_records()
        assert records(first[1]) == [f"record/{known.place}"]
        anew()
        with CacheArtifactManager.with_fresh_cache():
            compiled(torch.mm, cache_dir)(a, b)
            again = torch.compiler.save_cache_artifacts()
        assert again is not None
        assert records(again[1]) == records(first[1])

        anew()
        other = tmp_path / "other"
        monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(other))
        torch.compiler.load_cache_artifacts(again[0])
        spent = Spent()
        answer = compiled(torch.mm, other)(a, b)
    assert torch.allclose(answer, a @ b, atol=1e-4)
    assert (spent.stats.record_hits, spent.stats.benchmarked) == (1, 0)
    (there,) = open_store(other).iter_records()
    assert there == known
    assert [q.status for q in open_store(other).iter_quarantine()] == ["raised"]


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_nothing_is_recorded_where_nothing_is_kept(cache_dir: Path) -> None:
    a = torch.randn(29, 29)
    with offered("good"), inductor_config.patch(force_disable_caches=True):
        torch.compile(torch.mm, backend="inductor_plugin")(a, a)
    with offered("good"):
        compiled(torch.mm, cache_dir, cache="off")(a, a)
    assert inductor_plugin.stats().problems
    saved = torch.compiler.save_cache_artifacts()
    assert saved is None or records(saved[1]) == []


Process = Callable[..., dict[str, Any]]


@pytest.fixture
def process(tmp_path: Path) -> Process:
    """Return a function that runs a process with empty caches, at the same paths."""

    def run(*arguments: str) -> dict[str, Any]:
        for name in ("plugin", "inductor"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        variables = {
            "INDUCTOR_PLUGIN_CACHE_DIR": str(tmp_path / "plugin"),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.processes.artifacts", *arguments],
            env=environment() | variables,
            timeout=500,
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "inductor-plugin:" not in done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
def test_a_second_process_measures_nothing_with_and_without_the_cache_of_inductor(
    process: Process, tmp_path: Path
) -> None:
    file = str(tmp_path / "artifacts")
    cold = process("--save", file)
    assert cold["stats"]["problems"] == cold["stats"]["record_misses"] == len(cold["decisions"])
    assert cold["stats"]["benchmarked"] > len(cold["decisions"])
    ours = cold["saved"]["inductor_plugin"]
    assert sum(key.startswith("record/") for key in ours) == len(cold["decisions"])
    decided = {record.digest: record.decision for record in known(tmp_path)}

    warm = process("--load", file)
    assert warm["loaded"]["inductor_plugin"] == ours
    assert warm["stats"]["record_misses"] == warm["stats"]["benchmarked"] == 0
    assert warm["stats"]["compiled"] == 0
    assert warm["hits"] == len(cold["saved"].get("inductor", ()))  # a provisional graph is not kept
    assert warm["decisions"].items() <= cold["decisions"].items()
    assert {record.digest: record.decision for record in known(tmp_path)} == decided

    without = process("--load", file, "--without-fx-cache")
    assert without["hits"] == 0
    assert without["stats"]["record_hits"] == without["stats"]["problems"] == len(decided)
    assert without["stats"]["benchmarked"] == without["stats"]["compiled"] == 0
    assert without["decisions"] == cold["decisions"]
    assert warm["results"] == without["results"] == cold["results"]
    assert max(run["error"] for run in (cold, warm, without)) < 1e-5


def test_artifacts_of_other_kinds_are_loaded_where_the_cache_has_lost_an_entry(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = torch.randn(35, 35)
    with offered("good"), Lab(library_first, cache_dir).open():
        compiled(torch.mm, cache_dir)(a, a)
        CacheArtifactManager.record_artifact("pgo", "a key", b"of torch")
        open_store(cache_dir).clear()
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(tmp_path / "other"))
    loaded: list[str] = []
    kind: Any = CacheArtifactFactory._get_artifact_type("pgo")

    def populate(artifact: CacheArtifact) -> None:
        loaded.append(artifact.key)

    monkeypatch.setattr(kind, "populate_cache", populate)
    torch.compiler.load_cache_artifacts(saved[0])
    assert loaded == ["a key"]
    assert list(open_store(tmp_path / "other").iter_records()) == []


def known(tmp_path: Path) -> list[Any]:
    return list(open_store(tmp_path / "plugin").iter_records())
