"""Artifacts get into the cache of the process that loads them; what is wrong with them costs one warning."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor_config
from torch.compiler._cache import CacheArtifactManager

import inductor_plugin
from inductor_plugin.cache import Record, open_store
from inductor_plugin.cache.transfer import parcel
from inductor_plugin.config import Config
from inductor_plugin.inductor.artifacts import artifact, entries
from inductor_plugin.ops.native import library
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.cache.records import (
    ENVIRONMENT,
    decision,
    kernel_key,
    measured,
    put_library,
    record,
)

pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def of_its_own() -> Iterator[None]:
    """Keep the artifacts of other tests apart."""
    artifact.register()
    RUNTIME.forget()
    with CacheArtifactManager.with_fresh_cache():
        yield
    inductor_plugin.disable()
    RUNTIME.forget()


@pytest.fixture
def known(tmp_path: Path) -> Record:
    """Return the record, and record a kernel, of a cache in another process."""
    store = open_store(tmp_path / "theirs")
    store.put_environment(ENVIRONMENT)
    stored = store.put_record(record(measured("a"), measured("b"), decision=decision("a")))
    entries.add_record(store, stored.environment, stored.op, stored.digest)
    kernel = put_library(store)
    artifact.add(f"kernel/{kernel.digest}", lambda: parcel.of_kernel(kernel))
    return stored


def saved() -> bytes:
    result = torch.compiler.save_cache_artifacts()
    assert result is not None
    return result[0]


def test_they_go_to_the_cache_of_the_environment_variables(
    known: Record, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(cache_dir))
    assert torch.compiler.load_cache_artifacts(saved()) is not None
    store = open_store(cache_dir)
    assert list(store.iter_records()) == [known]
    (entry,) = store.iter_kernels()
    assert entry.key == kernel_key()
    assert entry.taken is not None
    assert entry.taken.by == "artifacts"  # nobody has said --trust
    # The object that later compiles use, too.
    assert RUNTIME.store(Config.load()).kernel(kernel_key().digest) is not None


def test_the_library_of_call_sites_is_searched_again_after_kernels_were_loaded(
    known: Record, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be one of them; it was searched without success when the first call site was made."""
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(cache_dir))
    state = library._State()
    state.searched = 1000
    monkeypatch.setattr(library, "_STATE", state)
    torch.compiler.load_cache_artifacts(saved())
    assert state.searched == -1


def test_they_go_to_the_cache_of_enable(known: Record, cache_dir: Path, cache_home: Path) -> None:
    inductor_plugin.enable(cache_dir=str(cache_dir))
    torch.compiler.load_cache_artifacts(saved())
    assert list(open_store(cache_dir).iter_records()) == [known]
    inductor_plugin.disable()
    torch.compiler.load_cache_artifacts(saved())
    assert list(open_store(cache_home).iter_records()) == [known]


def test_a_record_that_is_there_is_merged(
    known: Record, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(cache_dir))
    open_store(cache_dir).put_record(record(measured("b", measured_at=9000.0), measured("c")))
    torch.compiler.load_cache_artifacts(saved())
    (merged,) = open_store(cache_dir).iter_records()
    assert set(merged.candidates) == {"a", "b", "c"}
    assert merged.candidates["b"].measured_at == 9000.0
    assert merged.decision == known.decision


def test_damage_is_one_warning_and_the_others_are_loaded(
    known: Record,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(cache_dir))
    artifact.add("kernel/damaged", lambda: b"x" * 100)
    artifact.add("kernel/cut", lambda: b"")
    artifact.add("kernel/too", lambda: b"x")
    assert torch.compiler.load_cache_artifacts(saved()) is not None
    assert list(open_store(cache_dir).iter_records()) == [known]
    (line,) = caplog.messages
    assert line.startswith(
        "inductor-plugin: kernel/damaged is not loaded from the artifacts: ArchiveError: "
    )


@pytest.mark.parametrize("what", ["refused", "no folder"])
def test_where_the_cache_cannot_be_written_they_are_kept_in_memory(
    what: str,
    known: Record,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if what == "refused":
        cache_dir.mkdir()
        cache_dir.chmod(0o777)
    else:
        cache_dir.write_text("a file")
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(cache_dir))
    assert torch.compiler.load_cache_artifacts(saved()) is not None
    store = RUNTIME.store(Config.load())
    assert list(store.iter_records()) == [known]
    assert store.kernel(kernel_key().digest) is not None
    assert len(caplog.messages) == 1


def test_a_wrong_variable_is_one_warning(
    known: Record, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("INDUCTOR_PLUGIN_POLICY", "17")
    assert torch.compiler.load_cache_artifacts(saved()) is not None
    (line,) = caplog.messages
    assert "OptionError: variable INDUCTOR_PLUGIN_POLICY is '17'" in line


@pytest.mark.parametrize("how", ["cache", "force_disable_caches", "enable"])
def test_nothing_is_written_where_caches_are_off(
    how: str, known: Record, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "cache":
        monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE", "off")
    if how == "enable":
        inductor_plugin.enable(cache="off")
    with inductor_config.patch(force_disable_caches=how == "force_disable_caches"):
        assert torch.compiler.load_cache_artifacts(saved()) is not None
    assert not cache_home.exists()
    unkept = RUNTIME.store(Config.load({"cache": "off"}))
    assert list(unkept.iter_records()) == []  # nor in memory
