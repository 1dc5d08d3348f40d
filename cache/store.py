"""The interface of the cache: open, get, put, verify, prune."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from inductor_plugin.cache.directory import NOWHERE, SCHEMA_FIELDS, mend_schema, prepare
from inductor_plugin.cache.entry import KernelEntry, Resources
from inductor_plugin.cache.folder import Folder
from inductor_plugin.cache.graph import GraphShelf
from inductor_plugin.cache.guard import exists, read
from inductor_plugin.cache.kernels import KernelShelf
from inductor_plugin.cache.key import SCHEMA, KernelKey
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.lookup.near import parse_misses
from inductor_plugin.cache.lookup.second import SecondCache, open_second
from inductor_plugin.cache.merge import combine
from inductor_plugin.cache.pack import Pack, PackShelf
from inductor_plugin.cache.quarantine import Quarantined, QuarantineShelf
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.records import RecordShelf
from inductor_plugin.cache.size import evict
from inductor_plugin.cache.size.evict import Pruned, SizeLimit
from inductor_plugin.cache.size.usage import Usage, leftovers, usage
from inductor_plugin.cache.trust.policy import Trust
from inductor_plugin.cache.verify import Damage, set_aside, verify
from inductor_plugin.errors import CacheError, expanded

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 600.0
"""Seconds to wait for another process that builds the same kernel."""


def open_store(
    path: Path | str,
    *,
    limit_bytes: int = 0,
    memory_only: bool = False,
    create: bool = True,
    second: Path | str = "",
    read_only: bool = False,
    trust: Trust | None = None,
) -> Store:
    """Return the cache at a path, created with mode 0700 if it does not exist.

    With a read-only, full or missing disk, the store keeps new entries in memory and warns at the first of them; those on the disk
    can still be read.

    Args:
        path: The cache directory.
        limit_bytes: Size of kernels and records beyond which the least recently used are evicted; 0 for no limit.
        memory_only: Do not access the disk.
        create: If False, neither the directory nor ``schema.json`` is created; the store of a missing directory is empty, and
            `Store.verify` reports a missing or damaged ``schema.json``.
        second: Another cache directory, which is read after this one and never changed; empty for none.
        read_only: As without ``create``, change nothing and count nothing; to remove, pin or release raises CacheError.
        trust: Whose signed kernels may be taken over and loaded; no signer's by default.

    Raises:
        CacheError: It is below the folder of a user who is not known here.
        CacheRefusedError: Another user owns the directory or may write to it.
    """
    root = expanded(path, "the cache directory", CacheError).absolute()
    folder = Folder(Layout(root), trust)
    create = create and not read_only
    if read_only:
        folder.open_read_only()
    if memory_only:
        folder.layout = Layout(NOWHERE)
        folder.close("it is kept in memory only, as asked")
    elif not create and not exists(root):
        folder.close("it does not exist")
    else:
        prepare(folder, mend=create)
    return Store(root, folder, limit_bytes, open_second(second, trust))


class Store:
    """A cache directory. All methods may be called from any thread."""

    def __init__(
        self, root: Path, folder: Folder, limit_bytes: int = 0, second: SecondCache | None = None
    ) -> None:
        """Use `open_store` instead, which checks the directory."""
        self._root = root
        self._folder = folder
        self.trust = folder.trust
        self.graphs = GraphShelf(folder)
        self._size = SizeLimit(folder, limit_bytes)
        self._swept = False
        self._records = RecordShelf(folder)
        self._kernels = KernelShelf(folder, self._published)
        self._quarantine = QuarantineShelf(folder)
        self._packs = PackShelf(folder)
        self._second = second

    @property
    def root(self) -> Path:
        """The cache directory."""
        return self._root

    @property
    def layout(self) -> Layout:
        """The paths in the cache directory."""
        return self._folder.layout

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The paths in this directory, and in the second one if there is one."""
        return (self.layout,) if self._second is None else (self.layout, self._second.layout)

    @property
    def degraded(self) -> str | None:
        """Why nothing is written to disk, or None."""
        return self._folder.degraded

    @property
    def unwritten(self) -> int:
        """Number of entries so far that were to be written and are kept in memory only."""
        return self._folder.unwritten

    def kernel(self, digest: str) -> KernelEntry | None:
        """Return a kernel whose files are as published, or None; a damaged one is reported once, removed, and treated as missing."""
        kernel = self._kernels.get(digest)
        if kernel is None and self._second is not None:
            return self._second.kernel(digest)
        return kernel

    def holds_kernel(self, entry: KernelEntry) -> bool:
        """Return whether a kernel of the same files is here and may run; nothing is changed."""
        other = None if self._second is None else self._second.kernel(entry.digest)
        return self._kernels.holds(entry) or (other is not None and other.files == entry.files)

    def put_kernel(
        self,
        key: KernelKey,
        files: Mapping[str, Path | bytes],
        resources: Resources | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> KernelEntry:
        """Publish built files; a valid kernel of the same key stays.

        Args:
            key: What the kernel depends on.
            files: A path or the content of each file, by name.
            resources: What it takes on the device.
            extra: `KernelEntry.further` of the kernel in another cache.

        Raises:
            CacheError: A file does not exist, or neither the cache nor the temporary folder has room.
        """
        self._before_write()
        return self._kernels.put(key, files, resources, extra)

    def kernels_like(self, template: str, config: str, target: str) -> list[KernelEntry]:
        """Return kernels of any compiler and flags, the newest first; their files are not checked."""
        own = self._kernels.like(template, config, target)
        second = [] if self._second is None else self._second.kernels_like(template, config, target)
        return sorted([*own, *second], key=lambda entry: -entry.created) if second else own

    def put_pack(self, pack: Pack) -> bool:
        """Add a pack, the list of its kernels; return False if the cache has it already."""
        self._before_write()
        self._kernels.forget_index()
        return self._packs.put(pack)

    def packs(self) -> list[Pack]:
        """Return the packs of the cache; damaged ones are reported and skipped."""
        own = self._packs.everything()
        return own if self._second is None else [*own, *self._second.packs()]

    def packed(self) -> frozenset[str]:
        """Return the digests of all kernels that came in packs."""
        own = self._packs.digests()
        return own if self._second is None else own | self._second.packed()

    def verify_packs(self) -> list[str]:
        """Return one line for each pack that is damaged or lacks kernels."""
        return self._packs.problems(self.layouts)

    def lock_kernel(
        self, digest: str, timeout_s: float = LOCK_TIMEOUT_S
    ) -> AbstractContextManager[None]:
        """Return the lock of a key. Acquire several in sorted order; a thread may acquire a lock twice.

        Entering raises CacheError if the lock is not free within ``timeout_s`` seconds; 0 tries once. Any thread may release it.
        """
        return self._folder.lock(digest, timeout_s)

    def record(self, environment: str, op: str, digest: str) -> Record | None:
        """Return a problem's record, or None; a damaged record is reported once and treated as missing."""
        own = self._records.get(environment, op, digest)
        return own if self._second is None else self._second.record(environment, op, digest, own)

    def has_records(self, environment: str) -> bool:
        """Return True if the environment has at least one record with a measurement."""
        return self._records.has(environment) or (
            self._second is not None and self._second.has_records(environment)
        )

    def put_record(self, record: Record) -> Record:
        """Merge a record with the stored one, candidate by candidate, and return the result."""
        self._before_write()
        return self._records.put(record)

    def add_record(self, record: Record) -> Record:
        """Combine a record of another cache with the stored one, more samples winning, and return the result."""
        self._before_write()
        return self._records.put(record, combine)

    def pin_record(self, record: Record, *, pinned: bool = True) -> None:
        """Protect a record and its winner's kernel from eviction, or stop; CacheError if the lock is not free within a minute."""
        self._records.pin(record, pinned=pinned)

    def put_environment(self, fields: Mapping[str, Any]) -> str:
        """Write an environment's fields unless they are stored already; return their digest.

        Raises:
            TypeError: A field has no stable form.
        """
        if self.degraded is None:  # else there is a warning when something is measured
            self._before_write()
        return self._records.put_environment(fields)

    def environment(self, digest: str) -> dict[str, Any] | None:
        """Return an environment's fields, or None."""
        fields = self._records.environment(digest)
        if fields is None and self._second is not None:
            return self._second.environment(digest)
        return fields

    def quarantine(
        self, environment: str, candidate: str, fields: Mapping[str, Any], *, counts: bool = True
    ) -> Quarantined:
        """Record that a candidate misbehaved, and return its entry; see `QuarantineShelf.put`."""
        self._before_write()
        return self._quarantine.put(environment, candidate, fields, counts=counts)

    def add_quarantined(self, entry: Quarantined) -> bool:
        """Add an entry of another cache; return False if the candidate's own says as much."""
        self._before_write()
        return self._quarantine.add(entry)

    def quarantined(self, environment: str, candidate: str) -> Quarantined | None:
        """Return a candidate's entry, or None; one that is not `condemned` may be tried."""
        return self._quarantine.get(environment, candidate)

    def quarantined_among(
        self, environment: str, candidates: Iterable[str]
    ) -> dict[str, Quarantined]:
        """Return the entries of those candidates that have one, by name; 25 us for 16 that have none."""
        return self._quarantine.among(environment, candidates)

    def release(self, environment: str, candidate: str) -> bool:
        """Let a candidate be tried again; return False if it was not in quarantine, or stays there."""
        return self._quarantine.release(environment, candidate)

    def retry(self, entry: Quarantined) -> int:
        """Remove a candidate from quarantine, and its failure from the records of its problem.

        The next run then measures it again. Returns the number of changed records.

        Raises:
            CacheError: A record's lock was not free within a minute, or writing failed.
        """
        failure = entry.failure()
        changed = 0
        if failure is not None and self.degraded is None:
            candidate, start = failure
            changed = self._records.drop_failure(entry.environment, start, candidate)
        if self.degraded is None:  # last, so that an interrupted call can be repeated
            self.release(entry.environment, entry.candidate)
        if self.degraded is not None:
            raise CacheError(f"{entry.candidate} stays in quarantine: {self.degraded}")
        return changed

    def add_counts(self, **sums: int) -> None:
        """Add to the sums over all processes (hits, misses ...); they are dropped if writing fails."""
        self._folder.add_counters(sums)

    def counters(self) -> dict[str, int]:
        """Return the sums over all processes."""
        return self._folder.counters()

    def put_misses(self, fields: Mapping[str, Any]) -> None:
        """Keep the misses of a process, in place of those before; dropped if writing fails."""
        self._folder.write(self.layout.misses, {"format": SCHEMA, **fields})

    def misses(self) -> dict[str, Any] | None:
        """Return the misses of the process that had some last, or None."""
        try:
            return parse_misses(read(self.layout.misses))
        except (OSError, ValueError):
            return None

    def zero_counters(self) -> None:
        """Begin to count anew; what is saved up for comparisons of graphs stays.

        Raises:
            CacheError: The lock was not free within five seconds, writing failed, or the cache is only read.
        """
        self._folder.zero_counters()

    def remove_record(self, environment: str, op: str, digest: str) -> bool:
        """Remove a record; return False if there is none, or its lock is not free."""
        return evict.remove_record(self._folder, self.layout.record(environment, op, digest))

    def remove_kernel(self, digest: str) -> bool:
        """Remove a kernel; return False if there is none, or a process builds it."""
        return evict.remove_kernel(self._folder, self.layout.kernel(digest))

    def clear(self) -> dict[str, int]:
        """Remove everything but the counters, pinned entries included; return how much, by kind."""
        removed = evict.clear(self._folder)
        self._records.forget()
        self._kernels.forget_index()
        return removed

    def forget_unwritten(self) -> None:
        """Drop the records that are in memory only: those of ``cache=off``, or of a disk that is full."""
        self._records.forget_unwritten()

    def repair(self, damage: Damage) -> str:
        """Set a damaged entry aside, or write it again; return what was done, empty if it is sound now.

        Raises:
            CacheError: Nothing can be done here; the message says what can.
        """
        self._folder.check_may_change()
        if damage.kind == "schema":
            mend_schema(self._folder, mend=True)
            return "written again"
        return set_aside(self._folder, damage)

    def prune(
        self,
        max_bytes: int | None = None,
        older_than_s: float | None = None,
        *,
        dry_run: bool = False,
    ) -> Pruned:
        """Evict least recently used entries, kernels first, and sweep files of killed processes.

        Args:
            max_bytes: Largest size of kernels and records.
            older_than_s: Also evict entries not used for this many seconds.
            dry_run: Remove nothing, and return what would be removed.
        """
        pruned = evict.prune(self._folder, max_bytes, older_than_s, dry_run=dry_run)
        self._records.forget()
        return pruned

    def verify(self) -> list[Damage]:
        """Read every file and return all damage; nothing is changed."""
        return verify(self._folder.layout)

    def usage(self, *, look: bool = False, look_s: float = math.inf) -> Usage:
        """Return number and size of the entries; ``look`` also checks documents, for ``look_s`` seconds at most."""
        return usage(self._folder.layout, look=look, look_s=look_s)

    def record_paths(self) -> Iterator[Path]:
        """Yield the files of all records on disk, sorted."""
        return self._records.paths()

    def iter_records(self) -> Iterator[Record]:
        """Yield all records; damaged ones are reported and skipped."""
        return self._records.everything()

    def iter_kernels(self) -> Iterator[KernelEntry]:
        """Yield all kernels, without checking their files."""
        return self._kernels.everything()

    def iter_quarantine(self) -> Iterator[Quarantined]:
        """Yield all quarantine entries."""
        return self._quarantine.everything()

    def _published(self, size_bytes: int) -> None:
        """Count the published bytes, and evict if the limit is exceeded."""
        self._before_write()
        self._size.published(size_bytes)

    def _before_write(self) -> None:
        """Sweep files of killed processes once; write ``schema.json`` again if it was removed."""
        if self.degraded is not None:
            self._folder.tell_of_memory()
            return
        if not self._swept:
            self._swept = True
            gone = evict.sweep(leftovers(self.layout))
            if gone:
                logger.info("removed %d unfinished files of killed processes", gone)
        if not exists(self.layout.schema):
            self._folder.write(self.layout.schema, SCHEMA_FIELDS)
