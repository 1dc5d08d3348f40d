"""What may be read and loaded: files of a limited size, no pipes or devices, that no other user may change.

The directory, the folders in it and those above it are checked when a cache is opened, a kernel's folders and files
again when it is loaded. Of the folders above only those count in which everyone may rename what is there, mount points aside:
others have groups and owners for reasons of their own, as homes and mounted disks do.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from inductor_plugin.cache.owner import belongs_to_user

MAX_DOCUMENT_BYTES = 8 << 20
"""Size up to which a document is read: 17,000 candidates, or a pack of 120,000 kernels. Parsing that takes
less than a second."""

MISSING = (FileNotFoundError, NotADirectoryError)
"""Errors of opening a missing file; the second is raised if a parent is not a folder."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a named pipe would wait for a writer
_UNNOTICED = getattr(os, "O_NOATIME", 0)
"""A read does not count as a use; `Folder.touch` records uses. With ``relatime`` the first ``stats`` after a write made every
record the most recently used."""
_LIMIT = "it has more than {} bytes, which no file of its kind has"
_CHUNK = 1 << 20
_MOST_LINKS = 40
"""Links that Linux follows on a path."""

OWN = (
    "graphs",
    "kernels",
    "locks",
    "packs",
    "packs-installed",
    "private",
    "quarantine",
    "records",
)
"""The folders in a cache directory that are read; `Layout` names them. Nothing reads ``damaged``."""


@dataclass(frozen=True)
class Refusal:
    """Why a directory cannot be trusted.

    Attributes:
        what: The folder, and which users could change its content.
        remedy: How to fix it.
    """

    what: str
    remedy: str

    def __str__(self) -> str:
        """Return both, as in error messages."""
        return f"{self.what}; {self.remedy}"


def why_not_trusted(path: Path, *, above: bool = True) -> Refusal | None:
    """Return why a directory, or one of a cache's folders in it, cannot be trusted.

    None if it can be, or if it is no directory and so can hold no kernels. Of one that does not exist only the folders above are
    looked at.

    Args:
        path: The directory.
        above: Whether the folders above it count: not for locks, which are no code.

    Raises:
        OSError: The directory cannot be read.
    """
    if path == path.parent:
        return Refusal(f"{path} is the root of the file system", "name a folder of its own")
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return _why_not_above(path, "kernels") if above else None
    if not stat.S_ISDIR(status.st_mode):
        return None
    refusal = _why_not(path, status)
    if refusal is None and above:
        refusal = _why_not_above(path, "kernels")
    if refusal is not None:
        return refusal
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name in OWN and entry.is_dir(follow_symlinks=True):
                refusal = _why_not(Path(entry.path), entry.stat())
                if refusal is None and above and entry.is_symlink():
                    refusal = _why_not_above(Path(entry.path), "kernels")
                if refusal is not None:
                    return refusal
    return None


def why_not_trusted_kernel(root: Path, folder: Path, names: Iterable[str]) -> Refusal | None:
    """Return why a kernel's folder, one between it and the cache directory, or one of its files cannot be trusted.

    In a folder that only its owner may enter, as a new cache is, the modes of what lies below do not
    matter: under a umask of 002 files are writable by the group. What a link leads to outside does not lie below.

    Args:
        root: The cache directory.
        folder: The kernel's folder in it.
        names: Its files.

    Raises:
        OSError: One of them does not exist or cannot be read.
    """
    is_open = True
    between = [path for path in reversed(folder.parents) if root in path.parents]
    for path in (root, *between, folder, *(folder / name for name in names)):
        status = path.stat() if path == root else path.lstat()
        refusal = None
        if stat.S_ISLNK(status.st_mode):
            status = path.stat()
            if not path.resolve().is_relative_to(root.resolve()):
                is_open, refusal = True, _why_not_above(path, "kernels")
        refusal = refusal or _why_not(path, status, is_open=is_open)
        if refusal is not None:
            return refusal
        if stat.S_ISDIR(status.st_mode):
            is_open = is_open and bool(status.st_mode & 0o011)
    return None


@dataclass(frozen=True)
class KeyFile:
    """A file that says whom to trust, as it was read.

    Attributes:
        content: Its bytes.
        mode: Its permissions.
        refusal: Why it cannot be trusted itself, None if it can. The rule is that of folders.
    """

    content: bytes
    mode: int
    refusal: Refusal | None


def read_keys(path: Path, limit_bytes: int) -> KeyFile:
    """Read a file of keys. Owner and mode are those of the file that was read, whatever its name leads to by now.

    Raises:
        OSError: It does not exist or cannot be read.
        ValueError: It is a pipe or a device, or larger than ``limit_bytes``.
    """
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ValueError(_LIMIT.format(limit_bytes))
    refusal = _why_not(path, status, content="keys") or _why_not_above(path, "keys")
    return KeyFile(content, stat.S_IMODE(status.st_mode), refusal)


def read(path: Path | str, limit_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: The file does not exist, cannot be read, or is a folder.
        ValueError: It is a pipe or a device, or larger than ``limit_bytes``.
    """
    descriptor, size = _opened(path, follow=True)
    try:
        if size > limit_bytes:
            raise ValueError(_LIMIT.format(limit_bytes))
        data = os.read(descriptor, size + 1)  # reading up to the limit takes memory for all of that
        if len(data) > size:  # it has grown, or has no size, as in /proc
            while len(data) <= limit_bytes and (more := os.read(descriptor, _CHUNK)):
                data += more
    finally:
        os.close(descriptor)
    if len(data) > limit_bytes:
        raise ValueError(_LIMIT.format(limit_bytes))
    return data


def open_regular(path: Path | str, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading.

    Args:
        path: The file.
        follow: Whether the path may be a link to the file.

    Raises:
        OSError: The file does not exist, cannot be read, or is a folder.
        ValueError: It is a pipe or a device, or a link that is not to be followed.
    """
    descriptor, _ = _opened(path, follow=follow)
    return os.fdopen(descriptor, "rb")


def _opened(path: Path | str, *, follow: bool) -> tuple[int, int]:
    """Return the descriptor of a file, and its size; the rest as `open_regular`."""
    flags = _FLAGS | (0 if follow else os.O_NOFOLLOW)
    try:
        try:
            descriptor = os.open(path, flags | _UNNOTICED)
        except PermissionError:  # only the owner of a file may read it unnoticed
            descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link" if not follow else "it is a link to itself") from None
        if error.errno == errno.ENXIO:  # a socket
            raise ValueError("it is a socket, not a file") from None
        raise
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor, status.st_size
    os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise ValueError("it is a pipe or a device, not a file")


def exists(path: Path | str) -> bool:
    """Return True if there is something at a path; False also where this process may not look."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises PermissionError


def is_folder(path: Path | str) -> bool:
    """Return True if there is a folder at a path; False also where this process may not look."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises PermissionError


def _why_not(
    path: Path, status: os.stat_result, *, is_open: bool = True, content: str = "kernels"
) -> Refusal | None:
    """Return why a file or folder cannot be trusted, which others may reach if ``is_open``: the one rule."""
    user = os.geteuid()
    elsewhere = "choose another cache directory" if content == "kernels" else "name another file"
    if status.st_uid not in (user, 0):  # root could replace this program as well
        return Refusal(
            f"{path} belongs to user {status.st_uid}, not to user {user}, who could replace the "
            f"{content} in it",
            f"{elsewhere}, or copy it and own the copy",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 and is_open and not stat.S_ISLNK(status.st_mode):
        writers = "everyone" if mode & 0o002 else "its group"
        shared = status.st_uid != user or mode & stat.S_ISVTX  # /tmp: others need its mode
        return Refusal(
            f"{path} may be written by {writers} (mode {mode:04o}), who could replace the {content} in it",
            elsewhere
            if shared
            else f"if you trust its content, run: chmod go-w {shlex.quote(str(path))}",
        )
    return None


def _why_not_above(path: Path, content: str) -> Refusal | None:
    """Return which folder on the way to a path, or to what its links lead to, lets everyone put something else there."""
    for folder in _folders_on_the_way(path):
        try:
            status = folder.stat()
        except OSError:  # it does not exist, or may not be looked at
            continue
        mode = stat.S_IMODE(status.st_mode)
        # A container's volume (Kubernetes' emptyDir) has mode 0777, and no other users.
        if mode & 0o002 and not mode & stat.S_ISVTX and not folder.is_mount():
            run = f"if you trust its content, run: chmod o-w {shlex.quote(str(folder))}"
            return Refusal(
                f"everyone may rename what is in {folder} (mode {mode:04o}), and so replace the {content} below it",
                run
                if belongs_to_user(status)
                else "choose a folder elsewhere, or ask its owner for chmod +t",
            )
    return None


def _folders_on_the_way(path: Path) -> list[Path]:
    """Return the folders in which a name is looked up when a path is opened, those of each link on the way too, the last first."""
    folders: list[Path] = []
    here = Path(path.absolute().anchor)
    names = list(path.absolute().parts[:0:-1])
    links = 0
    while names and links < _MOST_LINKS:
        name = names.pop()
        if name == "..":
            here = here.parent
            continue
        folders.append(here)
        try:
            target = (here / name).readlink()
        except OSError:  # it is no link, does not exist, or may not be looked at
            here /= name
            continue
        links += 1
        here /= target.anchor  # that of an absolute link is where it begins
        names += target.parts[1 if target.anchor else 0 :][::-1]
    return list(dict.fromkeys(folders[::-1]))
