"""The shelf of packs: which kernels of the cache came together, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inductor_plugin.cache import atomic
from inductor_plugin.cache.entry import damage_of_folder
from inductor_plugin.cache.folder import MISSING, Folder, Signature, signature
from inductor_plugin.cache.pack import Pack, dump_pack, pack_files, parse_pack


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
