"""The page of verbs: what ``--help`` says of each, and the committed schemas of its JSON."""

from __future__ import annotations

import json
from argparse import ArgumentParser, HelpFormatter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from inductor_plugin.cli import VERBS
from inductor_plugin.cli.verb import Verb

SCHEMAS = Path(__file__).resolve().parent / "schemas"
_WIDTH = 96


def verbs() -> str:
    """Return a section for each verb, in markdown."""
    return "\n".join(map(_section, VERBS))


def usage(verb: Verb) -> str:
    """Return the help of a verb, without the options that all verbs have."""
    formatter = partial(HelpFormatter, width=_WIDTH)
    parser = ArgumentParser(
        prog=f"inductor-plugin {verb.name}", formatter_class=formatter, add_help=False
    )
    verb.add_arguments(parser)
    return parser.format_help().rstrip()


def schemas_of(verb: Verb) -> list[Path]:
    """Return the schemas of what a verb says with ``--json``."""
    return [path for path in sorted(SCHEMAS.glob("*.json")) if path.stem.split("_")[0] == verb.name]


def rows(schema: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields of a schema with their types, nested ones below the field they are in.

    A list is ``[]``, and a mapping whose names are data (candidates, templates) ``{}``.
    """
    if place:
        yield place, _types(schema)
    for inside, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(inside), dict):
            yield from _inner(schema[inside], f"{place}{mark}")
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        below = rows(field, f"{place}.{name}" if place else name)
        first = next(below)
        yield first if name in required else (first[0], f"{first[1]}, or absent")
        yield from below


def _inner(schema: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
    """Yield what is inside a list or mapping; of objects their fields alone."""
    if "properties" in schema:
        below = rows(schema, place)
        next(below)
        yield from below
    elif schema:
        yield from rows(schema, place)


def _types(schema: Mapping[str, Any]) -> str:
    kinds = schema.get("type", "any")
    return kinds if isinstance(kinds, str) else " or ".join(sorted(kinds, key="null".__eq__))


def _section(verb: Verb) -> str:
    lines = [f"## {verb.name}", "", f"{verb.help[0].upper()}{verb.help[1:]}.", ""]
    lines += ["```text", usage(verb), "```", ""]
    for path in schemas_of(verb):
        schema = json.loads(path.read_text(encoding="utf-8"))
        lines += [f'??? note "JSON: {path.stem}"', ""]
        lines += [f"    [The schema](schemas/{path.name})", ""]
        lines += ["    | Field | Type |", "    |---|---|"]
        lines += [f"    | `{place}` | {kinds} |" for place, kinds in rows(schema)]
        lines.append("")
    return "\n".join(lines)
