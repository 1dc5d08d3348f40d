"""torch's lists of artifacts have the plugin's entries, which are read when artifacts are saved."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.compiler._cache import CacheArtifactManager

from inductor_plugin.inductor.artifacts import artifact, loading
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.compat

Taken = dict[str, bytes]


@pytest.fixture(autouse=True)
def of_its_own() -> Iterator[None]:
    """Keep the artifacts of other tests apart."""
    artifact.register()
    with CacheArtifactManager.with_fresh_cache():
        yield


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """Return what is put into the cache, by key."""
    entries: Taken = {}

    def take(key: str, data: bytes, config: object, *, is_record: bool) -> None:
        entries[key] = data

    monkeypatch.setattr(loading, "take", take)
    return entries


def saved() -> tuple[bytes, list[str]]:
    """Return the saved artifacts, and the keys of the plugin's."""
    result = torch.compiler.save_cache_artifacts()
    assert result is not None
    data, info = result
    return data, info.artifacts[artifact.TYPE]


def load(data: bytes) -> None:
    assert torch.compiler.load_cache_artifacts(data) is not None


def test_an_entry_is_read_when_artifacts_are_saved(taken: Taken) -> None:
    reads: list[str] = []

    def read() -> bytes:
        reads.append("read")
        return b"content"

    artifact.add("kernel/a", read)
    assert reads == []
    data, keys = saved()
    assert (reads, keys) == (["read"], ["kernel/a"])
    load(data)
    assert (reads, taken) == (["read"], {"kernel/a": b"content"})


def test_an_entry_is_recorded_once(taken: Taken) -> None:
    for content in (b"first", b"second"):
        artifact.add("kernel/a", lambda content=content: content)
    artifact.add("kernel/b", lambda: b"other")
    data, keys = saved()
    assert keys == ["kernel/a", "kernel/b"]
    load(data)
    assert taken == {"kernel/a": b"first", "kernel/b": b"other"}


def test_an_entry_that_is_gone_by_then_costs_nobody_anything(
    taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    artifact.add("kernel/gone", lambda: None)
    artifact.add("kernel/b", lambda: b"other")
    data, keys = saved()
    assert keys == ["kernel/gone", "kernel/b"]
    load(data)
    assert taken == {"kernel/b": b"other"}
    assert caplog.text == ""


def test_an_entry_that_cannot_be_read_is_one_warning(
    taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> bytes:
        raise OSError("the disk is gone")

    artifact.add("kernel/a", broken)
    artifact.add("kernel/b", broken)
    artifact.add("kernel/c", lambda: b"other")
    load(saved()[0])
    assert taken == {"kernel/c": b"other"}
    (line,) = caplog.messages
    assert line == (
        "inductor-plugin: kernel/a is not among the saved artifacts: OSError: the disk is gone"
    )


def test_recording_takes_microseconds() -> None:
    costs_us: list[float] = []
    for turn in range(5):
        start = time.perf_counter()
        for number in range(200):
            artifact.add(f"record/{turn}/{number}", bytes)
        costs_us.append((time.perf_counter() - start) * 1e6 / 200)
    assert min(costs_us) < 50  # 2 us on an idle core


def test_a_key_is_compared_and_not_its_content() -> None:
    def unread() -> bytes:
        pytest.fail("it is read")

    make: Any = artifact.EntryArtifact
    first, same, other = make("a", unread), make("a", unread), make("b", unread)
    assert first == same
    assert first != other
    assert len({first, same, other}) == 2
    assert "a" in repr(first)


LOAD = """
import sys, torch
{before}
info = torch.compiler.load_cache_artifacts(open(sys.argv[1], "rb").read())
print(info and info.artifacts["inductor_plugin"])
"""


@pytest.mark.parametrize(
    ("before", "autoload"),
    [("", "1"), ("import inductor_plugin.backend", "0")],
    ids=["installed", "imported"],
)
def test_a_new_process_knows_the_type(before: str, autoload: str, tmp_path: Path) -> None:
    """Where it is installed nothing has to be imported; it is known before anything is compiled."""
    artifact.add("kernel/gone", lambda: None)
    file = tmp_path / "artifacts"
    file.write_bytes(saved()[0])
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(before=before), str(file)],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload},
        timeout=300,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['kernel/gone']"
