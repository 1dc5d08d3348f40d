"""Finding one thing in a cache by the start of its name."""

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
    """One thing in a cache.

    Attributes:
        kind: What it is.
        name: Its full name: ``environment/op/digest`` for a record, else a digest.
        path: Its file, or a kernel's folder.
    """

    kind: Kind
    name: str
    path: Path


def find(layout: Layout, key: str) -> Match:
    """Return the one thing whose name starts so.

    A record is named by the start of its digest, or by ``environment/digest`` or
    ``environment/op/digest``, each by its start.

    Raises:
        CacheError: Nothing is named so, or several things are.
    """
    parts = key.strip("/").split("/") if key.strip("/") else []
    found = [one for one in _everything(layout) if parts and _matches(one.name.split("/"), parts)]
    exact = [one for one in found if one.name.split("/")[-1] == parts[-1]]
    found = exact or found
    if len(found) == 1:
        return found[0]
    if not found:
        raise CacheError(
            f"nothing in {layout.root} has a key that starts with {key!r}; "
            "list what is there with `inductor-plugin ls`, kernels with `ls --kernels`"
        )
    names = [f"{one.kind} {_short(one.name)}" for one in found[:_SHOWN]]
    more = "" if len(found) <= _SHOWN else f" and {len(found) - _SHOWN} more"
    raise CacheError(
        f"key {key!r} is not unique: {', '.join(names)}{more}; "
        "write more of it, or environment/key for a record"
    )


def _everything(layout: Layout) -> list[Match]:
    records = [
        Match("record", f"{path.parent.parent.name}/{path.parent.name}/{path.stem}", path)
        for path in record_files(layout.records)
    ]
    kernels = [Match("kernel", path.name, path) for path in kernel_folders(layout.kernels)]
    environments = [
        Match("environment", path.parent.name, path) for path in environment_files(layout.records)
    ]
    return [*records, *kernels, *environments]


def _matches(name: list[str], key: list[str]) -> bool:
    if len(key) == 1:
        return name[-1].startswith(key[0])
    if len(key) == 2 and len(name) == 3:
        return name[0].startswith(key[0]) and name[2].startswith(key[1])
    return len(key) == len(name) and all(n.startswith(k) for n, k in zip(name, key, strict=True))


def _short(name: str) -> str:
    return "/".join(one[:12] for one in name.split("/"))
