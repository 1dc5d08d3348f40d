"""What a cache has that is near to a problem it lacks: why a call was a miss."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from inductor_plugin.cache import document
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.key import Difference, differences
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.records import environment_files, parse_environment, parse_record

NEWEST = 16
"""Most records that are compared with a problem: reading and comparing one takes 0.2 ms, and the first compile of 200
products explains 200 misses."""

_SHOWN = 4
_TEXTS = ("op", "digest", "describe", "environment", "reason")


@dataclass(frozen=True)
class Near:
    """A record that a problem nearly has.

    Attributes:
        environment: Digest of the record's environment.
        digest: Digest of the record's problem.
        describe: The record's problem in one line.
        differences: The fields in which it differs, from the record to what was looked for: of the
            environment where the problem is the same, else of the problem.
    """

    environment: str
    digest: str
    describe: str
    differences: tuple[Difference, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


def nearest(
    layout: Layout, environment: str, op: str, digest: str, problem: Mapping[str, Any]
) -> Near | None:
    """Return the record of an operator and environment whose problem differs in the fewest fields.

    Only the newest records are compared, see `NEWEST`.
    """
    others = [
        Near(environment, r.digest, r.describe, tuple(differences(r.problem, problem)))
        for r in _newest(layout.environment(environment).parent / op)
        if r.digest != digest
    ]
    return min(others, key=lambda near: (len(near.differences), near.digest), default=None)


def elsewhere(
    layout: Layout, environment: str, op: str, digest: str, fields: Mapping[str, Any]
) -> Near | None:
    """Return the record of the same problem in the environment that differs in the fewest fields."""
    others: list[Near] = []
    for file in environment_files(layout.records):
        other = file.parent.name
        if other == environment:
            continue
        path = layout.record(other, op, digest)
        with suppress(OSError, ValueError):
            record = parse_record(read(path), path)
            content = parse_environment(read(file), other)
            changed = tuple(differences(content, fields))
            others.append(Near(other, digest, record.describe, changed))
    return min(others, key=lambda near: (len(near.differences), near.environment), default=None)


def differences_text(changes: tuple[Difference, ...]) -> str:
    """Return differences in one line, the first few of them."""
    shown = [f"{d.path}: {d.left!r} -> {d.right!r}" for d in changes[:_SHOWN]]
    if len(changes) > _SHOWN:
        shown.append(f"{len(changes) - _SHOWN} more fields")
    return ", ".join(shown) or "no field"


def parse_misses(data: bytes) -> dict[str, Any]:
    """Return the fields in the bytes of ``misses.json``.

    Raises:
        ValueError: It is damaged, or of another version.
    """
    fields = document.load(data)
    misses: Any = fields.get("misses")
    rows: list[Any] = misses  # narrowing by type would leave its elements unknown
    if not isinstance(misses, list) or not isinstance(fields.get("time"), (int, float)):
        raise ValueError("it has no list of misses and their time")  # noqa: TRY004  one kind of error
    for row in rows:
        if not isinstance(row, dict) or not all(
            isinstance(cast("Any", row).get(name), str) for name in _TEXTS
        ):
            raise ValueError("one of its misses lacks a field")
    return {name: fields.get(name) for name in ("pid", "time", "program", "policy", "misses")}


def _newest(folder: Path) -> Iterator[Record]:
    """Yield the valid records of an operator's folder, the newest first."""
    files: list[tuple[float, Path]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                with suppress(OSError):  # evicted meanwhile
                    files.append((entry.stat().st_mtime, Path(entry.path)))
    for _, path in sorted(files, reverse=True)[:NEWEST]:
        with suppress(OSError, ValueError):  # damaged: `verify` names it
            yield parse_record(read(path), path)
