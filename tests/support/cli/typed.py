"""Schemas of the code's own records: which fields JSON may have, whether or not an example has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from inductor_plugin.cache import KernelKey, Pack, Quarantined, Record, Resources
from inductor_plugin.cache.remote.amounts import Amounts
from inductor_plugin.cache.remote.transfer import Transferred
from inductor_plugin.cache.size.evict import Pruned
from inductor_plugin.cache.size.usage import Usage
from inductor_plugin.cache.transfer.archive import Imported
from inductor_plugin.cache.transfer.wheel import Wheel
from inductor_plugin.cache.trust.listing import Vouchers
from inductor_plugin.cache.verify import Damage
from inductor_plugin.cli.finding import Finding
from inductor_plugin.tuning.report.miss import Miss
from inductor_plugin.tuning.report.profile import ProfiledKernel

_NAMES: Mapping[Any, str] = {
    str: "string",
    Path: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    NoneType: "null",
}


@dataclass(frozen=True)
class Document:
    """A record that is read from a document: in place of ``extra``, a newer version's fields may be among its own.

    Attributes:
        kind: The record.
        others: The schema of those fields, True for any.
    """

    kind: Any
    others: Any = True


@dataclass(frozen=True)
class Nothing:
    """A record without fields: `Document` of it has any."""


REMOTE = make_dataclass(
    "REMOTE", [(f"remote_{name}", int) for name in vars(Amounts())], frozen=True
)
"""The counters of a cache that has used a remote."""
SPARE = make_dataclass(
    "SPARE",
    [
        *(("source", str), ("winner", str), ("winner_ms", float | None), ("samples", int)),
        *(("library", str | None), ("library_ms", float | None), ("reason", str)),
    ],
    frozen=True,
)
"""What a source has decided and does not use."""
TYPES: Mapping[str, Mapping[str, Any]] = {
    # Counters of newer versions are counters, too.
    "stats": {"": (Document(Usage, {"type": "number"}), REMOTE), "limit_bytes": int | None},
    "ls": {"[].kind": str | None},
    "ls_environments": {"[].threads": int | None, "[].cuda": str | None},
    "ls_quarantine": {"[]": Quarantined},
    "show_record": {"": Document(Record), "winner_kernel": Document(Resources)},
    "show_kernel": {
        "": Document(Nothing),
        "resources": Document(Resources),
        "key": KernelKey,
    },
    "show_environment": {"": Document(Nothing)},
    "explain": {"kernel": Document(Resources)},
    "explain_last": {
        "misses[]": Document(Miss),
        "pid": int | None,
        "program": str | None,
        "policy": str | None,
    },
    "explain_profile": {"kernels[]": ProfiledKernel},
    "verify": {"damaged[]": Damage, "left": int, "vouchers": Vouchers},
    "prune": {"": Pruned},
    "import": {"": Imported, "packs[]": Pack},
    "diff_sources": {"different[].spare[]": SPARE},
    "merge_caches": {"": Imported, "packs[]": Pack, "conflicts[].spare[]": SPARE},
    "merge_pins": {"conflicts[].spare[]": SPARE},
    "release": {"released[].problem": str | None},
    "repro": {"file": str | None, "script": str | None},
    "push": {"": Transferred},
    "pull": {"": Transferred},
    "precompile": {
        "pack": Pack,
        "problems[].failed": Sequence[Sequence[str]],
        "kernels[].instructions": Sequence[str],
        "counts.instructions": Mapping[str, int],
    },
    "bench_regret": {"records[].missing": Sequence[str]},
    "wheel": {"": Wheel},
    "doctor": {"[]": Finding},
}
"""Of each schema, by the place as the page of verbs writes it: the type of a value, or the records whose fields an object has.

An object has the fields of the examples besides. Which fields are always there is the examples' to say.
"""


def records_of(kind: Any) -> tuple[Any, ...]:
    """Return the records that a value of `TYPES` names, none if it is another type."""
    parts = cast("tuple[Any, ...]", kind) if isinstance(kind, tuple) else (kind,)
    are_records = all(isinstance(part, Document) or is_dataclass(part) for part in parts)
    return parts if are_records else ()


def schema_of_type(kind: Any, *, others: Any = False) -> dict[str, Any]:
    """Return the schema of all values of a type.

    Args:
        kind: A plain type, a list, tuple or mapping of types, an alternative of some, a dataclass, or a `Document`.
        others: What further fields a dataclass may have: none, any (True), or those of this schema. It then has no ``extra``.

    Raises:
        TypeError: The type has no schema.
    """
    if isinstance(kind, Document):
        return schema_of_type(kind.kind, others=kind.others)
    if kind is Any:
        return {}
    if kind in _NAMES:
        return {"type": _NAMES[kind]}
    if is_dataclass(kind):
        return _record(kind, others)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"type": "string"}
    if origin in (Union, UnionType):
        return _alternative([schema_of_type(each, others=others) for each in arguments])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        inner = schema_of_type(arguments[1], others=others)
        return {"type": "object", **({"additionalProperties": inner} if inner else {})}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of_type(arguments[0], others=others)}
    raise TypeError(f"{kind!r} has no schema; give it one in `schema_of_type`")


def _record(kind: Any, others: Any) -> dict[str, Any]:
    """Return the schema of a dataclass as `dataclasses.asdict` writes it, or a document with others' fields."""
    hints = get_type_hints(kind)
    known = [field for field in fields(kind) if not (others and field.name == "extra")]
    names = [field.name for field in known]
    return {
        "type": "object",
        "properties": {name: schema_of_type(hints[name], others=others) for name in names},
        # A document leaves out what is not known.
        "required": [field.name for field in known if not (others and field.default is None)],
        "additionalProperties": others,
    }


def _alternative(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of values that follow one of several schemas, of which one may be an object's and one a list's."""
    merged: dict[str, Any] = {}
    for schema in schemas:
        merged |= schema
    return {**merged, "type": sorted(schema["type"] for schema in schemas)}
