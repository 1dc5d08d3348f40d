"""Each example of examples/ runs in a process of its own, with empty caches, and says what its reader is promised."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import pages
from tests.support.repository import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
SAID: Mapping[str, Mapping[Sequence[str], Sequence[str]]] = {
    "aot_inductor.py": {(): ("package of ... KiB\n2 products, ...",)},
    "huggingface_decoder.py": {
        (): ("decided:\n  ...: ... (...)\n...", "...the same tokens as eager: True")
    },
    "pinned_deployment.py": {
        ("record", "pins.json"): ("tuned 4 products, wrote pins.json",),
        ("serve", "pins.json"): (
            "batch of 1: (1, 48)\nbatch of 16: (16, 48)\n0 candidates measured\nbatch of 24: ...",
        ),
    },
    "training.py": {
        (): ("attention: ...", "...attention_backward: ...", "...step 29: loss ..."),
    },
}
"""By example and arguments, in the order in which they run: what it prints; ``...`` matches anything."""


@pytest.fixture(scope="module")
def inductor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one Inductor cache for all examples: its probes of the compiler take seconds, once."""
    return tmp_path_factory.mktemp("inductor-cache")


@pytest.fixture
def variables(tmp_path: Path, inductor_folder: Path) -> dict[str, str]:
    """Return the variables of a process with an empty cache of the plugin."""
    return pages.shell(tmp_path / "home", inductor_folder)


def test_every_example_is_run() -> None:
    # The other is run as its page says: tests/docs/test_apart.py.
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SAID, "vision.py"}
    assert {path.name for path in EXAMPLES.iterdir()} - {*SAID, "vision.py"} <= {
        "__pycache__",
        "custom_device",  # tests/end_to_end/test_own_device.py
        "custom_template",  # tests/docs/test_pages.py
        "notebook.ipynb",
    }


def test_what_a_package_of_an_example_needs_is_in_the_environment() -> None:
    own = pages.page_file("pyproject.toml").read_text(encoding="utf-8")
    declared = set(re.findall(r'"([\w-]+)[^"\n]*"', own))
    files = list(EXAMPLES.glob("*/pyproject.toml"))
    for file in files:
        (line,) = re.findall(r"^dependencies = \[(.*)\]$", file.read_text("utf-8"), re.MULTILINE)
        assert {word.strip(' "') for word in line.split(",")} <= declared
    assert files


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAID))
def test_an_example_runs_and_prints_what_it_promises(
    name: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    for arguments, said in SAID[name].items():
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name), *arguments],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        for expected in said:
            assert pages.difference(f"{expected}...", done.stdout) is None, done.stdout


@pytest.mark.slow
def test_the_notebook_runs_and_shows_every_candidate(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    notebook = tmp_path / "notebook.ipynb"
    shutil.copy(EXAMPLES / notebook.name, notebook)
    assert [cell for cell in cells(notebook) if cell.get("outputs")] == []  # committed without any
    limits = ("--timeout=600", "--startup_timeout=300")
    done = subprocess.run(
        ["jupyter-execute", "--inplace", *limits, str(notebook)],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shown = {cell["id"]: cell["outputs"] for cell in cells(notebook) if "outputs" in cell}
    assert shown["compile"][-1]["data"]["text/plain"] == ["2"]
    rows = "".join(shown["table"][-1]["data"]["text/markdown"]).splitlines()[2:]
    assert len(rows) >= 2
    assert all("| ok |" in row for row in rows)
    assert "<html" in (tmp_path / "tuning.html").read_text(encoding="utf-8")


def test_the_notebook_leaves_out_a_problem_that_was_not_decided(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (source,) = (
        "".join(cell["source"])
        for cell in cells(EXAMPLES / "notebook.ipynb")
        if cell["id"] == "list"
    )
    problem = SimpleNamespace(describe=lambda: "mm")
    verdict = SimpleNamespace(winner="a", reason="2x faster")
    tickets = [SimpleNamespace(problem=problem, verdict=each) for each in (None, verdict)]
    exec(source, {"decided": tickets})
    assert capsys.readouterr().out.split() == ["mm", "->", "a", "2x", "faster"]


def cells(notebook: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook."""
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]
