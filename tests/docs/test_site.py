"""`make site`: the pages ask for nothing from a network, and a broken internal link, anchor or generated part ends the build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import pages
from tests.support.repository import REPOSITORY

SOURCES = ("mkdocs.yml", "ARCHITECTURE.md", "CHANGELOG.md")
LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]* src=\"?(https?:)?//|<link[^>]* href=\"?(https?:)?//")  # fmt: skip

LINK = r'<(?:a|link|script)[^>]* (?:href|src)="?([^" >]+)'


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with the sources of the site."""
    for name in SOURCES:
        shutil.copy(REPOSITORY / name, tmp_path / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs", ignore=ignored)
    return tmp_path


def build(folder: Path, site_url: str = "") -> subprocess.CompletedProcess[str]:
    """Build a copy as `make site` does; what it includes and reads from code is this checkout's."""
    command = ["-m", "mkdocs", "build", "--strict", "-f", str(folder / "mkdocs.yml")]
    return subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env={**pages.environment(), "NO_MKDOCS_2_WARNING": "1", "SITE_URL": site_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_site_is_built_and_loads_nothing_from_another_host(copy: Path) -> None:
    done = build(copy)
    assert done.returncode == 0, done.stderr
    built = {path.name: path.read_text() for path in (copy / "build/site").glob("*.html")}
    assert {"index.html", "verbs.html", "trust.html", "architecture.html"} <= set(built)
    assert [name for name, text in built.items() if LOADED.search(text)] == []
    assert "<!-- generated" not in "".join(built.values())
    assert "verify_graph_share" in built["options.html"]
    assert "[].rejected_speedup" in built["verbs.html"]


@pytest.mark.parametrize(
    ("site_url", "start"), [("", r"\."), ("https://example.org/below/", "/below/")]
)
def test_the_page_for_wrong_addresses_leads_to_the_site_wherever_that_is(
    site_url: str, start: str, copy: Path
) -> None:
    done = build(copy, site_url)
    assert done.returncode == 0, done.stderr
    page = (copy / "build/site/404.html").read_text()
    inside = [link for link in re.findall(LINK, page) if not link.startswith(("https:", "#"))]
    assert len(inside) > 20
    assert [link for link in inside if not re.match(start, link)] == []
    folder = copy / "build/site"
    targets = [link.partition("#")[0].removeprefix("/below/") for link in inside]
    assert [link for link in targets if not (folder / link).exists()] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[x](nowhere.md)", "nowhere.md"),
        ("[x](options.md#no-such-heading)", "no-such-heading"),
        ("<!-- generated: nothing -->", "there are candidate, counters"),
    ],
)
def test_what_leads_nowhere_ends_the_build(text: str, said: str, copy: Path) -> None:
    page = copy / "docs" / "index.md"
    page.write_text(page.read_text() + f"\n{text}\n")
    done = build(copy)
    assert done.returncode != 0
    assert said in done.stderr + done.stdout
