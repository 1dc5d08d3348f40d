"""Each page has the sections that it must have, and each section says what is in its sources."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.tuning.report.page.candidates import CANDIDATE
from inductor_plugin.tuning.report.page.rows import RECORD
from inductor_plugin.tuning.report.page.source import ProblemGroup
from tests.support.browser import Page
from tests.support.report_pages import WrittenPage, invented, opened, written

pytestmark = pytest.mark.slow

CACHE = ("summary", "problems", "gains", "roofline", "warm", "refused", "cache", "environments")
TUNED = (*CACHE[:2], "groups", *CACHE[2:])
"""Of a cache that a process has filled: its misses are a group."""
TRACED = (*TUNED[:5], "timeline", *TUNED[5:])
SECTIONS = {
    "demo": TRACED,
    "training": TRACED,
    "many": CACHE,
    "beside": ("summary", "compare", *TUNED[1:]),
    "pins": ("summary", "problems", "gains", "roofline", "environments"),
    "gpu_pins": ("summary", "problems", "gains", "roofline", "environments"),
}


@pytest.fixture
def shown_page(name: str, page: Page, request: pytest.FixtureRequest) -> WrittenPage:
    """Return the page of this name, open in the browser."""
    written_page: WrittenPage = request.getfixturevalue(name)
    opened(page, written_page.file)
    return written_page


def ids(page: Page) -> list[str]:
    return page.run("[...document.querySelectorAll('main > section')].map(each => each.id)")


def texts(page: Page, selector: str) -> list[str]:
    return page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(each => each.textContent)"
    )


def label(page: Page, section: str) -> str:
    """Return what a chart says of itself to those who do not see it."""
    return page.run(
        f"document.querySelector('#{section} svg[role=img]').getAttribute('aria-label')"
    )


def marks(page: Page, selector: str) -> int:
    """Return how many marks the paths of a chart draw."""
    return sum(each.count("M") for each in page.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(each => each.getAttribute('d'))"))  # fmt: skip


def figures(page: Page, section: str) -> dict[str, str]:
    """Return the large figures of a section by their labels."""
    pairs = page.run(
        f"[...document.querySelectorAll('#{section} .figure')]"
        ".map(each => [each.querySelector('dt').textContent, each.querySelector('dd').textContent])"
    )
    return dict(pairs)


def rows(shown: WrittenPage) -> Iterator[dict[str, Any]]:
    return (dict(zip(RECORD, row, strict=True)) for row in shown.model["records"])


def median(row: Mapping[str, Any], column: str) -> float | None:
    place = row[column]
    known: dict[str, Any] = (
        dict(zip(CANDIDATE, row["candidates"][place], strict=True)) if place >= 0 else {}
    )
    return known.get("median")


@pytest.mark.parametrize("name", SECTIONS)
def test_a_page_has_its_sections_and_links_to_them(
    name: str, shown_page: WrittenPage, page: Page
) -> None:
    assert ids(page) == list(SECTIONS[name])
    links = page.run("[...document.querySelectorAll('#nav a')].map(each => each.hash.slice(1))")
    assert links == [section for section in ids(page) if section != "summary"]


@pytest.mark.parametrize("name", ["demo", "training", "many"])
def test_the_numbers_of_candidates_by_status_add_up(
    name: str, shown_page: WrittenPage, page: Page
) -> None:
    total = shown_page.model["sources"][0]["summary"]["candidates"]
    assert figures(page, "summary")["candidates"] == f"{total:,}"
    (said,) = [each for each in texts(page, "#summary .about") if " measured" in each]
    assert sum(int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", said)) == total
    assert ("pruned" in said) == (name == "many")


@pytest.mark.parametrize("name", ["demo", "training", "many", "pins"])
def test_gains_have_a_point_for_each_problem_whose_times_are_known(
    shown_page: WrittenPage, page: Page
) -> None:
    known = sum(bool(row["gain"] and median(row, "library")) for row in rows(shown_page))
    assert known > 2
    assert label(page, "gains").startswith(f"Gain over the library kernel of {known:,} problems")
    assert marks(page, "#gains path.dots") == known


@pytest.mark.parametrize("name", ["demo", "training"])
def test_each_problem_says_what_runs_also_where_nothing_was_compared(
    shown_page: WrittenPage, page: Page
) -> None:
    assert all(row["winner"] >= 0 or row["only"] >= 0 for row in rows(shown_page))
    kernels = texts(page, "#grid-problems td.c-kernel")
    assert kernels
    assert "nothing decided" not in kernels


@pytest.mark.parametrize(("name", "count"), [("many", 10_000), ("gpu_pins", 200)])
def test_the_roofline_of_a_known_device_has_a_roof_for_each_type(
    name: str, count: int, shown_page: WrittenPage, page: Page
) -> None:
    (environment,) = shown_page.model["environments"]
    named = environment["peak"]["name"]
    assert label(page, "roofline") == f"Roofline of {named}: {count:,} problems."
    assert marks(page, "#roofline path.dots") == count
    types = {shown_page.model["texts"][row["dtype"]] for row in rows(shown_page)}
    labels = texts(page, "#roofline .rooftext")
    said = [label.rpartition(" ")[0].rpartition(" ")[0].split(", ") for label in labels]
    assert sorted(each for names in said for each in names) == sorted(types)
    rates = {
        environment["peak"]["rates"][each] for each in types
    }  # types of one rate have one roof
    assert len(texts(page, "#roofline path.roof")) == len(labels) == len(rates)


@pytest.mark.parametrize("name", ["demo", "training", "pins"])
def test_without_figures_of_the_device_the_roofline_says_so(
    shown_page: WrittenPage, page: Page
) -> None:
    device = shown_page.model["environments"][0]["device"]
    (said,) = texts(page, "#roofline .empty")
    assert f"The peak rates of {device} are not known" in said


@pytest.mark.parametrize("name", ["gpu_pins"])
def test_a_pin_whose_problem_is_known_has_its_rate_and_its_call(
    shown_page: WrittenPage, page: Page
) -> None:
    assert len(shown_page.model["records"]) == 200
    page.run("document.querySelector('#grid-problems tbody a').click()")
    page.wait("document.getElementById('record').open")
    assert any("roof" in name for name in figures(page, "record"))
    assert texts(page, "#record pre code") == ["torch.mm(a, b)"]


@pytest.mark.parametrize("name", ["demo", "training"])
def test_the_timeline_has_every_lane_and_span_of_the_trace(
    name: str, shown_page: WrittenPage, page: Page
) -> None:
    lanes = shown_page.model["timeline"]["lanes"]
    names = [shown_page.model["texts"][lane["name"]] for lane in lanes]
    assert len(names) > 1
    assert texts(page, "#timeline text.lane") == names
    assert marks(page, "#timeline path.span") == sum(len(lane["spans"]) for lane in lanes) > 2
    assert label(page, "timeline").startswith("Timeline of ")
    assert {"waited by the compile", "compiling", "measuring"} <= figures(page, "timeline").keys()
    page.run("document.querySelector('#timeline summary').click()")
    page.wait("document.querySelector('#grid-spans tbody tr[data-row]') !== null")
    said = page.run("document.querySelector('#grid-spans .status').textContent")
    assert said == f"{sum(len(lane['spans']) for lane in lanes):,} rows"


@pytest.mark.parametrize("name", ["demo", "training", "many"])
def test_a_warm_start_saves_all_that_was_measured(shown_page: WrittenPage, page: Page) -> None:
    measured = shown_page.model["sources"][0]["summary"]["measured"]
    saved = figures(page, "warm")
    assert saved["candidates measured"] == f"{measured:,}"
    assert ("waited" in saved) == (shown_page.model["timeline"] is not None)


@pytest.mark.parametrize("name", ["many"])
def test_each_refusal_has_its_reason_and_the_number_of_its_problems(
    shown_page: WrittenPage, page: Page
) -> None:
    pairs = Counter(
        pair for record in shown_page.source.records for pair in record.rejected.items()
    )
    columns = [texts(page, f"#grid-refused td.c-{column}") for column in ("template", "reason", "count")]  # fmt: skip
    listed = {(template, why): count for template, why, count in zip(*columns, strict=True)}
    assert len(pairs) == 10
    assert {pair: listed[pair] for pair in pairs} == {pair: f"{n:,}" for pair, n in pairs.items()}


@pytest.mark.parametrize("name", ["demo", "training", "many"])
def test_the_cache_is_shown_by_kind(name: str, shown_page: WrittenPage, page: Page) -> None:
    held = shown_page.source.holdings
    assert held
    assert texts(page, "#cache tbody th") == [each.name for each in held]
    assert texts(page, "#cache tbody th + td") == [f"{each.count:,}" for each in held]
    counters = shown_page.source.counters
    hits, misses = counters.get("hits", 0), counters.get("misses", 0)
    (said,) = texts(page, "#cache .lead")
    assert said.startswith(f"{hits:,} hits, {misses:,} misses" if hits + misses else "No process")


@pytest.mark.parametrize("name", ["demo", "training", "many", "beside", "pins"])
def test_every_field_of_an_environment_is_shown(shown_page: WrittenPage, page: Page) -> None:
    environments = shown_page.model["environments"]
    fields = dict(environments[0]["fields"])
    heads = texts(page, "#environments tbody th")
    first = texts(page, "#environments tbody th + td")
    assert fields.items() <= dict(zip(heads, first, strict=True)).items()
    assert "software.torch" in fields
    assert texts(page, "#environments tr.differs th") == (["driver"] if len(environments) > 1 else [])  # fmt: skip


@pytest.mark.parametrize("name", ["beside"])
def test_two_caches_are_compared_problem_by_problem(shown_page: WrittenPage, page: Page) -> None:
    count = len(shown_page.source.records)
    (said,) = texts(page, "#compare .lead")
    assert said == f"{count} problems; 1 decided differently, 1 in one of the two only."
    for chip in ("Decided differently 1", "In one only 1"):
        page.run(
            "[...document.querySelectorAll('#compare .chip')]"
            f".find(each => each.textContent === {json.dumps(chip)}).click()"
        )
        assert texts(page, "#compare .status") == [f"1 of {count} rows"]
    assert "no record" in "".join(texts(page, "#grid-compare tbody td"))


@pytest.mark.parametrize("name", ["beside"])
def test_each_problem_of_two_caches_says_which_it_is_of(
    shown_page: WrittenPage, page: Page
) -> None:
    names = set(texts(page, "#summary .sourcename"))
    assert len(names) == len(shown_page.model["sources"]) == 2
    first = "#grid-problems tbody tr:not(.gap) td.c-source"
    seen = set[str]()
    for _ in range(2):  # sorted by it, one way and the other
        page.run("document.querySelector('#grid-problems th.c-source button').click()")
        seen.add(texts(page, first)[0])
    assert seen == names


def test_results_of_benchmarks_are_shown_whole(bench: WrittenPage, page: Page) -> None:
    opened(page, bench.file)
    sources = bench.model["sources"]
    kinds = ("samples", "tables", "figures")
    parts = [f"{kind}{n}" for n, each in enumerate(sources) for kind in kinds if each[kind]]
    assert {"samples0", "figures0", "figures1", "tables1"} <= set(parts)
    assert ids(page) == ["compare", *parts]
    charts = page.run(
        "[...document.querySelectorAll('#samples0 svg[role=img]')]"
        ".map(each => each.getAttribute('aria-label'))"
    )
    sets = [each["name"] for each in sources[0]["samples"]]
    assert len(charts) == len(sets) == 10
    assert all(said.startswith(f"{name}: ") for said, name in zip(charts, sets, strict=True))
    assert all(", middle half " in said for said in charts)
    tables = sources[1]["tables"]
    assert texts(page, "#tables1 h3") == [each["name"] for each in tables]
    rows_said = [f"{len(each['rows']):,} {'row' if len(each['rows']) == 1 else 'rows'}" for each in tables]  # fmt: skip
    assert texts(page, "#tables1 .status") == rows_said
    assert texts(page, "#figures1 .status") == [f"{len(sources[1]['figures']):,} rows"]


def test_a_graph_leads_to_its_problems(demo: WrittenPage, process: WrittenPage, page: Page) -> None:
    opened(page, process.file)
    assert "graphs" in ids(page)
    page.run("document.querySelector('#graphs td.c-graph a').click()")
    page.wait("document.activeElement.id === 'choose-problems'")
    (said,) = texts(page, "#problems .status")
    assert said == f"2 of {len(demo.source.records)} rows: 1 forward (2 problems)"


def test_the_names_of_groups_have_most_of_a_phone(page: Page, tmp_path: Path) -> None:
    source = invented(300)
    graphs = [
        ProblemGroup("graph", f"{n}" * 16, f"graph {n}", (each.place,))
        for n, each in enumerate(source.records)
    ]
    page.size(390, 844, phone=True)
    opened(page, written(tmp_path, "graphs", replace(source, groups=graphs)).file)
    width = "document.querySelector('#grid-groups {}').getBoundingClientRect().width"
    assert page.run(width.format("td.c-group")) > 0.4 * page.run(width.format("table"))
    assert page.run(width.format("tbody tr:not(.gap)")) > 0.98 * page.run(width.format("table"))


def test_a_cache_is_grouped_by_what_it_knows_and_problems_lead_to_their_groups(
    demo: WrittenPage, page: Page, tmp_path: Path
) -> None:
    records = demo.source.records
    groups = [
        ProblemGroup("graph", "a" * 64, "graph of 3 nodes", (records[0].place, "gone/mm/1")),
        ProblemGroup("process", "last", "train.py, process 7", (records[1].place,)),
    ]
    opened(page, written(tmp_path, "a cache", replace(demo.source, groups=groups)).file)
    assert "groups" in ids(page)
    assert texts(page, "#grid-groups td.c-group") == ["graph of 3 nodes", "train.py, process 7"]
    assert texts(page, "#groups .lead")[0].endswith(f"{len(records) - 2} problems are in none of them.")  # fmt: skip
    names = ["All problems", "graph of 3 nodes (1 problem of 2)", "train.py, process 7 (1 problem)"]
    assert texts(page, "#choose-problems option") == names
    page.run(
        "(list => { list.value = '1'; list.dispatchEvent(new Event('change')); })"
        "(document.getElementById('choose-problems'))"
    )
    assert texts(page, "#problems .status") == [f"1 of {len(records)} rows: {names[2]}"]
    assert page.run("location.hash") == "#g/0.process.last"
    page.run("document.querySelector('#grid-problems tbody a').click()")
    page.wait("document.getElementById('record').open")
    assert texts(page, "#record .part a") == ["train.py, process 7"]
    page.run("document.querySelector('#record .part a').click()")
    page.wait("!document.getElementById('record').open")
    page.wait("document.activeElement.closest('#grid-problems tbody tr') !== null")
    assert texts(page, "#problems .status") == [f"1 of {len(records)} rows: {names[2]}"]
