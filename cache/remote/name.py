"""Names of the objects in a remote, below its URL. No listing is needed to find the record of a problem.

    v1/<environment>/environment.json                   fields of an environment
    v1/<environment>/records/<op>/<digest>/0000.json    one edition of a problem's record, and the kernels it needs
    v1/<environment>/files/ab/<sha256>                  one file of a kernel

All that begins with one format and one environment can expire together, by a rule on its prefix.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import part

MOST_EDITIONS = 32
"""Editions of one record: each is written by a machine that knew more than the one before."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = r"[0-9A-Za-z_][0-9A-Za-z_.+-]{0,127}"
_EDITION = re.compile(rf"v{SCHEMA}/({_PART})/records/({_PART})/({_PART})/\d{{4}}\.json")


class Place(NamedTuple):
    """What names a record: digest of its environment, operator, digest of its problem."""

    environment: str
    op: str
    digest: str


def environment_name(digest: str) -> str:
    """Return the name of an environment's fields."""
    return f"{prefix(digest)}environment.json"


def edition_name(place: Place, number: int) -> str:
    """Return the name of an edition of a record, from 0."""
    return f"{records_prefix(place.environment, place.op)}{part(place.digest)}/{number:04d}.json"


def file_name(environment: str, sha256: str) -> str:
    """Return the name of a kernel's file.

    Raises:
        ValueError: The checksum is none; it may come from the remote.
    """
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256[:80]!r} is no SHA-256")
    return f"{prefix(environment)}files/{sha256[:2]}/{sha256}"


def prefix(environment: str = "") -> str:
    """Return what the names of an environment begin with; without one, those of this format."""
    return f"v{SCHEMA}/{part(environment)}/" if environment else f"v{SCHEMA}/"


def records_prefix(environment: str, op: str = "") -> str:
    """Return what the names of an environment's records begin with; with an operator, those of its records."""
    folder = f"{prefix(environment)}records/"
    return f"{folder}{part(op)}/" if op else folder


def is_part(name: str) -> bool:
    """Return whether a name that a remote has listed may be an environment's or an operator's."""
    return re.fullmatch(_PART, name) is not None


def unused_name() -> str:
    """Return a name that no object has, other ones each time: what answers for it is no store."""
    return f"{prefix()}none/{secrets.token_hex(8)}"


def place_of(name: str) -> Place | None:
    """Return the place of the record of which this is the name of an edition; None if it is none."""
    match = _EDITION.fullmatch(name)
    return Place(*match.groups()) if match else None
