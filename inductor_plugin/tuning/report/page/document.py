"""The page as one HTML file: its content as data, its style and script inside, and nothing from a network. Pure."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

_SCRIPTS = (
    "data.js",
    "text.js",
    "plot.js",
    "grid.js",
    "charts.js",
    "record.js",
    "sections.js",
    "main.js",
)
"""The parts of the script, in their order."""


def document(model: Mapping[str, Any], title: str) -> str:
    """Return a page.

    What is in the model is data wherever it is from: the policy of the page allows no script, style or address but its own,
    the data cannot end its element, and the script writes text nodes alone.

    Args:
        model: As of `page_model`.
        title: Its title.
    """
    style, script = _asset("style.css"), _script()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_source(script)}",
            f"style-src {_source(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(title),
        "heading": html.escape(title).replace("/", "/<wbr>"),
        "style": style,
        "data": data_text(model),
        "script": script,
    }
    return _filled(_asset("page.html"), parts)


def data_text(model: Mapping[str, Any]) -> str:
    """Return the model as JSON that no HTML parser mistakes for markup, in ASCII."""
    text = json.dumps(model, separators=(",", ":"), allow_nan=False, check_circular=False)
    for character in "<>&":  # only within texts, where JSON takes the escape
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _filled(page: str, parts: Mapping[str, str]) -> str:
    """Return a text with ``{{name}}`` replaced once, whatever the parts contain."""
    pieces: list[str] = []
    for piece in page.split("{{"):
        name, closed, rest = piece.partition("}}")
        pieces += [parts[name], rest] if closed else [piece]
    return "".join(pieces)


@cache
def _asset(name: str) -> str:
    """Return a file without its indentation, 3 % of an empty page. No text of a script is longer than its line."""
    text = (files("inductor_plugin.tuning.report.page") / "assets" / name).read_text(
        encoding="utf-8"
    )
    return "".join(line.lstrip() for line in text.splitlines(keepends=True))


@cache
def _script() -> str:
    parts: Sequence[str] = [_asset(name) for name in _SCRIPTS]
    return f'(() => {{\n"use strict";\n{"".join(parts)}}})();\n'


def _source(text: str) -> str:
    """Return the text as a source of the policy: its SHA-256."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
