"""The snippets of each page of docs/ do what the page says; `tests.support.pages` says what a snippet is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from sybil.example import SybilFailure

from docs.tables import TABLES
from inductor_plugin.cache.layout import Layout
from inductor_plugin.worker.jobs import Status
from tests.support import pages
from tests.support.repository import REPOSITORY

SAMPLE = REPOSITORY / "tests" / "fixtures" / "old_cache" / "cache"
PAGES = sorted(path.name for path in pages.DOCS.glob("*.md"))
COMPILE = {"fleet.md", "index.md", "options.md", "own-device.md", "own-kernel.md", "ship.md", "slow-compile.md", "troubleshooting.md"}  # fmt: skip
"""Pages whose snippets compile models or load Inductor: each runs in a process of its own, which leaves nothing behind."""


@pytest.fixture(scope="session")
def inductor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one Inductor cache for all pages: its probes of the compiler take seconds, once."""
    return tmp_path_factory.mktemp("inductor-cache")


@pytest.mark.parametrize("page", sorted(set(PAGES) - COMPILE))
def test_what_a_page_shows_of_a_cache_is_what_verbs_say(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "xdg-cache" / "inductor_plugin"
    shutil.copytree(SAMPLE, cache)
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    monkeypatch.chdir(tmp_path)
    pages.run_page(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(COMPILE - {"own-kernel.md"}))
def test_the_snippets_of_a_page_run_as_a_reader_would_run_them(
    page: str, tmp_path: Path, inductor_folder: Path
) -> None:
    done = run_in_process(page, REPOSITORY, tmp_path, inductor_folder)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]


@pytest.mark.slow
def test_bring_your_own_kernel_works_word_by_word_in_a_fresh_clone(
    tmp_path: Path, inductor_folder: Path
) -> None:
    clone, folder = tmp_path / "clone", tmp_path / "empty"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    folder.mkdir()
    where = "import inductor_plugin; print(inductor_plugin.__file__)"
    done = run_in_process("own-kernel.md", clone, folder, inductor_folder)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert {path.name for path in folder.glob("*.py")} == {"my_kernels.py", "run.py"}
    imported = subprocess.run(
        [sys.executable, "-c", where],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(clone)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert Path(imported.stdout.strip()).is_relative_to(clone)


def run_in_process(
    page: str, checkout: Path, folder: Path, inductor_folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a page of a checkout in a folder, with its package and an empty cache."""
    variables = pages.shell(folder / "home", inductor_folder)
    variables["PYTHONPATH"] = os.pathsep.join((str(pages.CALM), str(checkout)))
    return subprocess.run(
        [sys.executable, "-m", "tests.support.pages", page],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def test_the_template_of_the_page_is_short_and_uses_the_public_modules_alone(
    repository: Path,
) -> None:
    text = (repository / "examples" / "custom_template" / "my_kernels.py").read_text()
    assert len(text.splitlines()) < 60
    modules = set(re.findall(r"^(?:from|import) (inductor_plugin[\w.]*)", text, re.MULTILINE))
    assert modules == {"inductor_plugin", "inductor_plugin.template"}


def test_what_a_page_includes_is_a_file_of_the_repository() -> None:
    texts = [(pages.DOCS / page).read_text(encoding="utf-8") for page in PAGES]
    files = [file for text in texts for file in pages.INCLUDED.findall(text)]
    assert sum(len(re.findall("8 ?<", text)) for text in texts) == len(files) == 11
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []


def test_the_quick_start_fits_a_screen() -> None:
    text = (pages.DOCS / "index.md").read_text(encoding="utf-8")
    section = text.partition("## Quick start\n")[2].partition("\n## ")[0]
    assert 20 < len(section.splitlines()) < 45


def test_every_generated_part_is_on_a_page_and_every_marker_has_a_part() -> None:
    texts = [(pages.DOCS / page).read_text(encoding="utf-8") for page in PAGES]
    markers = [name for text in texts for name in re.findall(r"<!-- generated: (.+?) -->", text)]
    assert sorted(set(markers)) == sorted(TABLES)


def test_every_path_of_a_cache_is_in_the_tree_of_the_page() -> None:
    text = (pages.DOCS / "cache.md").read_text(encoding="utf-8")
    paths = [
        getattr(Layout(Path()), name) for name, value in vars(Layout).items() if isinstance(value, property)
    ]  # fmt: skip
    assert len(paths) == 11
    assert [path for path in paths if str(path) not in text] == []


def test_every_status_of_a_candidate_is_explained() -> None:
    text = (pages.DOCS / "explain.md").read_text(encoding="utf-8")
    assert [status for status in get_args(Status) if f"`{status}`" not in text] == []


def test_a_snippet_that_does_something_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    cases = {
        '```python\nprint(1)\n```\n\n```text title="prints"\n2\n```\n': "2",
        "```console\n$ echo one\ntwo\n```\n": "two",
        "```console\n$ false\n```\n": "ended with status 1",
        "```sh\ninductor-plugin ls --colour\n```\n": "unrecognized arguments: --colour",
        "```sh\nINDUCTOR_PLUGIN_TUNE_BUDGET=1 python x.py\n```\n": "no option has the variable",
        '```sh\npip install "inductor-plugin[gpu]"\n```\n': "there is no extra 'gpu'",
    }
    for text, failure in cases.items():
        (tmp_path / "page.md").write_text(text)
        with pytest.raises(SybilFailure, match=failure):
            pages.run_page("page.md")


def test_a_snippet_in_which_anything_may_stand_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.chdir(tmp_path)
    text = '```text title="note.txt"\nhello\n```\n\n```console\n$ cat note.txt \\\n> note.txt\nhel...\n```\n'
    (tmp_path / "page.md").write_text(text)
    assert pages.run_page("page.md") == 2
    assert (tmp_path / "note.txt").read_text() == "hello\n"
