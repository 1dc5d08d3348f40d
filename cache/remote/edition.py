"""One edition of a problem's record in a remote: what a machine knew when it wrote it. Pure.

No edition is replaced on purpose: two machines that tune one problem at once write one each, the later one with what both know, and
a reader that sees the last edition sees all. Where a store compares before it writes nothing is lost. Where it does not, a machine
looks at a name just before it writes, reads back what it has written, and once more before its process ends: one that has
been replaced is written again, unless the process is killed before. Its own cache has it then, and `push` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.document import list_of, table, table_of, typed
from inductor_plugin.cache.entry import KernelEntry, parse_entry
from inductor_plugin.cache.guard import MAX_DOCUMENT_BYTES
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import part
from inductor_plugin.cache.merge import combine
from inductor_plugin.cache.record import Record, from_fields, to_fields
from inductor_plugin.cache.remote.descriptions import MOST, Description, joined_descriptions
from inductor_plugin.cache.remote.name import Place, file_name

MAX_BYTES = MAX_DOCUMENT_BYTES
"""Largest edition that is read."""
MAX_KERNEL_BYTES = 256 << 20
"""Largest kernel that is taken from a remote; one of CUTLASS has 0.1 to 3 MB."""
_MAX_FILES = 16
REFINEMENTS = 8
"""Editions of a record up to which better samples alone are a reason to write one; the others are kept for new candidates."""


@dataclass(frozen=True)
class Edition:
    """A record with the kernels that travel with it.

    Attributes:
        record: The record, without a pin: that protects it in one cache.
        kernels: The fields of ``entry.json``, with the SHA-256 of each file, by the digest of the kernel.
        others: Other descriptions of these kernels: of other builds. An older version reads the first of each, and drops these.
    """

    record: Record
    kernels: Mapping[str, Description] = field(default_factory=dict[str, Description])
    others: Mapping[str, tuple[Description, ...]] = field(
        default_factory=dict[str, tuple[Description, ...]]
    )

    @property
    def place(self) -> Place:
        """What names the record."""
        return Place(self.record.environment, self.record.op, self.record.digest)

    def dump(self) -> bytes:
        """Return the edition as a document with a checksum."""
        fields = {"format": SCHEMA, "record": to_fields(self.record), "kernels": self.kernels}
        return document.dump({**fields, "others": self.others} if self.others else fields)

    def descriptions(self, digest: str) -> tuple[Description, ...]:
        """Return all descriptions of a kernel; none if it does not travel with the record."""
        first = self.kernels.get(digest)
        return () if first is None else (first, *self.others.get(digest, ()))

    def kernel(self, digest: str, number: int = 0) -> KernelEntry | None:
        """Return a build of a kernel that travels with the record, None if it does not, or in fewer builds.

        Raises:
            ValueError: Its fields are not those of this kernel, or it is larger than any is.
        """
        builds = self.descriptions(digest)
        if number >= len(builds):
            return None
        entry = parse_entry(document.dump(builds[number]), Path())
        if entry.digest != digest:
            raise ValueError(f"kernel {digest[:12]} is described as {entry.digest[:12]}")
        if entry.bytes > MAX_KERNEL_BYTES or not 0 < len(entry.files) <= _MAX_FILES:
            raise ValueError(
                f"kernel {digest[:12]} has {entry.bytes} bytes in {len(entry.files)} files; "
                f"the limits are {MAX_KERNEL_BYTES} and {_MAX_FILES}"
            )
        for name, sha256 in entry.files.items():
            file_name(self.record.environment, sha256)
            if part(name) != name:
                raise ValueError(f"kernel {digest[:12]} has a file named {name[:80]!r}")
        return entry


def edition_of(record: Record, kernels: Mapping[str, Mapping[str, Any]] | None = None) -> Edition:
    """Return what a machine writes of a record."""
    return Edition(replace(record, pinned=False), kernels or {})


def parse_edition(data: bytes, place: Place) -> Edition:
    """Return the edition in these bytes; every field's type was checked.

    Raises:
        ValueError: They are damaged, of another format, or another record's.
    """
    fields = document.load(data)
    document.check_format(fields, SCHEMA)
    values = typed(fields, _EDITION)
    others: Mapping[str, tuple[Description, ...]] = _OTHERS(fields.get("others", {}))
    kept = {digest: rest[: MOST - 1] for digest, rest in others.items()}
    edition = replace(edition_of(from_fields(values["record"]), values["kernels"]), others=kept)
    if edition.place != place:
        raise ValueError(
            f"it lies under the name of another record ({edition.record.place[:200]!r})"
        )
    return edition


def united(old: Edition | None, new: Edition, keys: Collection[str] = ()) -> Edition:
    """Return an edition of what both know; the order of many does not matter.

    Args:
        old: One, if there is one.
        new: Another one.
        keys: The public keys that count on this machine: what they have signed comes first.
    """
    if old is None and not new.others:
        return new
    sides = [new] if old is None else [old, new]
    kernels: dict[str, Description] = {}
    others: dict[str, tuple[Description, ...]] = {}
    for digest in dict.fromkeys(digest for side in sides for digest in side.kernels):
        said = [each for side in sides for each in side.descriptions(digest)]
        kernels[digest], *rest = joined_descriptions(said, keys)
        if rest:
            others[digest] = tuple(rest)
    record = new.record if old is None else combine(old.record, new.record)
    return Edition(record, kernels, others)


def is_news(old: Edition | None, new: Edition, number: int = 0) -> bool:
    """Return True if an edition says more than another one, beyond when it was written.

    From the number `REFINEMENTS` on only other candidates, results and kernels count: 100 machines that begin at once have
    100 sets of samples.
    """
    if old is None:
        return True
    is_other = _content(old) != _content(new)
    return is_other if number < REFINEMENTS else is_other and _outline(old) != _outline(new)


def _outline(edition: Edition) -> tuple[Mapping[str, Any], ...]:
    results = {name: measured.status for name, measured in edition.record.candidates.items()}
    return results, edition.kernels, edition.others


def _content(edition: Edition) -> tuple[Record, Mapping[str, Any], Mapping[str, Any]]:
    record = replace(edition.record, created=0.0, updated=0.0)
    return record, edition.kernels, edition.others


_EDITION: dict[str, Callable[[Any], Any]] = {"record": table, "kernels": table_of(table)}
_OTHERS = table_of(list_of(table))
