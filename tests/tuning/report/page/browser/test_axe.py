"""axe-core finds nothing on a page: large or small, light or dark, with a record opened, and with its charts drawn."""

from __future__ import annotations

import shutil
import subprocess
from itertools import product

import pytest

from tests.support.browser import Page, missing
from tests.support.pairs import covering
from tests.support.report_pages import SHOWN, SIZES, opened

AXE = "axe-core@4.14.1"
PAGES = ("demo", "training", "many", "beside", "pins", "bench", "process")
_SPANS = "document.querySelector('#timeline summary')"
"""Opens the table of the timeline's spans, where a page has one."""
_RUN = (
    "axe.run().then(found => found.violations.flatMap(v => v.nodes.map(n => "
    "`${v.impact} ${v.id}: ${n.html.slice(0, 160)} ${n.failureSummary.slice(0, 300)}`)))"
)


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the script of axe-core, https://github.com/dequelabs/axe-core."""
    npm = shutil.which("npm")
    if npm is None:
        missing("needs npm, which fetches axe-core", fetched=True)
    folder = tmp_path_factory.mktemp("axe")
    # What was fetched before is not fetched again, and a machine without a network waits for a second.
    quick = ["--prefer-offline", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=1000"]
    command = [npm, "install", "--no-audit", "--no-fund", *quick, "--prefix", str(folder), AXE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        reason = done.stderr.strip()[-200:]
        missing(f"needs {AXE}, and npm could not fetch it: {reason}", fetched=True)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "size", "dark"),
    [
        pytest.param("few", "desktop", False, id="few-desktop-light", marks=pytest.mark.claim),
        # Each page on each screen and in each theme; each theme on each screen.
        *(
            pytest.param(name, size, theme == "dark", id="-".join(case), marks=pytest.mark.slow)
            for case in covering(product(PAGES, SIZES, ("light", "dark")), enumerate)
            for name, size, theme in [case]
        ),
    ],
)
def test_axe_finds_nothing(
    name: str, size: str, dark: bool, page: Page, axe: str, request: pytest.FixtureRequest
) -> None:
    width, height, phone = SIZES[size]
    page.size(width, height, phone=phone)
    page.media(dark=dark)
    opened(page, request.getfixturevalue(name).file)
    page.run(f"{axe}; null")
    page.run(f"{_SPANS}?.click()")
    assert page.run(f"!{_SPANS} || {_SPANS}.parentElement.open")
    assert page.run(_RUN) == []
    if name != "bench":
        page.run(f"{SHOWN}[0].querySelector('a').click()")
        page.wait("document.getElementById('record').open")
        assert page.run(_RUN) == []
