"""The cache directory that a verb fills: an existing cache, or a new one, which is announced."""

from __future__ import annotations

from pathlib import Path

from inductor_plugin.cache.layout import Layout
from inductor_plugin.errors import CacheError


def is_cache(path: Path) -> bool:
    """Return True if a folder has ``schema.json`` or one of the folders of a cache."""
    layout = Layout(path)
    marks = (layout.schema, layout.records, layout.kernels, layout.packs, layout.quarantined)
    return any(mark.exists() for mark in marks)


def check_target(path: Path, *, named: bool = True) -> bool:
    """Return True if filling this cache will create it; nothing is created yet.

    Args:
        path: The cache directory.
        named: Whether the user named it. The folders above the default one may be created.

    Raises:
        CacheError: It is no directory, it holds something else, or its parent folder does not exist: most
            likely a typing error.
    """
    if str(path) == "-":
        raise CacheError("'-' is no directory; name one")
    if path.exists():
        if not path.is_dir():
            raise CacheError(f"there is no cache at {path}, which is no directory; name another")
        if is_cache(path):
            return False
        if any(path.iterdir()):
            raise CacheError(
                f"{path} holds other files and is no cache; name a cache, an empty folder or a new one"
            )
    elif named and not path.parent.is_dir():
        raise CacheError(
            f"cannot make a cache at {path}: there is no folder {path.parent}; make it or name another"
        )
    return True


def check_source(path: Path) -> None:
    """Raise CacheError if there is no cache at a path."""
    if not path.is_dir():
        raise CacheError(f"there is no cache at {path}; name an existing directory")
    if not is_cache(path):
        raise CacheError(
            f"{path} is no cache: it has neither schema.json nor records; name another"
        )


def announcement(path: Path) -> str:
    """Return the line that says that a cache was created."""
    return f"new cache at {path}"
