"""The commit in bill and provenance of the package's wheel, from a checkout and from an sdist; none where it is not known."""

from __future__ import annotations

import email
import importlib.util
import json
import shutil
import subprocess
import tarfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tests.support.distribution import (
    EPOCH,
    build,
    check_bill,
    check_provenance,
    copy_sources,
    provenance_of,
)
from tests.support.repository import REPOSITORY

METADATA = "Name: a\nVersion: 1\nSummary: s\nLicense-Expression: MIT\nRequires-Dist: torch>=2.11\n"
CHANGED = "inductor-plugin:changed-since-commit"


@pytest.fixture(scope="module")
def attestation() -> Any:
    """Return the module of the build, loaded by its path, as setuptools loads it."""
    file = REPOSITORY / "release" / "attestation.py"
    spec = importlib.util.spec_from_file_location("release.attestation", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e")
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def committed(folder: Path) -> str:
    """Make a folder a checkout of git, and return its commit."""
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x", "--date", "2020-01-01T00:00:00Z")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_sources(tmp_path_factory.mktemp("checkout"))
    committed(folder)
    return folder


@pytest.fixture(scope="module")
def unpacked(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an sdist of the checkout."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(checkout, "build_sdist")) as archive:
        archive.extractall(folder, filter="data")
    (inner,) = folder.iterdir()
    return inner


def sources_in(wheel: Path) -> list[dict[str, Any]]:
    return check_provenance(wheel)["buildDefinition"]["resolvedDependencies"]


def of_commit(commit: str, *, changed: bool) -> list[dict[str, Any]]:
    return [{"name": "source", "digest": {"gitCommit": commit}, "annotations": {CHANGED: changed}}]


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    return build(checkout)


def test_a_wheel_of_a_checkout_names_its_commit(checkout: Path, wheel: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert sources_in(wheel) == of_commit(commit, changed=False)
    details = check_provenance(wheel)["runDetails"]
    assert details["metadata"] == {"startedOn": "2023-11-14T22:13:20Z"}
    assert details["builder"]["version"].keys() == {"setuptools", "python"}


def test_a_wheel_of_the_same_sources_has_the_same_bytes(
    checkout: Path, wheel: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(checkout, again, ignore=shutil.ignore_patterns("dist"))
    shutil.rmtree(again / "build")
    assert build(again).read_bytes() == wheel.read_bytes()


def test_a_wheel_of_an_sdist_names_the_commit_of_the_sdist(checkout: Path, unpacked: Path) -> None:
    assert not (unpacked / ".git").exists()
    commit = git(checkout, "rev-parse", "HEAD")
    assert sources_in(build(unpacked)) == of_commit(commit, changed=False)


def test_an_sdist_that_was_changed_says_so(
    attestation: Any, unpacked: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(unpacked, copy)
    as_written = attestation.source(copy)
    assert as_written.changed is False
    (copy / "cache" / "added.py").touch()
    assert attestation.source(copy) == as_written._replace(changed=True)
    (copy / "cache" / "added.py").unlink()
    assert attestation.source(copy) == as_written
    (copy / "README.md").write_text("another", encoding="utf-8")
    assert attestation.source(copy) == as_written._replace(changed=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"commit": "a", "changed": false}'])
def test_an_sdist_whose_commit_cannot_be_read_has_none(
    text: str, attestation: Any, tmp_path: Path
) -> None:
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "source.json").write_text(text, encoding="utf-8")
    assert attestation.source(tmp_path) == attestation.Source()


def test_metadata_alone_has_no_provenance(unpacked: Path) -> None:
    """An installer asks for it before the wheel is there; the wheel then has both."""
    info = build(unpacked, "prepare_metadata_for_build_wheel")
    assert (info / "sboms").is_dir()
    assert not (info / "provenance").exists()


def test_bill_and_provenance_say_of_a_checkout_what_git_says(
    attestation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    (tmp_path / "x").write_text("x")
    commit = committed(tmp_path)
    known = attestation.source(tmp_path)
    seconds = int(git(tmp_path, "show", "-s", "--format=%ct"))
    assert known == attestation.Source(commit, False, seconds)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    assert attestation.source(tmp_path) == known._replace(epoch=int(EPOCH))
    (tmp_path / "x").write_text("y")
    changed = attestation.source(tmp_path)
    assert changed == attestation.Source(commit, True, int(EPOCH))
    metadata = email.message_from_string(METADATA)
    bill = attestation.bill(metadata, changed)
    component = bill["metadata"]["component"]
    assert component["pedigree"]["commits"] == [{"uid": commit}]
    assert component["properties"] == [{"name": CHANGED, "value": "true"}]
    check_bill(json.dumps(bill))
    assert attestation.bill(metadata, changed) == bill
    stated = definition(attestation, tmp_path, metadata, changed)
    assert stated["resolvedDependencies"] == of_commit(commit, changed=True)


def test_a_hook_of_another_repository_does_not_lend_its_commit(
    attestation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "x").write_text(folder.name)
    commit, others = committed(own), committed(other)
    assert commit != others
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    known = attestation.source(own)
    assert (known.commit, known.changed) == (commit, False)
    monkeypatch.setenv("GIT_WORK_TREE", str(own))  # an index that lacks the files of this tree
    assert attestation.source(own) == known


def definition(attestation: Any, folder: Path, metadata: Message, known: Any) -> dict[str, Any]:
    return attestation.statement(folder, metadata, known)["predicate"]["buildDefinition"]


def test_nothing_is_invented_where_git_does_not_answer(
    attestation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    metadata = email.message_from_string(METADATA)
    (tmp_path / ".git").write_text("gitdir: nowhere")
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert attestation.source(folder) == attestation.Source()
    stated = attestation.statement(tmp_path, metadata, attestation.Source())["predicate"]
    assert "resolvedDependencies" not in stated["buildDefinition"]
    assert "metadata" not in stated["runDetails"]
    half = attestation.Source("c" * 40)
    (tree,) = definition(attestation, tmp_path, metadata, half)["resolvedDependencies"]
    assert tree == {"name": "source", "digest": {"gitCommit": "c" * 40}}


def test_the_provenance_is_beside_the_bill_and_not_in_its_folder(wheel: Path) -> None:
    name, _, files = provenance_of(wheel)
    info = name.partition("/")[0]
    assert name == f"{info}/provenance/inductor-plugin.intoto.json"
    assert f"{info}/sboms/inductor-plugin.cdx.json" in files
    assert f"{info}/WHEEL" in files
