"""What call sites need is recorded although nothing is decided: Inductor's cache may have the graph."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch.compiler._cache import CacheArtifactManager

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.config import Config
from inductor_plugin.inductor.artifacts import artifact, entries
from inductor_plugin.inductor.facts.scope import CARRIER, ConfigCarrier
from inductor_plugin.ops import launch, sites
from inductor_plugin.ops.gemm_abi import GemmCall
from inductor_plugin.ops.native import source
from inductor_plugin.templates.cutlass.source import INTERFACE as PRODUCTS
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.fakes.selection import offers, race, rig
from tests.support.native import call_sites, host_kernels
from tests.support.native.echo import ECHO, Echo

pytestmark = pytest.mark.compat

OP = "inductor_plugin::cutlass_mm.out"


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    host_kernels.install(monkeypatch, tmp_path / "none")
    RUNTIME.forget()
    with call_sites.on_the_host(), CacheArtifactManager.with_fresh_cache():
        yield
    inductor_plugin.disable()


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    """Return a kernel in the cache of the process that saves, with the library of call sites."""
    text = ECHO.format(header=PRODUCTS.read_text(), call=GemmCall.__name__)
    store = open_store(tmp_path / "theirs")
    store.put_kernel(source.key(), {launch.LIBRARY_FILE: call_sites.compiled()})
    return host_kernels.stored_in(store, host_kernels.library(tmp_path, text), "echo")


def generated(kernel: str, cache_dir: Path, **options: Any) -> None:
    """Run what a compile that finds its graph in Inductor's cache runs: the head of the generated code."""
    config = Config.load({"cache_dir": str(cache_dir), **options}).with_cache(disabled=False)
    with inductor_config.patch({CARRIER: ConfigCarrier(config)}):
        sites.site(OP, (kernel, "tt", 1, 0, 1))


def keys() -> list[str]:
    """Return the keys of the artifacts recorded so far."""
    recorded = CacheArtifactManager._new_cache_artifacts
    return sorted(each.key for each in recorded.get(artifact.TYPE, ()))


def test_a_call_site_finds_its_kernel_in_the_process_that_loads(
    kernel: str, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inductor_plugin.options(cache_dir=str(tmp_path / "theirs"))
    generated(kernel, tmp_path / "theirs")
    digest = kernel.partition("@")[2]
    assert keys() == sorted(f"kernel/{each}" for each in (digest, source.key().digest))
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None

    host_kernels.install(monkeypatch, tmp_path / "none")
    RUNTIME.forget()
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(cache_dir))
    RUNTIME.store(Config.load())  # it is open already, and does not have the kernel
    assert launch.library_path(digest) is None
    a, b, out = torch.randn(5, 7), torch.randn(7, 6), torch.empty(5, 6)
    call = sites.site(OP, (kernel, "tt", 1, 0, 1))
    with pytest.warns(RuntimeWarning, match="not in the cache"):
        call(a, b, None, out=out)
    assert torch.compiler.load_cache_artifacts(saved[0]) is not None
    path = launch.library_path(digest)
    assert path is not None
    assert path.is_relative_to(cache_dir)
    echo = Echo(path, GemmCall)
    call(a, b, None, out=out)
    assert echo.runs == 1
    assert open_store(cache_dir).kernel(source.key().digest) is not None


def test_the_kernel_of_a_winner_is_among_the_artifacts_with_its_record(tmp_path: Path) -> None:
    bench = rig(tmp_path / "theirs")
    ticket = bench.plan(offers("a", "b"))
    race(ticket, {"library": 2.0, "a": 1.0, "b": 1.5})
    bench.selection.decide(ticket)
    ticket.measured = {
        name: replace(row, kernel=f"digest of {name}") for name, row in ticket.measured.items()
    }
    entries.add_decisions(bench.store, "environment", [ticket])
    assert keys() == ["kernel/digest of a", f"record/environment/mm/{ticket.digest}"]


def test_a_kernel_that_was_evicted_is_saved_as_nothing(
    kernel: str, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inductor_plugin.options(cache_dir=str(tmp_path / "theirs"))
    generated(kernel, tmp_path / "theirs")
    open_store(tmp_path / "theirs").remove_kernel(kernel.partition("@")[2])
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(cache_dir))
    assert torch.compiler.load_cache_artifacts(saved[0]) is not None
    assert [k.digest for k in open_store(cache_dir).iter_kernels()] == [source.key().digest]


def test_what_is_in_no_cache_is_not_recorded(kernel: str, cache_dir: Path) -> None:
    inductor_plugin.options()
    generated(kernel, cache_dir, cache="off")
    generated("echo@/a/path.so", cache_dir)
    sites.site(OP, (kernel, "tt", 1, 0, 1))  # in no compile
    assert keys() == []
    inductor_plugin.disable()
    generated(kernel, cache_dir)
    assert keys() == []


def test_a_call_that_is_measured_is_not_recorded(kernel: str, cache_dir: Path) -> None:
    inductor_plugin.options()
    config = Config.load({"cache_dir": str(cache_dir)})
    operands = torch.randn(5, 7), torch.randn(7, 6)
    with inductor_config.patch({CARRIER: ConfigCarrier(config)}):
        sites.bound(OP, (*operands, kernel, "tt", 1, 0, 1), torch.empty(5, 6))
    assert keys() == []
