"""Inductor's own switches mean the same with the plugin: caches, determinism, autotuning, time limits."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config

import inductor_plugin
from inductor_plugin.config import Config, default_cache_dir
from inductor_plugin.inductor.facts.compat import torch_version
from inductor_plugin.inductor.facts.scope import as_switched, inductor_switches
from inductor_plugin.inductor.graph import session
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.candidates.providers import offered
from tests.support.compile import Spent, compiled, fresh, records

__all__ = ["fresh"]  # the fixture
pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled"),  # torch says so itself
]


@pytest.fixture(name="home")
def a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the default cache, which nobody has named."""
    monkeypatch.delenv("INDUCTOR_PLUGIN_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "inductor_plugin"


def product(**options: Any) -> Callable[..., Any]:
    return torch.compile(torch.mm, backend="inductor_plugin", options=options)


def spent_by(function: Callable[..., Any]) -> Spent:
    """Compile a product in what is a new process to the plugin, and return what it did."""
    RUNTIME.forget()
    torch.compiler.reset()
    spent = Spent()
    a, b = torch.randn(31, 33), torch.randn(33, 47)
    with offered("good"):
        assert torch.allclose(function(a, b), a @ b, atol=1e-4)
    return spent


@pytest.mark.slow
def test_without_caches_nothing_is_read_or_written(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert spent_by(product()).stats.benchmarked == 2
    before = sorted((path, path.stat().st_mtime_ns) for path in home.rglob("*"))
    assert before
    assert spent_by(product(cache="off")).stats.benchmarked == 2
    with inductor_config.patch(force_disable_caches=True):
        assert spent_by(product()).stats.benchmarked == 2
        assert spent_by(product(cache="auto")).stats.benchmarked == 2
    assert sorted((path, path.stat().st_mtime_ns) for path in home.rglob("*")) == before
    assert not [r for r in caplog.records if "inductor-plugin" in r.getMessage()]
    assert spent_by(product()).stats.record_hits == 1


def test_options_that_are_older_than_a_patch_follow_it(home: Path) -> None:
    def call() -> Callable[..., Any]:
        return torch.compile(torch.mm, options=options)

    options = inductor_plugin.options()
    with inductor_config.patch(force_disable_caches=True):
        assert spent_by(call()).stats.benchmarked == 2
        options = inductor_plugin.options()
    assert not home.exists()
    assert spent_by(call()).stats.benchmarked == 2
    assert len(records(home)) == 1


def test_a_cache_that_is_named_is_used_all_the_same(home: Path, cache_dir: Path) -> None:
    with inductor_config.patch(force_disable_caches=True):
        for hits in (0, 1):
            assert spent_by(compiled(torch.mm, cache_dir)).stats.record_hits == hits
        assert len(records(cache_dir)) == 1
        assert not home.exists()
        assert spent_by(product(cache="on")).stats.benchmarked == 2
    assert len(records(home)) == 1


def test_the_usual_cache_is_used_where_it_is_named(home: Path) -> None:
    with inductor_config.patch(force_disable_caches=True):
        spent_by(product(cache_dir=str(default_cache_dir())))
    assert len(records(home)) == 1


def test_the_variable_of_a_cache_names_it(
    home: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(cache_dir))
    with inductor_config.patch(force_disable_caches=True):
        spent_by(product())
    assert len(records(cache_dir)) == 1
    assert not home.exists()


def test_inductor_s_cache_of_graphs_is_another_one(cache_dir: Path) -> None:
    for graphs, hits in ((True, 0), (False, 1)):
        with inductor_config.patch(fx_graph_cache=graphs):
            assert spent_by(compiled(torch.mm, cache_dir)).stats.record_hits == hits


@pytest.mark.parametrize("name", ["deterministic", "max_autotune"])
def test_where_nothing_may_be_timed_nothing_is(cache_dir: Path, name: str) -> None:
    if name == "deterministic" and not hasattr(inductor_config, name):
        pytest.skip("this torch has no such switch")
    options = {name: name == "deterministic"}
    assert spent_by(compiled(torch.mm, cache_dir, **options)).stats.problems == 0
    assert records(cache_dir) == []


@pytest.mark.skipif(torch_version() < (2, 13), reason="this torch's patches cannot be found")
def test_a_patch_around_the_compile_switches_tuning_off_for_as_long_as_it_lasts(
    cache_dir: Path,
) -> None:
    with inductor_config.patch(max_autotune=False):
        assert spent_by(compiled(torch.mm, cache_dir)).stats.problems == 0
    assert records(cache_dir) == []
    with inductor_config.patch(max_autotune=True):
        assert spent_by(compiled(torch.mm, cache_dir)).stats.problems == 1
    assert spent_by(compiled(torch.mm, cache_dir)).stats.record_hits == 1


def limits_of(cache_dir: Path, **options: Any) -> tuple[float, float]:
    """Return the time limits of compiling and measuring that a compile has."""
    tickets: list[TuningTicket] = []
    session.OBSERVERS.append(tickets.extend)
    try:
        spent_by(compiled(torch.mm, cache_dir, **options))
    finally:
        session.OBSERVERS.remove(tickets.extend)
    (ticket,) = tickets
    config = ticket.selection._config  # pyright: ignore[reportPrivateUsage]
    return config.compile_timeout_s, config.bench_timeout_s


def test_the_lower_time_limit_holds(cache_dir: Path) -> None:
    usual = (Config().compile_timeout_s, Config().bench_timeout_s)
    assert limits_of(cache_dir) == usual
    theirs = {
        "precompilation_timeout_seconds": 70,
        "max_autotune_subproc_result_timeout_seconds": 20.0,
    }
    known = {name: value for name, value in theirs.items() if hasattr(inductor_config, name)}
    expected = tuple(float(theirs[n]) if n in known else usual[i] for i, n in enumerate(theirs))
    assert limits_of(cache_dir, **known) == expected
    named = limits_of(cache_dir, **known, compile_timeout_s=usual[0], bench_timeout_s=25.0)
    assert named == (usual[0], 25.0)


def test_no_limit_of_inductor_s_is_no_limit() -> None:
    now = inductor_switches({"max_autotune_subproc_result_timeout_seconds": 0.0})
    assert as_switched(Config(), now).bench_timeout_s == Config().bench_timeout_s
