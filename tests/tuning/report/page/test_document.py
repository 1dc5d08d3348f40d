from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from inductor_plugin.tuning.report.page.document import data_text, document
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import CacheSource
from tests.support.cache.records import measured, record

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "{{script}}{{data}}",
    "' onload='alert(1)",
    "&lt;b&gt;&#60;",
    "\u2028\u2029\ud800",
    "]]>",
)


class Elements(HTMLParser):
    """Collects the elements of a page, and the text of its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open = ""
        self.texts: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open = tag
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open in ("script", "style", "title"):
            name = f"{self.open}{self.tags.count(self.open)}"
            self.texts[name] = self.texts.get(name, "") + data


def parsed(page: str) -> Elements:
    elements = Elements()
    elements.feed(page)
    return elements


def page_of(text: str) -> str:
    odd = replace(
        record(measured(text, name=text, description=text, reason=text, kind=text)),
        describe=text,
        rejected={text: text},
        environment=text,
        op=text,
    )
    source = CacheSource(text, [odd], {text: {text: text}}, quarantined=[(text, text, text)])
    return document(page_model([source]), text)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_record_becomes_markup_script_or_style(text: str) -> None:
    usual, hostile = parsed(page_of("plain")), parsed(page_of(text))
    # The heading may break behind each slash, which is all that a name changes.
    assert [tag for tag in hostile.tags if tag != "wbr"] == usual.tags
    for name in ("style1", "script2"):
        assert hostile.texts[name] == usual.texts[name]
    assert len(hostile.attributes) == len(usual.attributes)


@pytest.mark.parametrize("text", HOSTILE)
def test_the_data_is_the_model_as_it_was(text: str) -> None:
    model = {"texts": [text], text: 1}
    written = data_text(model)
    assert json.loads(written) == model
    assert re.fullmatch(r"[\x20-\x7e]*", written)
    assert not re.search("[<>&]", written)


def test_the_policy_allows_the_pages_own_script_and_style_alone() -> None:
    page = parsed(page_of("plain"))
    policy = next(value for _, value in page.attributes if value and "default-src" in value)
    assert policy is not None
    for kind, name in (("style", "style1"), ("script", "script2")):
        digest = base64.b64encode(hashlib.sha256(page.texts[name].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_names_no_address() -> None:
    page = page_of("plain")
    assert set(re.findall(r"https?://[\w./]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(", page)


def test_a_page_without_records_has_less_than_a_hundred_kilobytes() -> None:
    empty = document(page_model([CacheSource("cache", [], {})]), "cache")
    assert len(empty.encode()) < 100_000  # docs/decisions.md says why it has no plotting library


def test_a_page_without_records_is_one_too() -> None:
    model: dict[str, Any] = page_model([CacheSource("empty", [], {})])
    assert model["records"] == []
    assert "empty" in parsed(document(model, "empty")).texts["title1"]
