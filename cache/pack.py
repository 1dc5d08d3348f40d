"""A pack: the list of kernels that were compiled ahead of time for a GPU, and its file in a cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inductor_plugin.cache import atomic, document
from inductor_plugin.cache.document import (
    ForeignError,
    list_of,
    moment,
    table_of,
    text,
    typed,
    unknown,
)
from inductor_plugin.cache.entry import damage_of_folder
from inductor_plugin.cache.folder import Folder, Signature, is_damage, signature
from inductor_plugin.cache.guard import MISSING, is_folder, read
from inductor_plugin.cache.key import SCHEMA, digest_of
from inductor_plugin.cache.layout import Layout

_NAME_DIGITS = 16
_PLAIN = re.compile(r"[A-Za-z0-9][\w .+-]{0,63}", re.ASCII)
"""A GPU, an architecture or a processor: they become file names and lines of a wheel's metadata."""


@dataclass(frozen=True)
class Pack:
    """A set of kernels compiled together.

    Attributes:
        target: The GPU they were compiled for, by name: ``H200``.
        arch: Its architecture: ``sm_90a``.
        created: Time of compilation, in seconds since 1970.
        software: Versions of the plugin, Python, torch, Triton, nvcc and CUTLASS that compiled them; and
            ``machine``, the processor of the host they run on, as in `platform.machine`.
        models: Origin of their problems: ``module:function``, or the name of a standard set.
        problems: The problems they serve, each in one line.
        kernels: Digests of the kernels, sorted.
        extra: Fields of a newer version; they are written back as they were read.
    """

    target: str
    arch: str
    created: float
    software: Mapping[str, str]
    models: tuple[str, ...]
    problems: tuple[str, ...]
    kernels: tuple[str, ...]
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def name(self) -> str:
        """Its name in a cache, which depends only on the target and the kernels."""
        digest = digest_of({"target": self.target, "arch": self.arch, "kernels": self.kernels})
        return f"{self.arch}-{digest[:_NAME_DIGITS]}"

    @property
    def machine(self) -> str:
        """The host's processor: a CUTLASS kernel is a library of the host that launches it."""
        # Packs written before this field existed were compiled on x86-64.
        return self.software.get("machine", "x86_64")

    def fields(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        fields = asdict(self)
        extra = fields.pop("extra")
        return {**fields, **unknown(extra, {"format", "name", *fields})}


def dump_pack(pack: Pack) -> bytes:
    """Return the text of a pack's file, with its checksum."""
    return document.dump({"format": SCHEMA, "name": pack.name, **pack.fields()})


def parse_pack(data: bytes) -> Pack:
    """Return the pack that a file describes.

    Raises:
        ForeignError: The file is of another format.
        ValueError: It is damaged.
    """
    fields = document.load(data)
    document.check_format(fields, SCHEMA)
    try:
        pack = Pack(**typed(fields, _PACK), extra=unknown(fields, {"format", "name", *_PACK}))
    except ValueError as error:
        raise ValueError(f"it is not a pack: {error}") from error
    for name in ("target", "arch", "machine"):
        if not _PLAIN.fullmatch(getattr(pack, name)):
            raise ValueError(f"its {name} is {getattr(pack, name)!r}, which is no name of one")
    if fields.get("name") != pack.name:
        raise ValueError(f"its name {fields.get('name')!r} is not that of its kernels")
    return pack


def pack_files(packs: Path) -> list[Path]:
    """Return the files of packs, sorted; empty if the folder does not exist."""
    return sorted(packs.glob("*.json")) if is_folder(packs) else []


class PackShelf:
    """The packs of one cache directory."""

    def __init__(self, folder: Folder) -> None:
        """Keep packs in ``folder``."""
        self._folder = folder
        self._memory: dict[str, Pack] = {}
        self._digests: tuple[Signature | None, frozenset[str]] | None = None

    def put(self, pack: Pack) -> bool:
        """Add a pack; return False if the cache has it already."""
        path = self._folder.layout.pack(pack.name)
        stored = _pack_of(path)
        if isinstance(stored, Pack):
            return False
        self._folder.forget_damage(path)
        self._digests = None
        replaceable = stored is None or is_damage(stored)
        if self._folder.degraded is None and replaceable:
            try:
                atomic.write(path, dump_pack(pack), self._folder.layout.private)
            except OSError as error:
                self._folder.degrade(error)
            else:
                self._memory.pop(pack.name, None)
                return True
        if pack.name in self._memory:
            return False
        self._memory[pack.name] = pack
        self._folder.count_unwritten()
        return True

    def digests(self) -> frozenset[str]:
        """Return the digests of all kernels that came in packs."""
        current = signature(str(self._folder.layout.packs))
        if self._digests is None or self._digests[0] != current:
            digests = frozenset(digest for pack in self.everything() for digest in pack.kernels)
            self._digests = (current, digests)
        return self._digests[1]

    def problems(self, layouts: Sequence[Layout]) -> list[str]:
        """Return one line for each pack that is damaged, or of which some kernels are in none of these directories."""
        problems: list[str] = []
        for path, pack in self._read():
            if isinstance(pack, ForeignError):
                continue
            if not isinstance(pack, Pack):
                problems.append(f"pack {path.stem} is damaged: {pack}")
                continue
            lost = sum(
                not any(_is_sound(layout.kernel(digest)) for layout in layouts)
                for digest in pack.kernels
            )
            if lost:
                has_lost = f"has lost {lost} of its {len(pack.kernels)} kernels"
                problems.append(f"pack {pack.name} {has_lost}")
        return problems

    def everything(self) -> list[Pack]:
        """Return all packs; damaged ones are reported and skipped."""
        packs: dict[str, Pack] = {}
        for path, pack in self._read():
            if isinstance(pack, Pack):
                packs[pack.name] = pack
            else:
                self._folder.report(path, pack)
        return list({**packs, **self._memory}.values())

    def _read(self) -> Iterator[tuple[Path, Pack | OSError | ValueError]]:
        """Yield each file with its pack, or with the reason why it is damaged."""
        for path in pack_files(self._folder.layout.packs):
            pack = _pack_of(path)
            if pack is not None:
                yield path, pack


def _is_sound(kernel: Path) -> bool:
    return damage_of_folder(kernel) is None and is_folder(kernel)


def _pack_of(path: Path) -> Pack | OSError | ValueError | None:
    """Return the pack in a file, why it cannot be used, or None if the file does not exist."""
    try:
        return parse_pack(read(path))
    except MISSING:
        return None
    except (OSError, ValueError) as error:
        return error


_PACK: dict[str, Callable[[Any], Any]] = {
    "target": text,
    "arch": text,
    "created": moment,
    "software": table_of(text),
    "models": list_of(text),
    "problems": list_of(text),
    "kernels": list_of(text),
}
