"""The page in Chromium: for the caches of the demo and of a training step, and for one with 10,000 records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import digest_of, open_store
from inductor_plugin.tuning.report.page.document import document
from inductor_plugin.tuning.report.page.gather import cache_source, read_json
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import CacheSource
from tests.support.browser import Page, browser_path, opened_browser
from tests.support.cache.measured_gpu import H100, gpu_records
from tests.support.cache.records import ENVIRONMENT, decision, measured, record
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.slow

SIZES = {"desktop": (1280, 900, False), "phone": (390, 844, True)}
SHOWN = "[...document.querySelectorAll('#grid-problems tbody tr:not(.gap)')]"
NONE = "\N{EN DASH}"
FIRST_PAINT_MS = 2000
AXE = "axe-core@4.14.1"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    path = browser_path()
    if path is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    with opened_browser(path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def silent(page: Page) -> Iterator[None]:
    """Each test ends without an error in the console, and without a request to a network."""
    page.errors.clear()
    page.requests.clear()
    page.size(1280, 900)
    page.media()
    yield
    assert page.errors == []
    assert [address for address in page.requests if not address.startswith("file:")] == []


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of the demo's cache, with the trace of its first process."""
    folder = tmp_path_factory.mktemp("demo")
    variables = {"INDUCTOR_PLUGIN_TRACE_PATH": str(folder / "trace.json")}
    _run(["-m", "inductor_plugin", "demo", "--cache-dir", str(folder / "cache")], variables)
    return _page(folder, read_json(folder / "trace.json"))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of the cache that a training step of GPT-2 leaves."""
    folder = tmp_path_factory.mktemp("training")
    command = ["-m", "tests.support.processes.pinned", "record", str(folder / "pins.json")]
    _run([*command, str(folder / "cache")], {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")})
    return _page(folder)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of 10,000 records with 20 candidates each."""
    file = tmp_path_factory.mktemp("many") / "page.html"
    source = CacheSource("many", list(gpu_records(10_000)), {digest_of(H100): H100})
    file.write_text(document(page_model([source]), "many"), encoding="utf-8")
    return file


def _run(arguments: list[str], variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def _page(folder: Path, trace: Any = None) -> Path:
    source = cache_source(open_store(folder / "cache", read_only=True))
    assert source.records
    file = folder / "page.html"
    file.write_text(document(page_model([source], trace), "a cache"), encoding="utf-8")
    return file


def opened(page: Page, file: Path, fragment: str = "") -> None:
    page.open(file, fragment)
    page.wait("document.documentElement.dataset.ready === 'true'")
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shown(page: Page, column: str) -> list[str]:
    return page.run(f"{SHOWN}.map(row => row.querySelector('.c-{column}').textContent)")


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("name", ["demo", "training", "many"])
def test_problems_are_sorted_searched_and_opened(
    name: str, page: Page, request: pytest.FixtureRequest
) -> None:
    opened(page, request.getfixturevalue(name))
    slowest = [number(text) for text in shown(page, "ms") if text != NONE]
    assert len(slowest) > 2
    assert slowest == sorted(slowest, reverse=True)
    page.run("document.querySelector('#grid-problems th.c-ms button').click()")
    fastest = [number(text) for text in shown(page, "ms") if text != NONE]
    assert fastest == sorted(fastest)
    assert fastest[0] <= slowest[-1]

    total = page.run("Number(document.querySelector('#grid-problems table').ariaRowCount ?? 0)")
    word = shown(page, "problem")[0].partition("(")[2].partition(",")[0]
    page.run(
        "(word => { const search = document.getElementById('search-problems');"
        f"search.value = word; search.dispatchEvent(new Event('input')); }})({json.dumps(word)})"
    )
    assert shown(page, "problem")
    assert all(word in text for text in shown(page, "problem"))
    assert (
        page.run("Number(document.querySelector('#grid-problems table').ariaRowCount ?? 0)")
        <= total
    )

    problem = shown(page, "problem")[0]
    page.run(f"{SHOWN}[0].querySelector('a').click()")
    page.wait("document.getElementById('record').open")
    assert page.run("document.getElementById('record-title').textContent") == problem
    assert page.run("document.querySelectorAll('#record .candidates tbody tr').length") > 0
    assert page.run("location.hash").startswith("#r/")


def test_the_first_of_ten_thousand_records_is_there_within_two_seconds(
    page: Page, many: Path
) -> None:
    opened(page, many)
    page.wait("performance.getEntriesByName('first-contentful-paint').length > 0")
    painted = page.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted < FIRST_PAINT_MS
    assert page.run(f"{SHOWN}.length") < 100
    page.run("document.querySelector('#grid-problems .pane').scrollTop = 1e9")
    page.wait(f"Number({SHOWN}.at(-1).getAttribute('aria-rowindex')) === 10001")


def test_a_link_leads_to_a_record_and_back(page: Page, many: Path) -> None:
    opened(page, many)
    address = page.run(f"{SHOWN}[5].querySelector('a').getAttribute('href')")
    page.open(many, address)
    page.wait("document.getElementById('record').open")
    page.press("ArrowRight")
    page.wait(f"location.hash !== {json.dumps(address)}")
    page.press("ArrowLeft")
    page.wait(f"location.hash === {json.dumps(address)}")
    page.press("Escape")
    page.wait("!document.getElementById('record').open")
    assert page.run("location.hash") == ""


def test_two_quick_keys_move_by_two_records(page: Page, many: Path) -> None:
    """The second comes before the record of the first is shown."""
    opened(page, many)
    first, third = (
        page.run(f"{SHOWN}[{row}].querySelector('a').getAttribute('href')") for row in (5, 7)
    )
    page.open(many, first)
    page.wait("document.getElementById('record').open")
    key = "new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true })"
    page.run(
        f"[{key}, {key}].forEach((each) => document.getElementById('record').dispatchEvent(each))"
    )
    page.wait(f"location.hash === {json.dumps(third)}")


def test_everything_is_reached_by_keys(page: Page, many: Path) -> None:
    opened(page, many)
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
    page.press("Escape")
    page.wait("!document.getElementById('record').open")
    assert page.run("document.activeElement.getAttribute('href')") == first


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


def test_a_page_has_no_wider_content_than_its_window(
    page: Page, many: Path, tmp_path: Path
) -> None:
    long = "kernel_" + "x" * 400
    kept = record(measured(long, name=long, description=long), decision=decision(long))
    named = replace(kept, describe=f"mm({'8192x' * 60}1)")
    file = tmp_path / "page.html"
    source = CacheSource(f"/tmp/{long}", [named], {kept.environment: ENVIRONMENT})
    file.write_text(document(page_model([source]), source.name), encoding="utf-8")
    for width, height, phone in SIZES.values():
        page.size(width, height, phone=phone)
        for each in (file, many):
            opened(page, each)
            page.run(f"{SHOWN}[0].querySelector('a').click()")
            page.wait("document.getElementById('record').open")
            for element in ("document.documentElement", "document.getElementById('record')"):
                assert page.run(f"{element}.scrollWidth - {element}.clientWidth") <= 0, (
                    each,
                    width,
                )


def test_an_empty_cache_says_what_to_do(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(document(page_model([CacheSource("c", [], {})]), "c"), encoding="utf-8")
    opened(page, file)
    assert "run `inductor-plugin demo`" in page.run("document.getElementById('problems').innerText")


def test_a_page_is_printed_without_what_is_for_a_screen(
    page: Page, many: Path, tmp_path: Path
) -> None:
    opened(page, many)
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


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the script of axe-core, https://github.com/dequelabs/axe-core."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, which fetches axe-core")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), AXE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"npm could not fetch {AXE}: {done.stderr.strip()[-200:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["many", "results"])
def test_axe_finds_nothing(
    name: str, size: str, dark: bool, page: Page, axe: str, request: pytest.FixtureRequest
) -> None:
    width, height, phone = SIZES[size]
    page.size(width, height, phone=phone)
    page.media(dark=dark)
    opened(page, request.getfixturevalue(name))
    _inject(page, axe)
    assert _findings(page) == []
    if name == "many":
        page.run(f"{SHOWN}[0].querySelector('a').click()")
        page.wait("document.getElementById('record').open")
        assert _findings(page) == []


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of two results of a benchmark."""
    from inductor_plugin.tuning.report.page.gather import file_source

    folder = REPOSITORY / "benchmarks" / "results"
    file = tmp_path_factory.mktemp("results") / "page.html"
    sources = [file_source(folder / name) for name in ("models_cpu.json", "attention_cpu.json")]
    file.write_text(document(page_model(sources), "results"), encoding="utf-8")
    return file


def _inject(page: Page, script: str) -> None:
    page.run(f"{script}; null")


def _findings(page: Page) -> list[str]:
    run = "axe.run().then(found => found.violations.flatMap(v => v.nodes.map(n => `${v.impact} ${v.id}: ${n.html.slice(0, 160)} ${n.failureSummary.slice(0, 300)}`)))"
    return page.run(run)
