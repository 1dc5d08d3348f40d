"""What verbs say with ``--json`` follows the committed schemas; `python -m tests.support.cli.schemas` renews them."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.cli import schemas
from tests.support.repository import REPOSITORY


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return schemas.outputs(tmp_path_factory.mktemp("schemas"))


def committed(name: str) -> Any:
    return json.loads((schemas.FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", schemas.SCENARIOS)
def test_the_json_of_a_verb_follows_its_schema(name: str, said: dict[str, list[Any]]) -> None:
    schema = committed(name)
    Draft202012Validator.check_schema(schema)
    for example in said[name]:
        validator: Any = Draft202012Validator(schema)
        validator.validate(example)


@pytest.mark.parametrize("name", schemas.SCENARIOS)
def test_a_schema_is_renewed_with_the_fields(name: str, said: dict[str, list[Any]]) -> None:
    assert committed(name) == json.loads(schemas.text_of(said[name], name))


def test_each_committed_schema_is_of_a_call() -> None:
    names = {*schemas.SCENARIOS, *schemas.ELSEWHERE}
    assert {path.stem for path in schemas.FOLDER.glob("*.json")} == names
    for name, test in schemas.ELSEWHERE.items():
        text = (REPOSITORY / "tests" / test).read_text(encoding="utf-8")
        assert f'follow("{name}", ' in text, test


def test_a_field_that_is_new_gone_or_of_another_type_does_not_follow(
    said: dict[str, list[Any]],
) -> None:
    schema: Any = Draft202012Validator(committed("stats"))
    fields: dict[str, Any] = said["stats"][0]
    changes: tuple[dict[str, Any], ...] = ({"new": 1}, {"cache_dir": 3})
    for change in changes:
        assert not schema.is_valid({**fields, **change})
    gone = deepcopy(fields)
    del gone["cache_dir"]
    assert not schema.is_valid(gone)


def test_names_that_are_data_are_no_fields(tmp_path: Path) -> None:
    schema = schemas.schema_of([{"rejected": {"cutlass": "why"}}], "x")
    validator: Any = Draft202012Validator(schema)
    assert validator.is_valid({"rejected": {"triton": "other"}})
    assert not validator.is_valid({"rejected": {"triton": 3}})
