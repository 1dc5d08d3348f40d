"""A page on paper: without what is for a screen, and with all columns that a screen has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.browser import Page
from tests.support.report_pages import SHOWN, WrittenPage, invented, opened, written

pytestmark = pytest.mark.slow

PAPER_PX = 680
"""Width of A4 without its margins."""
HEADS = "[...document.querySelectorAll('#grid-{} th')].filter((each) => each.offsetWidth).map((each) => each.className.split('c-')[1])"
"""The columns of a table that are seen."""


CELLS = "[...document.querySelectorAll('.grid tbody tr:not(.gap) td')]"
WIDE = f"{CELLS}.filter((each) => each.scrollWidth > each.clientWidth + 1)"
"""The cells whose content is wider than they are."""


def on_paper(page: Page) -> None:
    """Lay the page out for A4, as a browser does before it prints."""
    page.size(PAPER_PX, 900)
    page.media(paper=True)
    page.run("dispatchEvent(new Event('beforeprint'))")


def test_a_page_is_printed_without_what_is_for_a_screen(
    page: Page, many: WrittenPage, tmp_path: Path
) -> None:
    opened(page, many.file)
    page.media(paper=True)
    hidden = (
        "['nav', '.search'].map(name => getComputedStyle(document.querySelector(name)).display)"
    )
    assert page.run(hidden) == ["none", "none"]
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(f"{SHOWN}.length") == 500
    assert page.paper(tmp_path / "page.pdf") > 50_000
    page.media()
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run(f"{SHOWN}.length") < 100


def test_what_is_printed_fits_on_the_paper(page: Page, few: WrittenPage, tmp_path: Path) -> None:
    """A browser lays a page out for paper without telling its script: drawings keep the size of the screen's."""
    reason = "wrong numbers " * 40
    source = replace(few.source, quarantined=[("kernel_" + "x" * 90, "wrong", reason)])
    opened(page, written(tmp_path, "paper", source).file)
    page.run("document.getElementById('refused').scrollIntoView()")
    page.media(paper=True)
    page.run("dispatchEvent(new Event('beforeprint'))")
    far = (
        "(each) => each.getBoundingClientRect().right - document.body.getBoundingClientRect().right"
    )
    drawings = "[...document.querySelectorAll('.drawing svg')]"
    narrow = f"document.body.style.width = '{PAPER_PX}px'"
    assert page.run(f"({narrow}, Math.max(...{drawings}.map({far})))") <= 1
    page.size(PAPER_PX, 900)
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(f"{WIDE}.map((each) => each.outerHTML).slice(0, 3)") == []
    whole = page.run("document.getElementById('refused').innerText")
    assert reason.strip() in whole
    assert "quarantine" in whole


def test_the_table_of_problems_has_all_its_columns_on_paper(page: Page, few: WrittenPage) -> None:
    opened(page, few.file)
    columns = page.run(HEADS.format("problems"))
    assert {"problem", "kernel", "ms", "gain", "spread", "peak"} <= set(columns)
    on_paper(page)
    assert page.run(HEADS.format("problems")) == columns
    widths = page.run(f"[...{SHOWN}[0].children].map((each) => each.clientWidth)")
    assert len(widths) == len(columns)
    assert min(widths) > 40
    assert page.run("document.documentElement.scrollWidth") <= PAPER_PX


@pytest.mark.parametrize("name", ["demo", "training", "beside", "pins", "bench"])
def test_nothing_of_a_page_is_wider_than_the_paper(
    name: str, page: Page, request: pytest.FixtureRequest
) -> None:
    opened(page, request.getfixturevalue(name).file)
    on_paper(page)
    assert page.run(f"{CELLS}.length") > 2
    assert page.run(f"{WIDE}.map((each) => each.outerHTML).slice(0, 3)") == []
    assert page.run("document.documentElement.scrollWidth") <= PAPER_PX


def test_a_row_of_many_columns_is_printed_with_the_head_of_each_value(
    page: Page, bench: WrittenPage
) -> None:
    opened(page, bench.file)
    on_paper(page)
    row = "[...document.querySelectorAll('.cards tbody tr:not(.gap)')][0]"
    heads = page.run(
        f"[...{row}.closest('table').querySelectorAll('th')].map((each) => each.textContent)"
    )
    assert len(heads) > 7
    shown = page.run(
        f"[...{row}.children].map((each) => getComputedStyle(each, '::before').content)"
    )
    assert [text.strip('"').split('" "')[0].strip() for text in shown] == heads
    assert page.run(f"{row}.clientHeight") > 20


def test_two_caches_are_printed_with_the_kernels_of_both(page: Page, tmp_path: Path) -> None:
    left = invented(30, "/caches/old")
    right = replace(invented(30, "/caches/new"), name="/caches/new")
    opened(page, written(tmp_path, "two caches", left, right).file)
    on_paper(page)
    assert page.run(HEADS.format("compare")) == ["problem", "kernela", "msa", "kernelb", "msb", "ratio"]  # fmt: skip
    row = "document.querySelector('#grid-compare tbody tr:not(.gap)')"
    for side in "ab":
        assert page.run(f"{row}.querySelector('.c-kernel{side}').innerText").strip()
        assert page.run(f"{row}.querySelector('.c-kernel{side}').clientWidth") > 80
    wide = "[...document.querySelectorAll('#grid-compare td')].filter((each) => each.scrollWidth > each.clientWidth + 1)"
    assert page.run(f"{wide}.map((each) => each.outerHTML).slice(0, 3)") == []


def test_the_candidates_of_a_record_are_printed_below_their_heads(
    page: Page, few: WrittenPage
) -> None:
    opened(page, few.file)
    page.run(f"{SHOWN}[0].querySelector('a').click()")
    page.wait("document.getElementById('record').open")
    on_paper(page)
    heads = page.run(
        "[...document.querySelectorAll('#record .candidates th[scope=col]')].filter((each) => each.offsetWidth)"
        ".map((each) => each.innerText)"
    )
    assert [head.partition(",")[0] for head in heads] == ["Candidate", "Spread", "Median", "Of best", "Samples", "Compile"]  # fmt: skip
    table = "document.querySelector('#record .candidates').getBoundingClientRect()"
    assert page.run(f"{table}.right") <= PAPER_PX
