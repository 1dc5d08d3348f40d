"""A page is sorted, searched and opened: for the caches of the demo and of a training step, and for 200 and 10,000 records."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.tuning.report.page.document import document
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import CacheSource
from tests.support.browser import Page
from tests.support.cache.records import ENVIRONMENT, decision, measured, record
from tests.support.report_pages import SHOWN, SIZES, WrittenPage, invented, opened, shown, written

NONE = "\N{EN DASH}"
FIRST_PAINT_MS = 2000
READY_MS = 2000


def number(text: str) -> float:
    return float(text.replace(",", ""))


def closed_by_escape(page: Page) -> None:
    """Close the record, and wait until the address has no record: a dialog's ``close`` event comes after `open` is False."""
    page.press("Escape")
    page.wait("!document.getElementById('record').open && location.hash === ''")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("few", marks=pytest.mark.claim),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("demo", "training", "many")),
    ],
)
def test_problems_are_sorted_searched_and_opened(
    name: str, page: Page, request: pytest.FixtureRequest
) -> None:
    opened(page, request.getfixturevalue(name).file)
    slowest = [number(text) for text in shown(page, "ms") if text != NONE]
    assert len(slowest) > 2
    assert slowest == sorted(slowest, reverse=True)
    page.run("document.querySelector('#grid-problems th.c-ms button').click()")
    fastest = [number(text) for text in shown(page, "ms") if text != NONE]
    assert fastest == sorted(fastest)
    assert fastest[0] <= slowest[-1]

    rows = "Number(document.querySelector('#grid-problems table').ariaRowCount ?? 0)"
    total = page.run(rows)
    words = shown(page, "problem")[0]
    page.run(
        "(words => { const search = document.getElementById('search-problems');"
        f"search.value = words; search.dispatchEvent(new Event('input')); }})({json.dumps(words)})"
    )
    assert words in shown(page, "problem")
    assert all(word in text for text in shown(page, "problem") for word in words.split())
    assert page.run(rows) < total

    problem = shown(page, "problem")[0]
    page.run(f"{SHOWN}[0].querySelector('a').click()")
    page.wait("document.getElementById('record').open")
    assert page.run("document.getElementById('record-title').textContent") == problem
    assert page.run("document.querySelectorAll('#record .candidates tbody tr').length") > 0
    spreads = page.run(
        "[...document.querySelectorAll('#record .strip[role=img]')].map(each => each.ariaLabel)"
    )
    assert spreads  # for who does not see them; a median alone has a cell of its own
    assert all(re.fullmatch(r"from .+ to .+, middle half .+ to .+", said) for said in spreads)
    assert page.run("location.hash").startswith("#r/")


@pytest.mark.slow
def test_the_first_of_ten_thousand_records_is_there_within_two_seconds(
    page: Page, many: WrittenPage
) -> None:
    opened(page, many.file)
    page.wait("performance.getEntriesByName('first-contentful-paint').length > 0")
    painted = page.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted < FIRST_PAINT_MS
    # The title is painted before the rows are there.
    assert page.run("performance.getEntriesByName('ready')[0].startTime") < READY_MS
    assert page.run(f"{SHOWN}.length") < 100
    page.run("document.querySelector('#grid-problems .pane').scrollTop = 1e9")
    page.wait(f"Number({SHOWN}.at(-1).getAttribute('aria-rowindex')) === 10001")


@pytest.mark.slow
def test_a_link_leads_to_a_record_and_back(page: Page, many: WrittenPage) -> None:
    opened(page, many.file)
    address = page.run(f"{SHOWN}[5].querySelector('a').getAttribute('href')")
    page.open(many.file, address)
    page.wait("document.getElementById('record').open")
    page.press("ArrowRight")
    page.wait(f"location.hash !== {json.dumps(address)}")
    page.press("ArrowLeft")
    page.wait(f"location.hash === {json.dumps(address)}")
    closed_by_escape(page)


@pytest.mark.slow
def test_an_address_that_nobody_wrote_leaves_the_page_as_it_is(
    page: Page, many: WrittenPage
) -> None:
    opened(page, many.file)
    for address in ("%", "r/%zz", "g/%", "none"):
        page.run(f"location.hash = '{address}'")
        page.run("new Promise((done) => setTimeout(done, 50))")
    assert not page.run("document.getElementById('record').open")


@pytest.mark.slow
def test_two_quick_keys_move_by_two_records(page: Page, many: WrittenPage) -> None:
    """The second comes before the record of the first is shown."""
    opened(page, many.file)
    first, third = (
        page.run(f"{SHOWN}[{row}].querySelector('a').getAttribute('href')") for row in (5, 7)
    )
    page.open(many.file, first)
    page.wait("document.getElementById('record').open")
    key = "new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true })"
    page.run(
        f"[{key}, {key}].forEach((each) => document.getElementById('record').dispatchEvent(each))"
    )
    page.wait(f"location.hash === {json.dumps(third)}")


@pytest.mark.slow
def test_everything_is_reached_by_keys(page: Page, many: WrittenPage) -> None:
    opened(page, many.file)
    page.press("/")
    assert page.run("document.activeElement.id") == "search-problems"
    page.press("ArrowDown")
    page.press("ArrowDown")
    row = "Number(document.activeElement.closest('tr')?.dataset.row)"
    assert page.run(row) == 1
    page.press("End")
    page.wait(f"{row} === 9999")
    page.press("Home")
    page.wait(f"{row} === 0")
    first = page.run("document.activeElement.getAttribute('href')")
    page.press("Enter")
    page.wait("document.getElementById('record').open")
    closed_by_escape(page)
    page.wait(f"document.activeElement.getAttribute('href') === {json.dumps(first)}")


@pytest.mark.slow
def test_arrows_move_between_rows_from_wherever_the_focus_is(page: Page, many: WrittenPage) -> None:
    opened(page, many.file)
    row = "Number(document.activeElement.closest('tr')?.dataset.row)"
    page.run("document.querySelector('#grid-problems .pane').focus()")
    page.press("ArrowDown")
    assert page.run(row) == 0
    page.run("document.querySelector('#grid-problems th.c-ms button').focus()")
    page.press("ArrowDown")
    assert page.run(row) == 0
    page.run(
        "document.querySelector('#grid-refused .pane').focus()"
    )  # a link, but not in the first column
    page.press("ArrowDown")
    page.press("ArrowDown")
    assert page.run(row) == 1
    assert page.run("document.activeElement.closest('.gridholder').id") == "grid-refused"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.slow
def test_arrows_lead_through_the_problems_of_a_refusal(page: Page, many: WrittenPage) -> None:
    opened(page, many.file)
    links = "[...document.querySelectorAll('#grid-refused td.c-count a')]"
    link = f"{links}.find(each => each.textContent !== '10,000')"
    total, first = (page.run(f"{link}.{name}") for name in ("textContent", "title"))
    page.run(f"{link}.click()")
    page.wait("document.getElementById('record').open")
    assert page.run("document.getElementById('record-title').textContent") == first
    for number in (1, 2, 3):
        page.wait(
            "document.querySelector('#record .overline').textContent"
            f".endsWith('{number} of {total}')"
        )
        page.press("ArrowRight")
    closed_by_escape(page)
    page.run(
        f"{SHOWN}[1].querySelector('a').click()"
    )  # a link to a problem leads through the table
    page.wait("document.querySelector('#record .overline').textContent.endsWith('of 10,000')")


@pytest.mark.slow
def test_a_record_that_was_reached_by_arrows_is_focused_after_it(
    page: Page, many: WrittenPage
) -> None:
    opened(page, many.file)
    page.run(f"{SHOWN}[0].querySelector('a').focus()")
    page.press("Enter")
    page.wait("document.getElementById('record').open")
    for _ in range(100):  # its row was not in the document when the first was opened
        page.run("document.querySelector('#record [aria-label=\"Next problem\"]').click()")
        page.run("new Promise(done => setTimeout(done, 5))")
    closed_by_escape(page)
    page.wait("document.activeElement.closest('tr')?.dataset.row === '100'")


@pytest.mark.slow
def test_texts_of_a_record_are_shown_and_not_run(page: Page, tmp_path: Path) -> None:
    text = '</script><img src=x onerror="window.owned=1"><script>window.owned=1</script>{{data}}'
    odd = record(measured(text, name=text, reason=text, description=text), rejected={text: text})
    odd = replace(odd, describe=text, op="graph", decision=decision(text))
    source = CacheSource(
        text, [odd], {odd.environment: {text: text}}, quarantined=[(text, text, text)]
    )
    file = tmp_path / "page.html"
    file.write_text(document(page_model([source]), text), encoding="utf-8")
    opened(page, file)
    page.run(f"{SHOWN}[0].querySelector('a').click()")
    page.wait("document.getElementById('record').open")
    assert page.run("window.owned ?? null") is None
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.getElementById('record-title').textContent") == text
    assert text in page.run("document.querySelector('h1').textContent")


@pytest.mark.slow
def test_a_page_has_no_wider_content_than_its_window(
    page: Page, many: WrittenPage, tmp_path: Path
) -> None:
    long = "kernel_" + "x" * 400
    kept = record(measured(long, name=long, description=long), decision=decision(long))
    named = replace(kept, describe=f"mm({'8192x' * 60}1)")
    file = tmp_path / "page.html"
    source = CacheSource(f"/tmp/{long}", [named], {kept.environment: ENVIRONMENT})
    file.write_text(document(page_model([source]), source.name), encoding="utf-8")
    for width, height, phone in SIZES.values():
        page.size(width, height, phone=phone)
        for each in (file, many.file):
            opened(page, each)
            page.run(f"{SHOWN}[0].querySelector('a').click()")
            page.wait("document.getElementById('record').open")
            for element in ("document.documentElement", "document.getElementById('record')"):
                assert page.run(f"{element}.scrollWidth - {element}.clientWidth") <= 0, (
                    each,
                    width,
                )


@pytest.mark.slow
def test_an_empty_cache_says_what_to_do(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(document(page_model([CacheSource("c", [], {})]), "c"), encoding="utf-8")
    opened(page, file)
    assert "run `inductor-plugin demo`" in page.run("document.getElementById('problems').innerText")


@pytest.mark.slow
def test_two_caches_are_read_side_by_side_on_a_phone(page: Page, tmp_path: Path) -> None:
    left = invented(30, "/caches/old")
    right = replace(invented(30, "/caches/new"), name="/caches/new")
    page.size(*SIZES["phone"][:2], phone=True)
    opened(page, written(tmp_path, "two caches", left, right).file)
    heads = page.run(
        "[...document.querySelectorAll('#grid-compare th')].filter((each) => each.offsetWidth)"
        ".map((each) => each.textContent)"
    )
    assert [head.partition(", ")[2] for head in heads[:2]] == ["old", "new"]
    problem, pane = (
        page.run(f"document.querySelector('#grid-compare {each}').getBoundingClientRect().width")
        for each in ("td.c-problem", ".pane")
    )
    assert problem > 0.9 * pane
    kernels = page.run(
        "[...document.querySelector('#grid-compare tbody tr:not(.gap)').querySelectorAll('td')].map((each) => "
        "({name: each.className, top: each.getBoundingClientRect().top, text: each.innerText, wide: each.offsetWidth}))"
    )
    lines = {cell["name"].rpartition("c-")[2]: cell for cell in kernels}
    for side in ("a", "b"):
        kernel, taken = lines[f"kernel{side}"], lines[f"ms{side}"]
        assert kernel["wide"] > 0.3 * pane
        assert kernel["text"].strip()
        assert lines["problem"]["top"] < kernel["top"] < taken["top"] == lines["ratio"]["top"]
    beyond = "document.querySelector('#grid-compare .pane')"
    assert page.run(f"{beyond}.scrollWidth - {beyond}.clientWidth") <= 0


@pytest.mark.slow
def test_the_reason_of_a_quarantine_is_opened_by_touch_and_by_key(
    page: Page, few: WrittenPage, tmp_path: Path
) -> None:
    reason = "wrong numbers " * 40
    source = replace(few.source, quarantined=[("kernel_x", "wrong", reason)])
    page.size(*SIZES["phone"][:2], phone=True)
    opened(page, written(tmp_path, "quarantine", source).file)
    button = "document.querySelector('#grid-refused .whole')"
    page.run("document.querySelector('#grid-refused .pane').scrollTop = 1e9")
    page.wait(f"{button} !== null")
    for opens in (f"{button}.closest('tr').querySelector('td').click()", None):
        if opens:
            page.run(opens)
        else:
            page.run(f"{button}.focus()")
            page.press("Enter")
        page.wait("document.getElementById('record').open")
        assert reason.strip() in page.run("document.getElementById('record').innerText")
        closed_by_escape(page)


@pytest.mark.slow
def test_the_times_of_candidates_have_a_unit_where_they_have_no_head(
    page: Page, few: WrittenPage
) -> None:
    opened(page, few.file)
    page.run(f"{SHOWN}[0].querySelector('a').click()")
    page.wait("document.getElementById('record').open")
    head = page.run("document.querySelector('#record .candidates th.number').innerText")
    unit = head.partition(", ")[2]
    medians = "[...document.querySelectorAll('#record .candidates tbody td.number:nth-child(3)')].map((each) => each.innerText)"
    assert unit in ("µs", "ms")
    assert not any(unit in text for text in page.run(medians))
    page.size(*SIZES["phone"][:2], phone=True)
    assert page.run("document.querySelector('#record .candidates thead').offsetHeight") == 0
    times = [text for text in page.run(medians) if text != NONE]
    assert len(times) > 2
    assert all(text.endswith(f" {unit}") for text in times)
