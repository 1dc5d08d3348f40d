"""What verbs say with ``--json`` follows the committed schemas; `python -m tests.support.cli.schemas` renews them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.cli import schemas
from tests.support.cli.committed import BY_OPTION, FOLDER, validator
from tests.support.cli.scenarios import ELSEWHERE, SCENARIOS
from tests.support.cli.typed import TYPES, Document, schema_of_type
from tests.support.repository import REPOSITORY


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return schemas.outputs(tmp_path_factory.mktemp("schemas"))


def committed(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_json_of_a_verb_follows_its_schema(name: str, said: dict[str, list[Any]]) -> None:
    schema = validator(committed(name))
    for example in said[name]:
        schema.validate(example)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_schema_is_renewed_with_the_fields(name: str, said: dict[str, list[Any]]) -> None:
    assert committed(name) == json.loads(schemas.text_of(said[name], name))


def test_each_committed_schema_is_of_a_call() -> None:
    names = {*SCENARIOS, *ELSEWHERE}
    assert {path.stem for path in FOLDER.glob("*.json")} == names
    assert {name for options in BY_OPTION.values() for name in options.values()} <= names
    for name, test in ELSEWHERE.items():
        text = (REPOSITORY / "tests" / test).read_text(encoding="utf-8")
        assert f'follow("{name}", ' in text, test


def test_a_field_that_is_new_gone_or_of_another_type_does_not_follow(
    said: dict[str, list[Any]],
) -> None:
    schema = validator(committed("stats"))
    fields: dict[str, Any] = said["stats"][0]
    changes: tuple[dict[str, Any], ...] = ({"new": "1"}, {"cache_dir": 3}, {"remote_hits": "1"})
    for change in changes:
        assert not schema.is_valid({**fields, **change})
    gone = deepcopy(fields)
    del gone["cache_dir"]
    assert not schema.is_valid(gone)


def test_names_that_are_data_are_no_fields(tmp_path: Path) -> None:
    schema = schemas.schema_of([{"rejected": {"cutlass": "why"}}], "x")
    holds = validator(schema)
    assert holds.is_valid({"rejected": {"triton": "other"}})
    assert not holds.is_valid({"rejected": {"triton": 3}})


def test_fields_of_which_no_example_knows_are_in_the_schema_and_optional() -> None:
    """They are in the types of the code: `cache.record`, `cache.remote.exchange`."""
    record, stats = committed("show_record"), committed("stats")
    assert record["properties"]["epilogue"] == {
        "type": "object",
        "additionalProperties": {"type": "string"},
    }
    assert "epilogue" not in record["required"]
    optional = {"remote_asked", "remote_waited_ms", "cache_read", "read_records", "read_kernels"}
    assert optional <= stats["properties"].keys()
    assert optional.isdisjoint(stats["required"])
    assert committed("diff_keys")["items"]["required"] == ["field"]
    row = committed("verify")["properties"]["damaged"]["items"]
    assert row["required"] == ["kind", "path", "reason"]
    assert "repair" in row["properties"]


def at(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the part of a schema at a place, as `TYPES` writes it."""
    for name in place.replace("[]", ".[]").split("."):
        if name:
            schema = schema["items"] if name == "[]" else schema["properties"][name]
    return schema


@pytest.mark.parametrize("name", sorted(ELSEWHERE.keys() & TYPES.keys()))
def test_what_other_tests_renew_has_the_fields_of_the_codes_records(name: str) -> None:
    """A new field of a record is seen here, where no torch is needed."""
    for place, kind in TYPES[name].items():
        part, typed = at(committed(name), place), schema_of_type(kind)
        fields = typed.get("properties", {})
        assert {field: part.get("properties", {}).get(field) for field in fields} == fields
        assert part["type"] == typed["type"]


@dataclass(frozen=True)
class Part:
    """A record with a newer version's fields."""

    path: Path
    extra: Mapping[str, Any]


@dataclass(frozen=True)
class Whole:
    """A record with each kind of type."""

    part: Part | None
    rows: tuple[Part, ...]
    counts: Mapping[str, int]
    state: Literal["on", "off"]
    value: Any


def test_the_schema_of_a_record_has_all_its_fields_with_their_types() -> None:
    schema = schema_of_type(Whole)
    holds = validator(schema)
    part = {"path": "p", "extra": {"new": 1}}
    whole: dict[str, Any] = {
        "part": None,
        "rows": [part],
        "counts": {"any": 1},
        "state": "on",
        "value": [None],
    }
    assert holds.is_valid(whole)
    assert holds.is_valid({**whole, "part": part})
    assert not holds.is_valid({**whole, "part": {**part, "new": 1}})
    assert not holds.is_valid({**whole, "counts": {"any": "1"}})
    assert not holds.is_valid({**whole, "rows": [None]})
    assert not holds.is_valid({name: value for name, value in whole.items() if name != "rows"})
    with pytest.raises(TypeError, match="has no schema"):
        schema_of_type(complex)


def test_a_document_may_have_a_newer_versions_fields_in_place_of_extra() -> None:
    holds = validator(schema_of_type(Document(Whole)))
    whole: dict[str, Any] = {
        "part": {"path": "p", "new": 1},
        "rows": [],
        "counts": {},
        "state": "on",
        "value": 1,
    }
    assert holds.is_valid({**whole, "newer": "x"})
    assert not holds.is_valid({**whole, "part": {"new": 1}})
