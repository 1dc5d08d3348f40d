"""The directory of a cache: created, checked, and left alone where it cannot be used."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from inductor_plugin.cache import atomic
from inductor_plugin.cache.document import ForeignError
from inductor_plugin.cache.folder import Folder
from inductor_plugin.cache.guard import MISSING, exists, is_folder, read, why_not_trusted
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.verify import check_schema
from inductor_plugin.errors import CacheRefusedError

logger = logging.getLogger(__name__)

SCHEMA_FIELDS = {
    "format": SCHEMA,
    "about": "cache of inductor-plugin: kernels, timings and decisions",
}

NOWHERE = Path("/dev/null/inductor_plugin")
"""A path below which nothing exists and nothing can be created."""

_LONGEST_ROOT_BYTES = 3600
"""Length up to which the paths below the directory, of up to 400 bytes, are within Linux's 4096."""


def prepare(folder: Folder, *, mend: bool) -> None:
    """Create and check the directory; degrade if the disk does not allow it."""
    root = folder.layout.root
    if len(os.fsencode(root)) > _LONGEST_ROOT_BYTES:
        _leave(folder, f"its path is longer than {_LONGEST_ROOT_BYTES} bytes; name another one")
        return
    try:
        _refuse(root)
        if exists(root) and not is_folder(root):
            _leave(folder, f"{root} is no directory")
            return
        atomic.make_folder(root)
        _refuse(root)  # somebody else may have made it in between
        if not os.access(root, os.W_OK | os.X_OK):
            folder.degrade("it is read-only", quietly=True)
        mend_schema(folder, mend=mend)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            _leave(folder, f"a part of its path is too long: {error}; name another one")
        else:
            folder.degrade(error, quietly=True)
    except ValueError as error:  # a zero byte in the path
        _leave(folder, str(error))


def _leave(folder: Folder, reason: str) -> None:
    """Neither read nor write a directory that cannot be one, for one reason instead of one an entry."""
    folder.degrade(reason)
    folder.layout = Layout(NOWHERE)


def _refuse(root: Path) -> None:
    reason = why_not_trusted(root)
    if reason is not None:
        raise CacheRefusedError(f"the cache directory is refused: {reason}")


def mend_schema(folder: Folder, *, mend: bool) -> None:
    """Check ``schema.json``; write it if ``mend``, or use another directory if it is another version's."""
    layout = folder.layout
    try:
        check_schema(read(layout.schema))
    except MISSING:
        if mend:
            folder.write(layout.schema, SCHEMA_FIELDS)
    except ForeignError as error:
        folder.close(f"{error}; name another cache directory")
        logger.warning(
            "inductor-plugin: the cache directory %s is not used: %s",
            layout.root,
            folder.degraded,
        )
        folder.layout = Layout(layout.root / f"format-{SCHEMA}")
    except ValueError as error:
        if mend:
            logger.warning(
                "inductor-plugin: damaged %s: %s; it is written again", layout.schema, error
            )
            folder.write(layout.schema, SCHEMA_FIELDS)
