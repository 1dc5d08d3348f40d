"""JSON schemas of what verbs say with ``--json``: of the code's records and of examples, compared with the committed ones.

An object whose names are data (candidates, templates, sources) is a map: `MAPS` has the names of those. `typed.TYPES` says what
is a record of the code; the rest, and which fields are always there, is read from the examples.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cli import listing, main
from tests.support.cache.records import decision, measured, record
from tests.support.cli.command import filled
from tests.support.cli.committed import FOLDER, hold
from tests.support.cli.scenarios import OLD_MISS, PLACE, PROFILE, SCENARIOS, damaged, shared, signed
from tests.support.cli.typed import TYPES, records_of, schema_of_type
from tests.support.trust.payload import FRIEND

DRAFT = "https://json-schema.org/draft/2020-12/schema"
MAPS = frozenset(
    {
        "candidates", "rejected", "median_ms", "status", "sources", "provenance", "problem", "epilogue",
        "environment_fields", "templates", "device", "software", "numerics", "files", "instructions",
    }
)  # fmt: skip
"""Names of the fields whose own names are data, or which are a key's fields as they are."""
NULL_OR: Mapping[str, str] = {
    **dict.fromkeys(("winner", "kept", "library", "kernel_digest", "torch", "cuda"), "string"),
    **dict.fromkeys(
        ("winner_ms", "library_ms", "median_ms", "spread_ms", "speedup", "recorded"), "number"
    ),
    **dict.fromkeys(
        ("rejected_speedup", "hit_rate", "limit_bytes", "error", "compile_s"), "number"
    ),
    **dict.fromkeys(("registers", "spills", "shared_bytes", "threads"), "number"),
    **dict.fromkeys(("kernel", "nearest", "decision", "winner_kernel"), "object"),
}
"""Fields that may be null, whether or not an example has it, and their type otherwise."""
ANY = frozenset({"left", "right"})
"""Fields that have the values of any other field."""
FREE = frozenset({"provenance", "problem", "device", "software", "numerics", "epilogue", "extra"})
"""Objects with fields of an environment or of a problem, as they are in the cache."""
_NAMES = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}


def schema_of(examples: Sequence[Any], title: str) -> dict[str, Any]:
    """Return the schema that all examples follow, without room for other fields than those of `TYPES`."""
    schema = _schema(list(examples), "", TYPES.get(title, {}))
    return {"$schema": DRAFT, "title": title, **schema}


def _schema(values: list[Any], place: str, types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the values at a place, written as on the page of verbs: ``[].name``, ``candidates{}.kind``."""
    name = place.rpartition(".")[2]
    records = records_of(types[place]) if place in types else ()
    if place in types and not records:
        return schema_of_type(types[place])
    if name in ANY:
        return {}
    if name in FREE and all(isinstance(value, dict) for value in values):
        return {"type": "object"}
    also = {"null", NULL_OR[name]} if name in NULL_OR else set[str]()
    kinds = sorted({_kind(value) for value in values} | also | ({"object"} if records else set()))
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    objects: list[dict[str, Any]] = [value for value in values if isinstance(value, dict)]
    arrays: list[list[Any]] = [value for value in values if isinstance(value, list)]
    if objects and name in MAPS and not records:
        inner = [value for each in objects for value in each.values()]
        schema["additionalProperties"] = _inside(inner, f"{place}{{}}", types)
    elif objects or records:
        schema |= _object(objects, place, types, records)
    if arrays:
        schema["items"] = _inside([item for each in arrays for item in each], f"{place}[]", types)
    return schema


def _object(
    objects: list[dict[str, Any]], place: str, types: Mapping[str, Any], records: Sequence[Any]
) -> dict[str, Any]:
    """Return fields of an object: those of records, and those that only examples have; what all have is required."""
    parts = [schema_of_type(each) for each in records]
    typed: dict[str, Any] = {}
    for part in parts:
        typed |= part["properties"]
    names = [*dict.fromkeys(field for each in objects for field in each)]
    others = {
        field: _schema(
            [each[field] for each in objects if field in each],
            f"{place}.{field}".lstrip("."),
            types,
        )
        for field in names
        if field not in typed
    }
    always = [field for field in names if all(field in each for each in objects)]
    room = [part["additionalProperties"] for part in parts if part["additionalProperties"]]
    return {
        "properties": {**typed, **others},
        "required": always if objects else [*typed],
        "additionalProperties": room[0] if room else False,
    }


def _inside(values: list[Any], place: str, types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of all elements of lists, or values of maps, at a place; any without an example or a type."""
    return _schema(values, place, types) if values or place in types else {}


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else _NAMES[type(value)]


def follow(name: str, *said: Any) -> None:
    """Hold what a verb said, in one call or several, against its committed schema.

    With ``RENEW_SCHEMAS`` set, the schema is written anew first.

    Raises:
        jsonschema.ValidationError: It does not follow.
    """
    if os.environ.get("RENEW_SCHEMAS"):
        (FOLDER / f"{name}.json").write_text(text_of(said, name), encoding="utf-8")
    for each in said:
        hold(name, each)


def outputs(folder: Path) -> dict[str, list[Any]]:
    """Return what each call of `SCENARIOS` says, on small caches in a new folder."""
    store, other = filled(folder / "cache"), open_store(folder / "other")
    wrong = measured("fast", None, status="wrong")
    other.put_record(record(measured("slow", 9.0), wrong, decision=decision("slow")))
    store.put_misses(OLD_MISS)
    names = {
        "folder": folder,
        "signed": signed(folder).root,
        "shared": shared(folder).root,
        "damaged": damaged(folder).root,
        "cache": store.root,
        "other": other.root,
        "pins": folder / "pins.json",
        "profile": folder / "profile.json",
    }
    names["profile"].write_text(json.dumps(PROFILE), encoding="utf-8")
    _said(store.root, ["pin", str(folder / "pins.json")])
    (folder / "merged").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", f"{FRIEND.public} a friend")
        # Which of them is this machine's needs torch, and changes no field.
        patch.setattr(listing, "_this_machine", list)
        return {
            name: [_said(store.root, [word.format_map(names) for word in call]) for call in calls]
            for name, calls in SCENARIOS.items()
        }


def _said(root: Path, call: Sequence[str]) -> Any:
    """Return what a call says: words of the form NAME=VALUE before the verb are variables, ``--cache-dir`` is added."""
    variables = [word.partition("=") for word in call if word.startswith("INDUCTOR_PLUGIN_")]
    words, out = list(call[len(variables) :]), io.StringIO()
    are_paths = words[0] in ("diff", "merge") and "/" in words[1] and words[1] != PLACE
    cache = [] if are_paths or words[0] == "key" else ["--cache-dir", str(root)]
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        for name, _, value in variables:
            patch.setenv(name, value)
        status = main([words[0], *cache, *words[1:], "--json"])
    if status == 2:
        raise AssertionError(f"{call} could not be done")
    return json.loads(out.getvalue())


def text_of(examples: Sequence[Any], name: str) -> str:
    """Return the file of a schema."""
    return json.dumps(schema_of(examples, name), indent=1) + "\n"


def renew() -> None:
    """Write the schemas again: python -m tests.support.cli.schemas."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, said in outputs(Path(folder)).items():
            (FOLDER / f"{name}.json").write_text(text_of(said, name), encoding="utf-8")


if __name__ == "__main__":
    renew()
