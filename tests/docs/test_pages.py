"""The snippets of each page of docs/ do what the page says; `tests.support.pages` says what a snippet is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import pytest
from sybil.example import SybilFailure

from docs.pictures import VIEWS, WORDS, page_words
from docs.tables import TABLES
from inductor_plugin.cache import open_store
from inductor_plugin.cache.layout import Layout
from inductor_plugin.worker.farm.resource import resource_of
from inductor_plugin.worker.jobs import Status
from tests.support import pages
from tests.support.cache.records import kernel_key
from tests.support.remote.s3_server import s3_server
from tests.support.repository import REPOSITORY

SAMPLE = REPOSITORY / "tests" / "fixtures" / "old_cache" / "cache"
PAGES = sorted(path.name for path in pages.DOCS.glob("*.md"))
COMPILE = {"fleet.md", "index.md", "options.md", "own-device.md", "own-kernel.md", "ship.md", "slow-compile.md", "troubleshooting.md"}  # fmt: skip
"""Pages whose snippets compile models or load Inductor: each runs in a process of its own, which leaves nothing behind."""
LATE = "<!-- not run: it is late -->\n\n"
APART = "<!-- run apart: somewhere -->\n\n"
HOURS = "hundreds of products take nvcc hours; tests/aot/test_precompile.py compiles a few"
NOT_RUN: dict[str, list[str]] = {
    "README.md": [".ci/run runs both"],
    "fleet.md": [
        "the node that it starts goes on, until `ray stop` ends all of the machine; tests/worker/bench_farm has nodes of its own",
        "it needs a node with an H200; tests/aot/test_measure.py has one that says it is",
    ],
    "own-device.md": [HOURS],
    "own-kernel.md": [
        "tests/docs/test_own_kernel.py runs it in a fresh clone, before the rest of this page"
    ],
    "scale.md": ["an hour; tests/benchmarks/fleet compares small runs with the committed ones"],
    "ship.md": [HOURS],
}
"""Why snippets are not run, by page; those that run apart are in `tests/docs/test_apart.py`."""


@pytest.fixture(scope="session")
def inductor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one Inductor cache for all pages: its probes of the compiler take seconds, once."""
    return tmp_path_factory.mktemp("inductor-cache")


@pytest.mark.parametrize("page", sorted(set(PAGES) - COMPILE))
def test_what_a_page_shows_of_a_cache_is_what_verbs_say(
    page: str, tmp_path: Path, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_sample(cache_home.parent)
    if page == "trust.md":  # what it signs: the sample has records alone
        store = open_store(cache_home)
        store.put_kernel(kernel_key(), {"kernel.so": b"library"})
    monkeypatch.chdir(tmp_path)
    pages.run_page(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", *sorted(COMPILE - {"own-kernel.md"})])
def test_the_snippets_of_a_page_run_as_a_reader_would_run_them(
    page: str, tmp_path: Path, inductor_folder: Path
) -> None:
    given: tuple[str, ...] = ()
    if page in ("README.md", "troubleshooting.md"):  # of a reader who has a cache already
        put_sample(tmp_path / "home")
    if page == "README.md":
        given = ("--given", str(Path(__file__).with_name("readme_names.py")))
    variables = pages.shell(tmp_path / "home", inductor_folder)
    variables["PYTHONPATH"] = os.pathsep.join((str(pages.CALM), str(REPOSITORY)))
    with ExitStack() as stack:
        server = stack.enter_context(s3_server()) if page == "fleet.md" else None
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.pages", page, *given],
            cwd=tmp_path,
            env=variables | (server.environment if server else {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-5000:]
        assert server is None or server.objects()


def put_sample(home: Path) -> None:
    """Put the cache that is committed where a process with this XDG_CACHE_HOME looks for it."""
    cache = home / "inductor_plugin"
    shutil.copytree(SAMPLE, cache)
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    store = open_store(cache)
    for damage in store.verify():  # schema.json, which is not committed
        store.repair(damage)


def test_what_is_not_run_is_listed_with_its_reason() -> None:
    """A snippet without a reason is run, so that a new one either runs or has to be entered here."""
    not_run = {page: known for page in ("README.md", *PAGES) if (known := pages.reasons(page))}
    assert not_run == NOT_RUN


def test_what_a_page_imports_is_signed_or_trusted() -> None:
    for page in ("README.md", *PAGES):
        text = pages.page_file(page).read_text(encoding="utf-8")
        for block in re.findall(r"^```(?:sh|console)$\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            for before in re.findall(r"(.*?)inductor-plugin import [^\n]*\.pack", block, re.DOTALL):
                trusted = "import --trust" in block or "TRUSTED_KEYS" in before
                assert trusted, f"{page} takes a pack that nobody vouches for:\n{block}"


def test_the_page_has_the_files_of_the_example_word_by_word() -> None:
    text = (pages.DOCS / "own-kernel.md").read_text(encoding="utf-8")
    for name in ("my_kernels.py", "run.py"):
        content = (REPOSITORY / "examples" / "custom_template" / name).read_text(encoding="utf-8")
        assert f'```python title="{name}"\n{content}```\n' in text


def test_every_picture_is_on_a_page_with_words_for_those_who_do_not_see_it() -> None:
    named = {f"report-{name}.png" for name in VIEWS}
    assert {path.name for path in (pages.DOCS / "pictures").iterdir()} == {*named, WORDS.name}
    texts = [(pages.DOCS / page).read_text(encoding="utf-8") for page in PAGES]
    shown = dict(re.findall(r"!\[([^\]]+)\]\(pictures/([\w-]+\.png)\)", "".join(texts)))
    assert set(shown.values()) == named
    for words in shown:
        assert len(words.split()) > 15
        assert "CPU" in words or "Invented" in words


def test_the_pictures_show_the_page_as_it_is() -> None:
    """Its titles, heads and sentences; a colour or a distance is no reason for new pictures."""
    words = page_words()
    assert all(len(texts) > 0 for texts in words.values())
    assert {"Problem", "Runs", "Gain", "Candidates"} <= set(words["problemsSection"])
    pictured = json.loads(WORDS.read_text(encoding="utf-8"))
    assert pictured == words, "`python -m docs.pictures` takes the pictures again: look at them"


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
    assert sum(len(re.findall("8 ?<", text)) for text in texts) == len(files) == 9
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []


def test_a_word_that_the_glossary_marks_has_an_entry() -> None:
    text = (pages.DOCS / "glossary.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    entries = {word.casefold() for head in heads for word in re.split(", | and | or ", head)}
    marked = re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", text.partition("\n## ")[2])
    assert len(marked) > 20
    assert {word.casefold().removesuffix("s") for word in marked} <= entries


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
    assert len(paths) == 12
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
        "```sh\nfalse\ntrue\n```\n": "ended with status 1",
        f"{LATE}```sh\ninductor-plugin ls --colour\n```\n": "unrecognized arguments: --colour",
        f"{LATE}```console\n$ inductor-plugin look\n```\n": "there is no verb 'look'",
        f"{LATE}```sh\nINDUCTOR_PLUGIN_TUNE_BUDGET=1 python x.py\n```\n": "no option has the variable",
        f'{LATE}```sh\npip install "inductor-plugin[gpu]"\n```\n': "there is no extra 'gpu'",
        f"{LATE}```sh\npip install .[s3,gpu]\n```\n": "there is no extra 'gpu'",
        f"{LATE}```sh\npip install inductor-plugins\n```\n": "the package is 'inductor-plugin'",
        f"{LATE}```sh\nmake test nothing\n```\n": "make has no target 'nothing'",
        f"{APART}```sh\ninductor-plugin ls --colour\n```\n": "unrecognized arguments: --colour",
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


def test_a_snippet_is_left_out_with_a_reason_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"{LATE}```sh\nfalse\n```\n")
    assert pages.run_page("page.md") == 1
    assert pages.reasons("page.md") == ["it is late"]
    for comment in ("", "<!-- not run: -->\n", f"{LATE}It is late.\n\n"):
        page.write_text(f"{comment}```sh\nfalse\n```\n")
        with pytest.raises(SybilFailure, match="ended with status 1"):
            pages.run_page("page.md")


def test_a_snippet_that_runs_apart_is_left_to_its_scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    text = f"{APART}```sh\nfalse\n```\n\n{LATE}```sh\nfalse\n```\n\n```sh\ntrue\n```\n"
    (tmp_path / "page.md").write_text(text)
    assert pages.run_page("page.md") == 3
    assert pages.apart("page.md") == [("somewhere", "false\n")]
    assert pages.reasons("page.md") == ["it is late"]


def test_all_pages_install_the_package_in_the_same_way() -> None:
    """`tests/docs/test_own_kernel.py` follows the line of its page in a fresh clone."""
    for page in ("README.md", "index.md", "own-kernel.md"):
        assert pages.first_installation(pages.page_file(page)) == ["pip", "install", "."]


def test_a_node_is_started_with_the_resource_by_which_it_is_known() -> None:
    text = (pages.DOCS / "fleet.md").read_text(encoding="utf-8")
    (resources,) = re.findall(r"^ray start [^\n]*--resources='([^']+)'", text, re.MULTILINE)
    assert json.loads(resources) == {resource_of("NVIDIA H200"): 8}


def test_each_snippet_of_a_page_with_given_names_begins_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    given = tmp_path / "given.py"
    given.write_text("x = 1\n")
    (tmp_path / "page.md").write_text(
        "```python\nx += 1\nassert x == 2\n```\n\n```python\nassert x == 1\n```\n"
    )
    assert pages.run_page("page.md", given) == 2


def test_python_in_reports_for_other_projects_is_python() -> None:
    """Those need a fault of torch, and are not run."""
    blocks = [
        block
        for file in sorted((pages.DOCS / "upstream").glob("*.md"))
        for block in re.findall(
            r"^```python\n(.*?)^```$", file.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
    ]
    assert blocks
    for block in blocks:
        compile(block, "report", "exec")
