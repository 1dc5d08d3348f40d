"""The verbs that fill a remote and a cache from one another, and what ``stats`` says of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cli import main
from tests.support.cache.records import (
    ENVIRONMENT,
    decision,
    kernel_key,
    measured,
    put_library,
    record,
)
from tests.support.cli.committed import hold
from tests.support.cli.schemas import follow


def fill(path: Path, *, kernel: bool = False) -> None:
    """Make a cache of two records, one with a compiled winner, and one refusal."""
    store = open_store(path)
    store.put_environment(ENVIRONMENT)
    digest = put_library(store).digest if kernel else None
    store.put_record(record(measured("a", kernel=digest), decision=decision("a"), pinned=True))
    store.put_record(record(measured("b"), problem=2, op="bmm"))
    store.put_record(record(measured("c", None, status="skipped"), problem=3))


def run(*arguments: str | Path) -> int:
    return main([str(each) for each in arguments])


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/shared"


def test_a_cache_goes_to_a_remote_and_into_another_cache(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "here")
    assert run("push", url, "--cache-dir", tmp_path / "here", "--json") == 0
    first = said(capsys)
    follow("push", first)
    assert (first["records"], first["changed"], first["failed"]) == (2, 2, 0)
    assert run("push", url, "--cache-dir", tmp_path / "here") == 0
    assert "2 records, 0 written, 2 known there" in capsys.readouterr().out
    assert run("pull", url, "--cache-dir", tmp_path / "there") == 0
    text = capsys.readouterr().out
    assert "new cache at" in text
    assert "2 records, 2 new or changed here" in text
    store = open_store(tmp_path / "there")
    assert {r.op for r in store.iter_records()} == {"mm", "bmm"}
    assert not any(r.pinned for r in store.iter_records())
    assert store.environment(record().environment) == ENVIRONMENT
    assert store.verify() == []


def test_a_part_is_chosen_by_operator_and_environment(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "here")
    assert run("push", url, "--op", "bmm", "--cache-dir", tmp_path / "here", "--json") == 0
    assert said(capsys)["records"] == 1
    run("push", url, "--cache-dir", tmp_path / "here")
    capsys.readouterr()
    there = tmp_path / "there"
    assert run("pull", url, "--environment", "zz", "--cache-dir", there, "--json") == 0
    assert said(capsys)["records"] == 0
    assert run("pull", url, "--op", "mm", "--cache-dir", there, "--json") == 0
    taken = said(capsys)
    follow("pull", taken)
    assert taken["records"] == 1


def test_kernels_go_along_only_if_they_are_asked_for(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "here", kernel=True)
    run("push", url, "--kernels", "--cache-dir", tmp_path / "here")
    run("pull", url, "--cache-dir", tmp_path / "there")
    assert open_store(tmp_path / "there").kernel(kernel_key().digest) is None
    capsys.readouterr()
    assert run("pull", url, "--kernels", "--cache-dir", tmp_path / "there") == 1
    refused = capsys.readouterr().out
    assert "1 kernels were refused" in refused
    assert "--trust" in refused
    assert run("pull", url, "--kernels", "--trust", "--cache-dir", tmp_path / "there") == 0
    assert "1 kernels" in capsys.readouterr().out
    assert open_store(tmp_path / "there").kernel(kernel_key().digest) is not None


def test_damaged_objects_are_named_and_the_rest_is_taken_over(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "here")
    run("push", url, "--cache-dir", tmp_path / "here")
    edition = next((tmp_path / "shared").glob("v1/*/records/bmm/*/0000.json"))
    edition.write_bytes(edition.read_bytes()[:-5] + b"\x1b[31m")
    capsys.readouterr()
    assert run("pull", url, "--cache-dir", tmp_path / "there") == 1
    text = capsys.readouterr().out
    assert "1 records failed" in text
    assert "\x1b" not in text
    assert [r.op for r in open_store(tmp_path / "there").iter_records()] == ["mm"]


def test_records_that_are_full_are_said(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "here")
    monkeypatch.setattr("inductor_plugin.cache.remote.exchange.MAX_BYTES", 100)
    assert run("push", url, "--cache-dir", tmp_path / "here") == 0
    assert "2 records are full there: what is new in them stays here" in capsys.readouterr().out


def test_stats_tells_hits_bytes_and_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "here")
    store = open_store(tmp_path / "here")
    store.add_counts(remote_asked=4, remote_hits=3, remote_bytes_read=2048, remote_saved_ms=61_500)
    assert run("stats", "--cache-dir", tmp_path / "here") == 0
    text = capsys.readouterr().out
    assert "Remote:     hits 3 of 4 (75.0%), 0 kernels, 2.0 kB read" in text
    assert "61.5 s of compiling and measuring saved" in text
    assert run("stats", "--cache-dir", tmp_path / "here", "--json") == 0
    fields = said(capsys)
    hold("stats", fields)
    assert fields["remote_saved_ms"] == 61_500


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["pull"], "no remote is named"),
        (["pull", "s3:/x"], "use a URL such as"),
        (["pull", "nfs3://x"], "fsspec knows no nfs3://"),
        (["push", "memory://x"], "there is no cache"),
    ],
)
def test_what_cannot_be_done_says_why(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--cache-dir", tmp_path / "none") == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_missing_package_is_named_with_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert run("pull", "gs://bucket", "--cache-dir", tmp_path / "none") == 2
    assert 'pip install "inductor-plugin[gcs]"' in capsys.readouterr().err
