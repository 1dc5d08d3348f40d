"""A pack: which kernels were compiled ahead of time, for which GPU, as it lies in a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import atomic, document
from inductor_plugin.cache.entry import damage_of_folder
from inductor_plugin.cache.folder import MISSING, Folder, Signature, signature
from inductor_plugin.cache.key import SCHEMA, digest_of

_NAME_DIGITS = 16


@dataclass(frozen=True)
class Pack:
    """A set of kernels that belong together.

    Attributes:
        target: The GPU they were compiled for, by name: ``H200``.
        arch: Its architecture: ``sm_90a``.
        created: When, in seconds since 1970.
        software: What compiled them: versions of the plugin, torch, Triton, nvcc and CUTLASS; and
            ``machine``, the processor of the host they run on, as `platform.machine` names it.
        models: Where their problems come from: ``module:function``, or the name of a standard set.
        problems: The problems they serve, each in one line.
        kernels: Digests of the kernels, sorted.
    """

    target: str
    arch: str
    created: float
    software: Mapping[str, str]
    models: tuple[str, ...]
    problems: tuple[str, ...]
    kernels: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name in a cache, which follows from the target and the kernels alone."""
        found = digest_of({"target": self.target, "arch": self.arch, "kernels": self.kernels})
        return f"{self.arch}-{found[:_NAME_DIGITS]}"

    @property
    def machine(self) -> str:
        """The host's processor: a CUTLASS kernel is a library of the host that launches it."""
        # Packs from before this was noted were made on x86-64.
        return self.software.get("machine", "x86_64")

    def fields(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


def dump_pack(pack: Pack) -> bytes:
    """Return the text of a pack's file, with its checksum."""
    return document.dump({"format": SCHEMA, "name": pack.name, **pack.fields()})


def parse_pack(data: bytes) -> Pack:
    """Return the pack that a file describes.

    Raises:
        ValueError: The text is damaged or of another format.
    """
    fields = document.load(data)
    if fields.get("format") != SCHEMA:
        raise ValueError(f"its format is {fields.get('format')!r}, not {SCHEMA}")
    try:
        pack = Pack(
            target=str(fields["target"]),
            arch=str(fields["arch"]),
            created=float(fields["created"]),
            software={str(k): str(v) for k, v in fields["software"].items()},
            models=tuple(map(str, fields["models"])),
            problems=tuple(map(str, fields["problems"])),
            kernels=tuple(map(str, fields["kernels"])),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a pack: {type(error).__name__}: {error}") from error
    if fields.get("name") != pack.name:
        raise ValueError(f"its name {fields.get('name')!r} is not that of its kernels")
    return pack


def pack_files(packs: Path) -> list[Path]:
    """Return the files of packs, sorted; none if there is no such folder."""
    return sorted(packs.glob("*.json")) if packs.is_dir() else []


class PackShelf:
    """The packs of one cache directory."""

    def __init__(self, folder: Folder) -> None:
        """Keep packs in ``folder``."""
        self._folder = folder
        self._memory: dict[str, Pack] = {}
        self._digests: tuple[Signature | None, frozenset[str]] | None = None

    def put(self, pack: Pack) -> bool:
        """Note a pack; return False if it was noted before."""
        path = self._folder.layout.pack(pack.name)
        if pack.name in self._memory or isinstance(_pack_of(path), Pack):
            return False
        self._folder.forget_damage(path)
        self._memory[pack.name] = pack
        self._digests = None
        if self._folder.degraded is None:
            try:
                atomic.write(path, dump_pack(pack), self._folder.layout.private)
            except OSError as error:
                self._folder.degrade(str(error))
        return True

    def digests(self) -> frozenset[str]:
        """Return the digests of all kernels that came in packs."""
        seen = signature(str(self._folder.layout.packs))
        if self._digests is None or self._digests[0] != seen:
            found = frozenset(one for pack in self.everything() for one in pack.kernels)
            self._digests = (seen, found)
        return self._digests[1]

    def problems(self) -> list[str]:
        """Return what is wrong with each pack that is not whole, in one line."""
        found: list[str] = []
        for path, pack in self._read():
            if isinstance(pack, str):
                found.append(f"pack {path.stem} is damaged: {pack}")
                continue
            folders = [self._folder.layout.kernel(one) for one in pack.kernels]
            lost = sum(damage_of_folder(one) is not None or not one.is_dir() for one in folders)
            if lost:
                found.append(f"pack {pack.name} has lost {lost} of its {len(folders)} kernels")
        return found

    def everything(self) -> list[Pack]:
        """Return all packs; damaged ones are reported and left out."""
        found: dict[str, Pack] = {}
        for path, pack in self._read():
            if isinstance(pack, str):
                self._folder.report_damage(path, pack)
            else:
                found[pack.name] = pack
        return list({**found, **self._memory}.values())

    def _read(self) -> Iterator[tuple[Path, Pack | str]]:
        """Yield each file with its pack, or with what is wrong with it."""
        for path in pack_files(self._folder.layout.packs):
            pack = _pack_of(path)
            if pack is not None:
                yield path, pack


def _pack_of(path: Path) -> Pack | str | None:
    """Return the pack in a file, what is wrong with it, or None where there is no file."""
    try:
        return parse_pack(path.read_bytes())
    except MISSING:
        return None
    except (OSError, ValueError) as error:
        return str(error)
