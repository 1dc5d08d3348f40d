"""What `doctor` finds of the cache directories: whether they can be trusted, read and written."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from inductor_plugin.cache import SecondCache, open_store
from inductor_plugin.cache.directory import NOWHERE
from inductor_plugin.cache.guard import exists, is_folder, why_not_trusted
from inductor_plugin.cache.lookup.second import why_not_read
from inductor_plugin.cache.trust.listing import vouchers
from inductor_plugin.cache.trust.policy import trust_or_nobody
from inductor_plugin.cli.finding import Finding
from inductor_plugin.config import default_cache_dir
from inductor_plugin.errors import CacheError, OptionError, expanded

_LOW_SPACE_BYTES = 2**30
_ELSEWHERE = "set INDUCTOR_PLUGIN_CACHE_DIR to a folder of your own"


def default_folder() -> Path:
    """Return the default cache directory; `NOWHERE` if the variables name none that there can be."""
    try:
        return default_cache_dir()
    except OptionError:  # the finding `options` has it
        return NOWHERE


def cache(folder: Path) -> Finding:
    """Check a cache directory: whether it can be trusted and written, and its free space."""
    name, elsewhere, folder = "cache", _ELSEWHERE, folder.absolute()
    if folder == NOWHERE:
        detail = "there is no default cache directory: the finding `options` says why"
        return Finding(name, "broken", detail, elsewhere)
    existing = next(path for path in (folder, *folder.parents) if exists(path))
    if not is_folder(existing):
        below = "" if existing == folder else f", so {folder} cannot be made"
        return Finding(name, "broken", f"{existing} is not a folder{below}", elsewhere)
    detail = f"{folder}, {shutil.disk_usage(existing).free / 2**30:.1f} GiB free"
    if existing != folder:
        detail += ", not there yet"
    if problem := _unused(folder):
        return Finding(name, "broken", *problem)
    failure = _unwritable(existing)
    if failure is not None:
        what = f"{detail}; {existing} cannot be written ({failure})"
        return Finding(
            name, "broken", what, "set INDUCTOR_PLUGIN_CACHE_DIR to a folder you can write"
        )
    return _space(existing, detail)


def _space(folder: Path, detail: str) -> Finding:
    """Check the disk of a folder that can be written; ``detail`` says which cache it is for, and what is free."""
    name, disk = "cache", shutil.disk_usage(folder)
    if not disk.total:
        return Finding(name, "broken", f"{folder} is on no disk, it keeps no files", _ELSEWHERE)
    if disk.free < _LOW_SPACE_BYTES:
        return Finding(name, "broken", detail, "free some space, or move the cache")
    return Finding(name, "ok", detail)


def _unused(folder: Path) -> tuple[str, str] | None:
    """Return why a directory is not used as a cache, or would not be if it were there, and what to do; None if it is used."""
    try:
        refusal = why_not_trusted(folder)
    except OSError as error:  # decisions are kept in memory, as `cache.directory.prepare` does
        return f"{folder} is not used: {error}", _ELSEWHERE
    if refusal is not None:
        return refusal.what, refusal.remedy
    if not exists(folder):
        return None
    store = open_store(folder, create=False)
    is_read = store.layout.root == folder  # even where it cannot be written
    if store.degraded is None or is_read:
        return None
    return f"{folder} is not used: {store.degraded}", _ELSEWHERE


def second_cache(named: Path | str, trusted_keys: str = "") -> Finding:
    """Check the second cache, which is only read, and say who vouches for its kernels.

    Args:
        named: Its directory; empty for none.
        trusted_keys: The option of this name: what the second cache has taken by a signature needs that key here, too.
    """
    name = "cache_read"
    if not named:
        return Finding(name, "ok", "no second cache is named")
    try:
        folder = expanded(named, "variable INDUCTOR_PLUGIN_CACHE_READ", CacheError)
        reason = why_not_read(folder)
    except CacheError as error:
        folder, reason = NOWHERE, str(error)
    if reason is not None:
        what, _, remedy = reason.rpartition("; ")
        return Finding(name, "broken", what, remedy)
    known = trust_or_nobody(trusted_keys)
    second = SecondCache(folder, known)
    content = second.usage()
    detail = f"{folder}, read only: {content.records} records, {content.kernels} kernels"
    vouching = vouchers(second.root, second.iter_kernels(), known)
    if content.kernels:
        detail += f": {vouching.text('there')}"
    if vouching.refused:
        remedy = "add the signer to INDUCTOR_PLUGIN_TRUSTED_KEYS; until then these kernels are compiled here"
        return Finding(name, "broken", detail, remedy)
    return Finding(name, "ok", detail)


def _unwritable(folder: Path) -> str | None:
    """Return why no file can be made in a folder: not even root may write to ``/proc``."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)
