"""Functions of the page's scripts, in node, and its colours; what the whole page does is in `browser`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache import Record
from inductor_plugin.tuning.pins.pin import pin_file, pin_of_record
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import (
    BenchSource,
    CacheSource,
    PinSource,
    ProblemGroup,
)
from tests.support.cache.measured_gpu import H100, gpu_records
from tests.support.cache.records import decision, measured, record
from tests.support.page_scripts import ASSETS, evaluated

FAST, SLOW = "cpp_gemm-0123456789ab", "_mkl_linear-ba9876543210"
CONTRAST = 4.5
"""Of text, by WCAG 2 AA."""


@pytest.mark.parametrize(
    "values", [[1e-300, 1e300], [5e-324, 1.7e308], [1e308, 1e308], [0, 1], [], [2.0]]
)
def test_every_range_has_finite_ends_and_few_ticks(values: list[float]) -> None:
    low, high, ticks = evaluated(
        f"(() => {{ const [a, b] = room({json.dumps(values)}, 0.06);"
        " return [a, b, ticks(logarithmic(a, b, 0, 100), 7)]; })()",
        "plot.js",
    )
    assert 0 < low < high < float("inf")
    assert len(ticks) < 20


@pytest.mark.parametrize("ends", ["0, Infinity", "1, Infinity", "NaN, 1", "0, 1", "-1, 8"])
@pytest.mark.parametrize("scale", ["logarithmic", "linear"])
def test_ticks_end_for_every_scale(scale: str, ends: str) -> None:
    assert len(evaluated(f"ticks({scale}({ends}, 0, 100), 7)", "plot.js")) < 20


def differing(model: dict[str, Any]) -> list[bool]:
    """Return of each pair of a page whether it says that another kernel was chosen."""
    return evaluated("raw.pairs.map(([a, b]) => differs(records[a], records[b]))", model=model)


def chosen(winner: str, description: str = "", **fields: Any) -> Any:
    rows = [measured(FAST, 1.0, name="cpp_gemm", description=description)]
    rows.append(measured(SLOW, 2.0, name="_mkl_linear", kind="extern", description=description))
    return record(*rows, decision=replace(decision(winner), library=SLOW), **fields)


def commands(*rows: Record, option: str = "") -> list[str | None]:
    """Return what the record's dialog says of the command line, for each record of a cache."""
    model = page_model([CacheSource("c", rows, {}, option=option)])
    scripts = ("text.js", "record.js")
    return evaluated("records.map((record) => commandOf('explain', record))", *scripts, model=model)


def test_a_command_names_the_environment_and_the_cache_of_its_record() -> None:
    known = replace(chosen(FAST), environment="a" * 64, digest="b" * 64)
    elsewhere = replace(known, environment="c" * 64)
    option = "--cache-dir '/x y'"
    assert commands(known, elsewhere, option=option) == [
        f"inductor-plugin explain {environment * 12}/{'b' * 12} {option}" for environment in "ac"
    ]
    assert commands(known) == [f"inductor-plugin explain {'a' * 12}/{'b' * 12}"]


@pytest.mark.parametrize("key", ["$(id)", "a;id #", "", "a b", "`id`", "../a"])
def test_a_key_that_is_none_is_in_no_command(key: str) -> None:
    known = replace(chosen(FAST), environment="a" * 64, digest="b" * 64)
    assert commands(replace(known, digest=key), replace(known, environment=key)) == [None, None]


def test_a_cache_differs_from_pins_where_another_kernel_was_chosen() -> None:
    same, other = chosen(FAST), chosen(FAST, problem=2)
    moved = replace(other, decision=replace(decision(SLOW), library=SLOW))
    pins = [pin for each in (same, moved) if (pin := pin_of_record(each)) is not None]
    cache = CacheSource("cache", [same, other], {})
    model = page_model([cache, PinSource("pins", pin_file(pins, {}))])
    assert differing(model) == [False, True]
    assert evaluated("records.map((record) => record.winner)", model=model) == [
        "cpp_gemm",
        "cpp_gemm",
        "cpp_gemm",
        "_mkl_linear",
    ]


def test_two_kernels_of_a_name_differ_by_their_identity() -> None:
    left = record(measured("cpp-000000000000", name="cpp"), decision=decision("cpp-000000000000"))
    right = record(measured("cpp-111111111111", name="cpp"), decision=decision("cpp-111111111111"))
    for environment, expected in ((left.environment, True), ("elsewhere", False)):
        there = replace(right, environment=environment)
        sources = [CacheSource("a", [left], {}), CacheSource("b", [there], {})]
        assert differing(page_model(sources)) == [expected]


def test_a_configuration_tells_kernels_of_two_environments_apart() -> None:
    there = chosen(FAST, "block_m=64", environment="elsewhere")
    sources = [CacheSource("a", [chosen(FAST, "block_m=32")], {}), CacheSource("b", [there], {})]
    assert differing(page_model(sources)) == [True]


@pytest.mark.parametrize(
    ("kind", "name", "family"),
    [
        ("extern", "_mkl_linear", "library"),
        ("cpp", "cpp_gemm", "cpp"),
        ("triton", "triton_mm", "triton"),
        ("template", "fused.cutlass.gemm+rest", "cutlass"),
        ("template", "mla_latent", "other"),  # has "aten" within
        ("template", "my_cuda_mm", "other"),
        ("template", "mm_library", "other"),
        ("template", "tritonlike_mm", "other"),
    ],
)
def test_the_family_of_a_kernel_is_its_kind_or_a_word_of_its_name(
    kind: str, name: str, family: str
) -> None:
    assert evaluated(f"family({json.dumps(kind)}, {json.dumps(name)})") == family


def roofline_lack(source: CacheSource | PinSource) -> str | None:
    """Return what a page says where no roofline is drawn."""
    scripts = ("text.js", "charts.js", "sections.js")
    return evaluated("rooflineLack()", *scripts, model=page_model([source]))


def test_why_there_is_no_roofline_is_told_apart() -> None:
    recorded = next(gpu_records(1))
    pin = pin_of_record(recorded)
    assert pin is not None
    named = replace(pin, fields=recorded.problem)
    cpu = {"device": {"type": "cpu", "name": "a CPU"}}
    no_work = "Of no problem here are both the work and the time known"
    no_peak = "The peak rates of a CPU are not known to the plugin, so there is no roof to draw."
    rate = " Open a problem to see the rate that it reached."
    assert (roofline_lack(PinSource("p", pin_file([pin], {pin.environment: H100}))) or "").startswith(no_work)  # fmt: skip
    assert roofline_lack(PinSource("p", pin_file([pin], {pin.environment: cpu}))) == no_peak
    assert roofline_lack(PinSource("p", pin_file([named], {pin.environment: cpu}))) == no_peak + rate  # fmt: skip
    assert roofline_lack(CacheSource("c", [recorded], {recorded.environment: cpu})) == no_peak + rate  # fmt: skip
    assert roofline_lack(CacheSource("c", [], {})) is None


def test_each_record_has_an_address_of_its_own() -> None:
    digests = ["0123456789abcdef" + rest for rest in ("0", "1", "2")] + ["%41", "a b", "%"]
    rows = [replace(chosen(FAST), digest=digest) for digest in digests]
    model = page_model([CacheSource("cache", rows, {})])
    opened = evaluated(
        "records.map((record) => byId.get(addressed(`#${record.id}`)) === record)", model=model
    )
    assert opened == [True] * len(rows)


@pytest.mark.parametrize(("hash_", "name"), [("#a%20b", "a b"), ("#%", "%"), ("#%zz", "%zz")])
def test_an_address_that_is_no_escaped_text_is_taken_as_it_is(hash_: str, name: str) -> None:
    assert evaluated(f"addressed({json.dumps(hash_)})") == name


def test_no_two_entries_of_the_list_of_groups_have_the_same_words() -> None:
    known = chosen(FAST)
    rows = [ProblemGroup("model", key, "Gpt.forward, train.py", (known.place,)) for key in "ab"]
    last = ProblemGroup("process", "last", "train.py, process 7", (known.place,))
    alone = page_model([CacheSource("/x/cache", [known], {}, groups=[*rows, last])])
    assert evaluated("groupLabels()", "text.js", model=alone) == [
        "Gpt.forward, train.py (1 problem) (a)",
        "Gpt.forward, train.py (1 problem) (b)",
        "train.py, process 7 (1 problem)",
    ]
    sources = [CacheSource(f"/x/{name}", [known], {}, groups=[last]) for name in ("old", "new")]
    assert evaluated("groupLabels()", "text.js", model=page_model(sources)) == [
        "train.py, process 7 (1 problem), old",
        "train.py, process 7 (1 problem), new",
    ]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["/x/a/cache", "/x/b/cache"], ["a/cache", "b/cache"]),
        (["/x/cache", "/x/cache"], ["cache (1)", "cache (2)"]),
        (["/x/cache"], ["cache"]),
        (["/x/a/1", "/x/a/2", "/x/b"], ["a/1", "a/2", "b"]),
    ],
)
def test_sources_have_short_names_that_tell_them_apart(names: list[str], short: list[str]) -> None:
    model = page_model([CacheSource(name, [chosen(FAST)], {}) for name in names])
    assert evaluated("shortNames", model=model) == short


UNREAD = {"version", "detail"}
"""What no script reads: it is for programs that take the content out of a page."""


def unread(model: dict[str, Any], scripts: str) -> list[str]:
    """Return what a page has of its whole content, and of each source, that no script reads."""
    names = [name for name in model if not re.search(rf"\braw\.{name}\b", scripts)]
    of_sources = dict.fromkeys(name for source in model["sources"] for name in source)
    read = r"\bsources?(?:\[(?:[^][]|\[[^]]*\])*\])?\.{}\b"
    return names + [name for name in of_sources if not re.search(read.format(name), scripts)]


def test_scripts_read_all_that_a_page_has() -> None:
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ASSETS.glob("*.js")))
    known = chosen(FAST)
    pins = [pin for each in [known] if (pin := pin_of_record(each)) is not None]
    sources = (
        CacheSource("cache", [known], {}),
        PinSource("pins", pin_file(pins, {})),
        BenchSource("bench", {"ms": 1.0}),
    )
    model = page_model(sources)
    assert set(unread(model, scripts)) == UNREAD
    (cache, *others) = model["sources"]
    model |= {"energy": [], "sources": [{**cache, "power": 1}, *others]}
    assert set(unread(model, scripts)) == {*UNREAD, "energy", "power"}


def test_a_page_has_every_section_that_is_written() -> None:
    sections = re.findall(r"^function (\w+Sections?)\(", (ASSETS / "sections.js").read_text("utf-8"), re.MULTILINE)  # fmt: skip
    main = (ASSETS / "main.js").read_text("utf-8")
    parts = main[main.index("const parts = [") : main.index("main.append(")]
    assert len(sections) > 10
    assert sorted(re.findall(r"\w+Sections?\b", parts)) == sorted(sections)


def colours() -> tuple[dict[str, str], dict[str, str]]:
    """Return the colours of the light and of the dark page, by name."""
    style = (ASSETS / "style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    return dict(re.findall(r"--(\w+): (#\w{6})", light)), dict(re.findall(r"--(\w+): (#\w{6})", dark))  # fmt: skip


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("back", ["page", "surface", "hover"])
@pytest.mark.parametrize("text", ["ink", "soft", "library", "cpp", "triton", "cutlass", "other"])
def test_texts_and_badges_are_read_on_every_ground(text: str, back: str) -> None:
    for named in colours():
        assert contrast(named[text], named[back]) >= CONTRAST


def test_dark_colours_are_for_screens_alone() -> None:
    style = (ASSETS / "style.css").read_text()
    queries = re.findall(r"@media[^{]*prefers-color-scheme: dark[^{]*", style)
    assert [query.strip() for query in queries] == ["@media screen and (prefers-color-scheme: dark)"]  # fmt: skip


def test_narrow_is_a_screen_and_no_paper() -> None:
    """A4 without its margins is narrower than many a phone held across."""
    style = (ASSETS / "style.css").read_text()
    queries = re.findall(r"@media[^{]*max-width[^{]*", style)
    assert [query.strip() for query in queries] == ["@media screen and (max-width: 46rem)"]
