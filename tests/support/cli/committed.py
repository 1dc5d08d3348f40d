"""The committed schemas of what verbs say with ``--json``: which of them a call has, and whether an answer follows it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.repository import REPOSITORY

FOLDER = REPOSITORY / "docs" / "schemas"
BY_OPTION: Mapping[str, Mapping[str, str]] = {
    "stats": {"--zero": "stats_zero", "-z": "stats_zero"},
    "ls": {
        "--kernels": "ls_kernels",
        "--quarantine": "ls_quarantine",
        "--environments": "ls_environments",
    },
    "explain": {"--last": "explain_last", "--profile": "explain_profile"},
    "bench": {"--regret": "bench_regret"},
}
"""Options that change the fields of a verb's JSON, and the schema that it then has."""


def schema_name(words: Sequence[str], said: Any) -> str:
    """Return the name of the schema of what a call says.

    Args:
        words: The verb and its arguments.
        said: What it says; entries of different kinds have different fields.
    """
    verb, *rest = words
    for option, name in BY_OPTION.get(verb, {}).items():
        if option in rest:
            return name
    if verb == "show":
        return f"show_{said['kind']}"
    if verb == "diff":
        return "diff_keys" if isinstance(said, list) else "diff_sources"
    if verb == "merge":
        return "merge_pins" if "pins" in said else "merge_caches"
    return verb


def hold(name: str, said: Any) -> None:
    """Hold an answer against a committed schema.

    Raises:
        FileNotFoundError: There is none of this name.
        jsonschema.ValidationError: It does not follow.
    """
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    _parsed(text).validate(said)


def hold_answer(words: Sequence[str], said: Any) -> None:
    """Hold what a call says against the schema that this call has; raises as `hold` does."""
    hold(schema_name(words, said), said)


def validator(schema: Any) -> Any:
    """Return the validator of a schema.

    Raises:
        jsonschema.SchemaError: It is none.
    """
    # Here, because it takes 2.5 s, most of them for the grammars of URLs, in each process that imports it.
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@functools.cache
def _parsed(text: str) -> Any:
    return validator(json.loads(text))
