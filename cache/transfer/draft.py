"""A file that is written under a private name beside its own, and renamed when it is whole; by one process at a time."""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from inductor_plugin.cache.lock import HeldLock, LockTable, remove_unused
from inductor_plugin.errors import CacheError, warn_once

logger = logging.getLogger(__name__)

_TABLE = LockTable()
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Errors of file systems that have no locks."""
_LIMIT_S = 60.0
"""Seconds in which some 300 processes add 500 pins each to a file, one after the other; who knows of more waits longer."""


@contextmanager
def draft_of(file: Path) -> Generator[Path]:
    """Yield an empty new file in the folder of ``file``, which replaces it unless the block raises.

    The name is drawn at random and must not exist yet: in a folder that others may write to, a known
    name could be a link to one of the user's files, and two processes would write to the same draft.

    Raises:
        OSError: The folder cannot be written to, or ``file`` is a folder or a device.
    """
    if file.exists() and not file.is_file():
        raise OSError(f"{file} is no plain file")
    draft = file.with_name(f".{file.name[:64]}.{secrets.token_hex(8)}.part")
    # The mode is what the user's umask leaves of it, as for any file.
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    try:
        yield draft
        draft.replace(file)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


@contextmanager
def exclusive(file: Path, limit_s: float = _LIMIT_S) -> Generator[None]:
    """Keep other threads and processes from replacing ``file`` in the block: what is read there is still so when it is written.

    A lock file lies beside it in the meantime. Where the file system has no locks, none is kept from it, after one warning.

    Args:
        file: The file, in an existing folder.
        limit_s: Seconds in which others that do the same are waited for.

    Raises:
        CacheError: They have not ended in time.
        OSError: The folder cannot be written to.
    """
    name = str(file.resolve())
    beside = Path(name).with_name(f".{file.name[:64]}.lock")
    with ExitStack() as held:
        held.callback(remove_unused, beside)  # once it is released
        try:
            held.enter_context(HeldLock(_TABLE, name, beside, limit_s))
        except CacheError:
            raise CacheError(
                f"{file} was being written by another process for {limit_s:g} s; try again when that one has ended"
            ) from None
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _WITHOUT_LOCKS:
                raise
            text = f"{file} cannot be locked ({error}): of processes that write it at once, the last one counts"
            warn_once(logger, text)
        yield
