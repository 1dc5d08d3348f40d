"""JSON schemas of what verbs say with ``--json``: read from examples, and compared with the committed ones.

An object whose names are data (candidates, templates, sources) is a map: `MAPS` has the places of those.
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
from jsonschema import Draft202012Validator

from inductor_plugin.cache import Store, open_store
from inductor_plugin.cli import main
from tests.support.cache.records import decision, kernel_key, measured, record
from tests.support.cli.command import filled
from tests.support.repository import REPOSITORY
from tests.support.trust.payload import FRIEND, STRANGER, Kernel

DRAFT = "https://json-schema.org/draft/2020-12/schema"
MAPS = frozenset(
    {
        "candidates", "rejected", "median_ms", "status", "sources", "provenance", "problem", "epilogue",
        "environment_fields", "templates", "device", "software", "numerics", "files",
    }
)  # fmt: skip
"""Names of the fields whose own names are data, or which are a key's fields as they are."""
NULL_OR: Mapping[str, str] = {
    **dict.fromkeys(("winner", "library", "kind", "kernel_digest", "torch", "cuda"), "string"),
    **dict.fromkeys(
        ("winner_ms", "library_ms", "median_ms", "spread_ms", "speedup", "recorded"), "number"
    ),
    **dict.fromkeys(
        ("rejected_speedup", "hit_rate", "limit_bytes", "error", "compile_s"), "number"
    ),
    **dict.fromkeys(("registers", "spills", "shared_bytes", "threads", "damaged"), "number"),
    **dict.fromkeys(("kernel", "nearest", "decision", "winner_kernel"), "object"),
}
"""Fields that may be null, whether or not an example has it, and their type otherwise."""
ANY = frozenset({"left", "right"})
"""Fields that have the values of any other field."""
FREE = frozenset({"provenance", "problem", "device", "software", "numerics", "epilogue", "extra"})
"""Objects with fields of an environment or of a problem, as they are in the cache."""
_NAMES = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}


def schema_of(examples: Sequence[Any], title: str) -> dict[str, Any]:
    """Return the schema that all examples follow, without room for other fields."""
    return {"$schema": DRAFT, "title": title, **_schema(list(examples), title)}


def _schema(values: list[Any], name: str) -> dict[str, Any]:
    if name in ANY:
        return {}
    if name in FREE and all(isinstance(value, dict) for value in values):
        return {"type": "object"}
    also = {"null", NULL_OR[name]} if name in NULL_OR else set[str]()
    kinds = sorted({_kind(value) for value in values} | also)
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    objects: list[dict[str, Any]] = [value for value in values if isinstance(value, dict)]
    arrays: list[list[Any]] = [value for value in values if isinstance(value, list)]
    if objects and name in MAPS:
        schema["additionalProperties"] = _merged([v for each in objects for v in each.values()])
    elif objects:
        names = dict.fromkeys(field for each in objects for field in each)
        schema["properties"] = {
            field: _schema([each[field] for each in objects if field in each], field)
            for field in names
        }
        schema["required"] = [field for field in names if all(field in each for each in objects)]
        schema["additionalProperties"] = False
    if arrays:
        schema["items"] = _merged([item for each in arrays for item in each])
    return schema


def _merged(values: list[Any]) -> dict[str, Any]:
    return _schema(values, "") if values else {}


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else _NAMES[type(value)]


FOLDER = REPOSITORY / "docs" / "schemas"
KEY = record().digest
"""Of two records, so that most verbs want its environment before it."""
PLACE = f"{record().environment[:8]}/{KEY[:8]}"
SCENARIOS: Mapping[str, Sequence[Sequence[str]]] = {
    "stats": (["stats"], ["stats", "--zero"]),
    "ls": (["ls"], ["ls", "--op", "mm", "--limit", "1"]),
    "ls_kernels": (["ls", "--kernels"],),
    "ls_quarantine": (["ls", "--quarantine"],),
    "show_record": (["show", PLACE],),
    "show_kernel": (
        ["show", kernel_key().digest[:12]],
        ["show", kernel_key("signed").digest, "--cache-dir", "{signed}"],
    ),
    "explain": (["explain", PLACE], ["explain", record(problem=2).digest[:12]]),
    "diff_keys": (["diff", PLACE, record(problem=2).digest[:12]],),
    "diff_sources": (["diff", "{cache}", "{pins}"], ["diff", "{cache}", "{other}"]),
    "verify": (["verify"], ["verify", "--cache-dir", "{signed}"]),
    "prune": (["prune", "--max-bytes", "1", "--dry-run"], ["prune", "--older-than", "1d"]),
    "export": (["export", "{folder}/x.tar.gz"],),
    "import": (["import", "--trust", "{folder}/x.tar.gz"],),
    "merge_caches": (["merge", "{folder}/merged", "{cache}", "{other}"],),
    "merge_pins": (["merge", "{folder}/merged.json", "{pins}"],),
    "pin": (["pin", "{folder}/new.json"],),
    "repro": (["repro", PLACE],),
    "report": (["report", "{folder}/x.html"],),
    "release": (["release", "bad-1"],),
    "unpin": (["unpin", "--all"],),
    "retune": (["retune", PLACE],),
    "rm": (["rm", record(problem=2).digest[:12]],),
    "clear": (["clear", "--force"],),
    "key": (["key", "new", "{folder}/key"], ["key", "show", "{folder}/key"]),
}
"""The calls whose JSON has a committed schema, in the order in which they run on one cache."""
ELSEWHERE: Mapping[str, str] = {
    "bench": "repro/test_script.py",
    "bench_regret": "repro/test_script.py",
    "check": "cli/test_pins.py",
    "demo": "cli/test_demo.py",
    "doctor": "cli/test_doctor.py",
    "precompile": "aot/test_precompile.py",
    "pull": "cli/test_remote.py",
    "push": "cli/test_remote.py",
    "tune": "cli/test_tune.py",
    "wheel": "cache/transfer/test_wheel.py",
}
"""Calls that need torch or a remote: the test which holds what they say against the committed schema (`follow`)."""


def follow(name: str, *said: Any) -> None:
    """Hold what a verb said, in one call or several, against its committed schema.

    With ``RENEW_SCHEMAS`` set, the schema is written anew first.

    Raises:
        jsonschema.ValidationError: It does not follow.
    """
    path = FOLDER / f"{name}.json"
    if os.environ.get("RENEW_SCHEMAS"):
        path.write_text(text_of(said, name), encoding="utf-8")
    schema = json.loads(path.read_text(encoding="utf-8"))
    validator: Any = Draft202012Validator(schema)
    for each in said:
        validator.validate(each)


def outputs(folder: Path) -> dict[str, list[Any]]:
    """Return what each call of `SCENARIOS` says, on a small cache in a new folder."""
    store, other = filled(folder / "cache"), open_store(folder / "other")
    other.put_record(record(measured("slow", 9.0), decision=decision("slow")))
    names = {
        "folder": folder,
        "signed": _signed(folder).root,
        "cache": store.root,
        "other": other.root,
        "pins": folder / "pins.json",
    }
    _said(store, ["pin", str(folder / "pins.json")])
    (folder / "merged").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", f"{FRIEND.public} a friend")
        return {
            name: [_said(store, [word.format_map(names) for word in call]) for call in calls]
            for name, calls in SCENARIOS.items()
        }


def _signed(folder: Path) -> Store:
    """Return a cache with a kernel that a trusted key has signed, and one of a stranger."""
    store = open_store(folder / "signed")
    for name, signer in (("signed", FRIEND), ("refused", STRANGER)):
        kernel = Kernel(folder / name / "files", {"kernel.so": b"library"}, name).signed(signer)
        kernel.fields["taken"] = {"by": "signature", "source": "x.pack"}
        kernel.place(store)
    return store


def _said(store: Store, call: Sequence[str]) -> Any:
    out, named = io.StringIO(), call[0] not in ("diff", "merge") or "{" in call[1]
    cache = (
        ["--cache-dir", str(store.root)] if named or "/" not in call[1] or call[1] == PLACE else []
    )
    cache = [] if call[0] == "key" else cache
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        status = main([call[0], *cache, *call[1:], "--json"])
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
