"""A second cache that is only read: a container image's, or a team's on a network disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inductor_plugin.cache.entry import KernelEntry
from inductor_plugin.cache.folder import Folder
from inductor_plugin.cache.guard import read, why_not_trusted
from inductor_plugin.cache.kernels import KernelShelf
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.merge import merge
from inductor_plugin.cache.pack import Pack, PackShelf
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.records import RecordShelf
from inductor_plugin.cache.size.usage import Usage, usage
from inductor_plugin.cache.trust.policy import Trust
from inductor_plugin.cache.verify import check_schema
from inductor_plugin.errors import CacheError, expanded, warn_once

logger = logging.getLogger(__name__)


class SecondCache:
    """The records and kernels of a directory that is never written to.

    It takes no locks, removes nothing that is damaged, and writes no time of use; its quarantine is not
    read, since what is in it cannot be released.
    """

    def __init__(self, root: Path, trust: Trust | None = None) -> None:
        """Use `open_second` instead, which checks the directory."""
        self.root = root
        self.layout = Layout(root)
        folder = Folder(self.layout, trust)
        folder.close("it is a second cache, which is only read")
        self._records = RecordShelf(folder)
        self._kernels = KernelShelf(folder, lambda _bytes: None)
        self._packs = PackShelf(folder)

    def record(self, environment: str, op: str, digest: str, own: Record | None) -> Record | None:
        """Return a problem's record, merged with the one of the own cache, which may be None."""
        record = self._records.get(environment, op, digest)
        return own if record is None else record if own is None else merge(record, own)

    def has_records(self, environment: str) -> bool:
        """Return True if the environment has at least one record with a measurement."""
        return self._records.has(environment)

    def environment(self, digest: str) -> dict[str, Any] | None:
        """Return an environment's fields, or None."""
        return self._records.environment(digest)

    def kernel(self, digest: str) -> KernelEntry | None:
        """Return a kernel whose files are as published, or None."""
        return self._kernels.get(digest)

    def kernels_like(self, template: str, config: str, target: str) -> list[KernelEntry]:
        """Return kernels of any compiler and flags, the newest first; their files are not checked."""
        return self._kernels.like(template, config, target)

    def iter_kernels(self) -> Iterator[KernelEntry]:
        """Yield all kernels; their files are not checked."""
        yield from self._kernels.everything()

    def packs(self) -> list[Pack]:
        """Return the packs; damaged ones are reported and skipped."""
        return self._packs.everything()

    def packed(self) -> frozenset[str]:
        """Return the digests of all kernels that came in packs."""
        return self._packs.digests()

    def usage(self) -> Usage:
        """Return number and size of the entries."""
        return usage(self.layout)


def open_second(path: Path | str, trust: Trust | None = None) -> SecondCache | None:
    """Return the second cache at a path; None, after one warning, if it cannot be used.

    Args:
        path: Its directory; empty for none.
        trust: Whose kernels it may have taken from elsewhere; no signer's by default.
    """
    if not str(path):
        return None
    try:
        root = expanded(
            path, "it", CacheError, "write the whole path, or unset cache_read"
        ).absolute()
        reason = why_not_read(root)
        if reason is None:
            return SecondCache(root, trust)
    except CacheError as error:
        reason = str(error)
    warn_once(logger, f"the second cache (option cache_read) is not used: {reason}")
    return None


def why_not_read(root: Path) -> str | None:
    """Return why a directory cannot be a second cache, with what to do; None if it can.

    Root may own it, for root could change this process anyway; no other user may write to it.
    """
    try:
        refusal = why_not_trusted(root)
        if refusal is not None:
            return str(refusal)
        check_schema(read(Layout(root).schema))
    except OSError as error:
        return f"{root} is no cache: {error.strerror}; correct or unset cache_read"
    except ValueError as error:
        return f"{root}: {error}; name another directory"
    return None
