"""The shelf of compiled kernels: look up, build once, publish."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import atomic, document
from inductor_plugin.cache.document import ForeignError
from inductor_plugin.cache.entry import (
    ENTRY,
    KernelEntry,
    Resources,
    content_damage,
    damage,
    make_entry,
    parse_entry,
    read_entry,
)
from inductor_plugin.cache.folder import TOUCH_S, Folder, Signature, is_damage, signature
from inductor_plugin.cache.guard import MISSING, exists, is_folder, read, why_not_trusted_kernel
from inductor_plugin.cache.key import KernelKey
from inductor_plugin.cache.layout import part
from inductor_plugin.cache.trust.policy import why_not_loaded
from inductor_plugin.cache.trust.signatures import countersigned
from inductor_plugin.cache.trust.statement import statement
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

_MEMO = 8192
_ATTEMPTS = 5


@dataclass
class _CachedKernel:
    signatures: tuple[Signature | None, ...]
    entry: KernelEntry
    touched: float


@dataclass(frozen=True)
class _Built:
    """What is published of a kernel."""

    key: KernelKey
    files: Mapping[str, Path | bytes]
    resources: Resources | None
    extra: Mapping[str, Any] | None


class KernelShelf:
    """The kernels of one cache directory, with an in-memory copy of those this process has checked."""

    def __init__(self, folder: Folder, published: Callable[[int], None]) -> None:
        """Keep kernels in ``folder``; ``published`` is called with the size of each new kernel."""
        self._folder = folder
        self._published = published
        self._guard = threading.Lock()
        self._cached: dict[str, _CachedKernel] = {}
        self._memory: dict[str, KernelEntry] = {}
        self._scratch: Path | None = None
        self._index: dict[tuple[str, str, str], list[KernelEntry]] | None = None

    def get(self, digest: str) -> KernelEntry | None:
        """Return a kernel whose files are as published, or None; a damaged kernel is removed."""
        return self._memory.get(digest) or self._on_disk(digest)

    def holds(self, entry: KernelEntry) -> bool:
        """Return whether a kernel of the same files is here and may run; a damaged one is left as it is."""
        kept = self._memory.get(entry.digest)
        if kept is not None:
            return kept.files == entry.files
        folder = self._folder.layout.kernel(entry.digest)
        try:
            known = read_entry(folder)
            refusal = damage(known) or self._distrust(folder, known)
        except (OSError, ValueError):
            return False
        return refusal is None and known.files == entry.files

    def put(
        self,
        key: KernelKey,
        files: Mapping[str, Path | bytes],
        resources: Resources | None,
        extra: Mapping[str, Any] | None = None,
    ) -> KernelEntry:
        """Publish built files; a valid kernel of the same key stays.

        Raises:
            CacheError: Neither the cache nor the folder for temporary files has room.
        """
        names = [name for name in files if part(name) != name or name == ENTRY]
        if names or not files:
            raise CacheError(f"a kernel cannot have files named {names}; use plain file names")
        if self._folder.degraded is None:
            try:
                return self._publish(_Built(key, files, resources, extra))
            except OSError as error:
                self._blame(error, files)
        try:
            return self._keep(_Built(key, files, resources, extra))
        except OSError as error:
            raise CacheError(
                f"kernel {key.digest[:12]} fits neither the cache {self._folder.layout.root} nor "
                f"the folder for temporary files: {error}; free some space"
            ) from error

    def folders(self) -> Iterator[Path]:
        """Yield the folders of all kernels on disk, sorted."""
        yield from kernel_folders(self._folder.layout.kernels)

    def everything(self) -> Iterator[KernelEntry]:
        """Yield all kernels without checking their files; damaged entries are reported."""
        entries = (self._described(folder) for folder in self.folders())
        yield from (entry for entry in entries if entry is not None)
        yield from list(self._memory.values())

    def like(self, template: str, config: str, target: str) -> list[KernelEntry]:
        """Return the kernels of a template with a configuration for a target, the newest first.

        Compiler and flags may differ. Their files are not checked: `get` does that.
        """
        with self._guard:
            if self._index is None:
                self._index = {}
                for entry in self.everything():
                    name = (entry.key.template, entry.key.config, entry.key.target)
                    self._index.setdefault(name, []).append(entry)
            matches = self._index.get((template, config, target), [])
        return sorted(matches, key=lambda entry: -entry.created)

    def forget_index(self) -> None:
        """Scan the directory again in the next `like`, after kernels were added in another way."""
        with self._guard:
            self._index = None

    def _described(self, folder: Path) -> KernelEntry | None:
        try:
            return read_entry(folder)
        except (OSError, ValueError) as error:
            self._report(folder, error)
            return None

    def _report(self, folder: Path, error: OSError | ValueError) -> None:
        """Log why a kernel is not used, unless its folder is gone."""
        if isinstance(error, MISSING):
            error = ValueError(f"{ENTRY} is missing")
        if exists(folder):
            self._folder.report(folder, error)

    def _on_disk(self, digest: str) -> KernelEntry | None:
        cached = self._cached.get(digest)
        if cached is not None and _signatures(cached.entry) == cached.signatures:
            now = time.monotonic()
            if now - cached.touched > TOUCH_S:
                cached.touched = now
                self._folder.touch(str(cached.entry.folder / ENTRY))
            return cached.entry
        folder = self._folder.layout.kernel(digest)
        if not exists(folder):
            return None
        try:
            entry = read_entry(folder)
            reason = damage(entry) if entry.digest == digest else "it is another kernel's"
            distrust = self._distrust(folder, entry)
        except (OSError, ValueError) as error:
            self._unused(folder, digest, error)
            return None
        if reason is not None:
            self._unused(folder, digest, ValueError(reason))
            return None
        if distrust is not None:
            self._unused(folder, digest, PermissionError(f"it is not trusted: {distrust}"))
            return None
        self._folder.touch(str(folder / ENTRY))
        self._remember(entry)
        return entry

    def _distrust(self, folder: Path, entry: KernelEntry) -> str | None:
        """Return why a kernel may not run in this process, with the way out; None if it may."""
        refusal = why_not_trusted_kernel(self._folder.layout.root, folder, (ENTRY, *entry.files))
        if refusal is not None:
            return str(refusal)
        reason = why_not_loaded(entry, self._folder.trust)
        way_out = "add the signer to trusted_keys, or import it again with --trust"
        return None if reason is None else f"{reason}; {way_out}"

    def _remember(self, entry: KernelEntry) -> None:
        """Hand out a kernel from now on without reading it again, unless a merge brought it and no trusted key vouches for it."""
        if why_not_loaded(entry, self._folder.trust) is not None:
            return
        cached = _CachedKernel(_signatures(entry), entry, time.monotonic())
        with self._guard:
            if len(self._cached) >= _MEMO:
                del self._cached[next(iter(self._cached))]
            self._cached[entry.digest] = cached

    def _unused(self, folder: Path, digest: str, error: OSError | ValueError) -> None:
        """Report why a kernel is not used, and remove it if its content is damaged.

        It stays if it cannot be read, is another version's, or another process holds its lock or has
        replaced it: a kernel of a pack cannot be built again without a compiler.
        """
        if not (isinstance(error, MISSING) or is_damage(error)):
            self._report(folder, error)
            return
        if not _is_damaged(folder):
            return
        self._report(folder, error)
        if self._folder.degraded is not None:
            return
        try:
            with self._folder.lock(digest, 0):
                if _is_damaged(folder):
                    atomic.remove_folder(folder, self._folder.layout.private)
        except (CacheError, OSError) as caught:
            logger.debug("damaged kernel %s stays: %s", folder, caught)

    def _publish(self, built: _Built) -> KernelEntry:
        layout, digest = self._folder.layout, built.key.digest
        target = layout.kernel(digest)
        draft = atomic.private_path(layout.private)
        draft.mkdir(mode=0o700)
        try:
            entry = _fill(draft, target, built, shared=layout.kernels)
            for _ in range(_ATTEMPTS):
                if atomic.publish_folder(draft, target):
                    self._folder.forget_damage(target)
                    self._remember(entry)
                    self._published(entry.bytes)
                    return entry
                existing = self._on_disk(digest)
                if existing is not None:
                    return self._countersigned(existing, entry)
                if _is_foreign(target):
                    return self._keep(built)
                atomic.remove_folder(target, layout.private)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        raise OSError(f"{target} keeps coming back damaged")

    def _countersigned(self, existing: KernelEntry, entry: KernelEntry) -> KernelEntry:
        """Return a kernel of the cache with the signatures that the same files have elsewhere, too."""
        if not entry.signatures or statement(existing) != statement(entry):
            return existing
        both = countersigned(existing, entry, self._folder.trust)
        if both == existing.signatures:
            return existing
        path = existing.folder / ENTRY
        fields = document.load(read(path))
        text = document.dump({**fields, "signatures": both})
        atomic.write(path, text, self._folder.layout.private)
        signed = parse_entry(text, existing.folder)
        self._remember(signed)
        return signed

    def _keep(self, built: _Built) -> KernelEntry:
        """Keep a kernel in a private folder that is removed when the process ends."""
        digest = built.key.digest
        existing = self._memory.get(digest) or self._on_disk(digest)
        if existing is not None:
            return existing
        self._folder.count_unwritten()
        folder = Path(tempfile.mkdtemp(dir=self._private_scratch()))
        entry = _fill(folder, folder, built)
        if why_not_loaded(entry, self._folder.trust) is not None:
            return entry
        return self._memory.setdefault(digest, entry)

    def _private_scratch(self) -> Path:
        with self._guard:
            if self._scratch is None:
                self._scratch = Path(tempfile.mkdtemp(prefix="inductor-plugin-kernels-"))
                weakref.finalize(self, _remove_scratch, self._scratch, os.getpid())
            return self._scratch

    def _blame(self, error: OSError, files: Mapping[str, Path | bytes]) -> None:
        """Degrade if the disk failed; raise if a file to publish does not exist."""
        for name, content in files.items():
            if isinstance(content, Path) and not content.is_file():
                raise CacheError(
                    f"the built file {name} is not at {content}; publish it before it is removed"
                ) from error
        self._folder.degrade(error)


def kernel_folders(kernels: Path) -> list[Path]:
    """Return the folders of kernels, sorted; empty if the folder does not exist."""
    return (
        sorted(path for path in kernels.glob("*/*") if is_folder(path))
        if is_folder(kernels)
        else []
    )


def _is_damaged(folder: Path) -> bool:
    """Return True if the content of a kernel's folder is certainly damaged."""
    try:
        return content_damage(folder) is not None
    except (OSError, ForeignError):
        return False


def _is_foreign(folder: Path) -> bool:
    try:
        read_entry(folder)
    except (OSError, ValueError) as error:
        return isinstance(error, ForeignError)
    return False


def _fill(folder: Path, target: Path, built: _Built, shared: Path | None = None) -> KernelEntry:
    """Write a kernel's files into a folder; return its entry as it will be at ``target``.

    A file below ``shared`` belongs to another kernel too (a library of several kernels); it is
    hard-linked where the file system supports that.
    """
    for name, content in built.files.items():
        if isinstance(content, Path):
            if shared is None or not _linked(content, folder / name, shared):
                shutil.copyfile(content, folder / name)
                (folder / name).chmod(0o700 if content.suffix == ".so" else 0o600)
        else:
            (folder / name).write_bytes(content)
    text = make_entry(folder, built.key, list(built.files), built.resources, built.extra)
    (folder / ENTRY).write_bytes(text)
    return parse_entry(text, target)


def _linked(content: Path, name: Path, shared: Path) -> bool:
    """Return True if ``name`` is now a hard link to a file below ``shared``."""
    if not content.is_relative_to(shared):
        return False
    try:
        os.link(content, name)
    except OSError:  # too many links, or a file system without them
        return False
    return True


def _remove_scratch(path: Path, owner: int) -> None:
    """Remove the kernels kept outside the cache, unless this process is a fork of their owner."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _signatures(entry: KernelEntry) -> tuple[Signature | None, ...]:
    return tuple(signature(f"{entry.folder}/{name}") for name in (ENTRY, *entry.files))
