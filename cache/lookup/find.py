"""Finds an entry of a cache by a prefix of its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.records import environment_files, record_files
from inductor_plugin.errors import CacheError

Kind = Literal["record", "kernel", "environment"]

_SHOWN = 5


@dataclass(frozen=True)
class Match:
    """An entry of a cache.

    Attributes:
        kind: Kind of the entry.
        name: Its full name: ``environment/op/digest`` for a record, else a digest.
        path: Its file, or a kernel's folder.
    """

    kind: Kind
    name: str
    path: Path


def find(layout: Layout, key: str) -> Match:
    """Return the only entry whose name has this prefix.

    A record is named by a prefix of its digest, or by ``environment/digest`` or
    ``environment/op/digest``, each part a prefix.

    Raises:
        CacheError: No entry matches, or several do.
    """
    parts = key.strip("/").split("/") if key.strip("/") else []
    matches = _all(layout, parts) if parts else []
    exact = [match for match in matches if match.name.split("/")[-1] == parts[-1]]
    matches = exact or matches
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise CacheError(
            f"nothing in {layout.root} has a key that starts with {key!r}; "
            "list what is there with `inductor-plugin ls`, kernels with `ls --kernels`"
        )
    names = [f"{match.kind} {_short(match.name)}" for match in matches[:_SHOWN]]
    more = "" if len(matches) <= _SHOWN else f" and {len(matches) - _SHOWN} more"
    raise CacheError(
        f"key {key!r} is not unique: {', '.join(names)}{more}; "
        "write more of it, or environment/key for a record"
    )


def _all(layout: Layout, key: list[str]) -> list[Match]:
    """Return all entries with a key; of a million records only those get a path whose own name begins with its last part."""
    records = [
        Match("record", f"{path.parent.parent.name}/{path.parent.name}/{path.stem}", path)
        for path in record_files(layout.records, key[-1])
    ]
    kernels = [Match("kernel", path.name, path) for path in kernel_folders(layout.kernels)]
    environments = [
        Match("environment", path.parent.name, path) for path in environment_files(layout.records)
    ]
    everything = (*records, *kernels, *environments)
    return [match for match in everything if _matches(match.name.split("/"), key)]


def _matches(name: list[str], key: list[str]) -> bool:
    if len(key) == 1:
        return name[-1].startswith(key[0])
    if len(key) == 2 and len(name) == 3:
        return name[0].startswith(key[0]) and name[2].startswith(key[1])
    return len(key) == len(name) and all(n.startswith(k) for n, k in zip(name, key, strict=True))


def _short(name: str) -> str:
    """Return a name with its digests cut, an operator's name whole."""
    parts = name.split("/")
    return "/".join(part if index == 1 else part[:12] for index, part in enumerate(parts))
