from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cli import main
from inductor_plugin.cli.output import versions
from inductor_plugin.version import __version__

NVCC = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Cuda compilation tools, release 13.0, V13.0.88
Build cuda_13.0.r13.0/compiler.36424714_0"""
GCC = """g++ (Debian 12.2.0-14+deb12u1) 12.2.0
Copyright (C) 2022 Free Software Foundation, Inc."""
CLANG = """Debian clang version 14.0.6
Target: x86_64-pc-linux-gnu"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a short-named folder that is all of the search path."""
    folder = tmp_path / "b"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(versions, "_PATH", len(str(folder)) + 10)
    return folder


def tool(file: Path, *lines: str) -> None:
    """Write a script of a shell."""
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o755)


def saying(text: str) -> str:
    """Return the line of a script that prints a text if it is asked for the version, and fails otherwise."""
    return f"[ \"$*\" = --version ] && echo '{text}' || exit 9"


def rows() -> dict[str, str]:
    """Return what is said, by the name before the colon."""
    lines = versions.versions_text().splitlines()[1:]
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def test_the_version_names_torch_and_the_tools(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"inductor-plugin {__version__}"
    rows = {name.strip(): text.strip() for name, _, text in (o.partition(":") for o in others)}
    assert rows["torch"] == version("torch")
    assert rows["Python"] == sys.version.split()[0]
    assert rows.keys() >= {"Triton", "CUTLASS", "nvcc wheel"}


@pytest.mark.parametrize("words", [("--version", "--json"), ("--json", "--version")])
def test_versions_are_text_and_no_json(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert (said.out, "--version is text; leave out --json" in said.err) == ("", True)


def test_compilers_say_their_versions_and_short_paths(tools: Path) -> None:
    for name, text in (("nvcc", NVCC), ("g++", GCC), ("clang++", CLANG)):
        tool(tools / name, saying(text))
    assert rows()["nvcc"] == f"13.0.88 ({tools}/nvcc)"
    assert rows()["g++"] == f"12.2.0 ({tools}/g++)"
    assert rows()["clang++"] == f"14.0.6 ({tools}/clang++)"


def test_a_long_path_is_left_out_and_a_missing_tool_too(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tools / "g++", saying(GCC))
    monkeypatch.setattr(versions, "_PATH", 5)
    assert rows()["g++"] == "12.2.0"
    assert rows().keys().isdisjoint({"nvcc", "clang++"})


def test_a_tool_that_fails_says_so(tools: Path) -> None:
    tool(tools / "nvcc", "exit 3")
    tool(tools / "g++", "echo hello")
    (tools / "clang++").write_text("#!/nothing/here\n")
    (tools / "clang++").chmod(0o755)
    assert rows()["nvcc"] == f"--version ends with status 3 ({tools}/nvcc)"
    assert rows()["g++"] == f"says no version ({tools}/g++)"
    assert re.fullmatch(r"cannot be run: .+ \(.+/clang\+\+\)", rows()["clang++"])


def test_a_tool_that_hangs_is_not_waited_for(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions._ANSWER_S == 2.0  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(versions, "_ANSWER_S", 0.2)
    tool(tools / "nvcc", "exec /bin/sleep 60")
    began = time.monotonic()
    assert rows()["nvcc"] == f"no answer in 0.2 s ({tools}/nvcc)"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"digest": {"gitCommit": "c0ffee"}}, ["commit:     c0ffee"]),
        ({"digest": {"gitCommit": "c0ffee"}, "annotations": {"x": False}}, ["commit:     c0ffee"]),
        ({"digest": {"gitCommit": "c0ffee"}, "annotations": {"x": True}}, ["commit:     c0ffee, changed"]),
        (None, []),
        ({"digest": {}}, []),
    ],
)  # fmt: skip
def test_the_version_names_the_commit_if_the_wheel_does(
    source: Any, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "inductor_plugin-0.2.0.dist-info"
    (info / "provenance").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: inductor-plugin\nVersion: 0.2.0\n")
    definition = {} if source is None else {"resolvedDependencies": [source]}
    stated = {"predicate": {"buildDefinition": definition}}
    (info / "provenance" / "inductor-plugin.intoto.json").write_text(json.dumps(stated))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    lines = versions.versions_text().splitlines()
    assert [line for line in lines if line.startswith("commit")] == said


def test_the_version_imports_none_of_them() -> None:
    program = (
        "import sys\nfrom inductor_plugin.cli import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'triton', 'cutlass'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
