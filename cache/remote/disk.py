"""A remote in a folder: files that are written once, and links that are not followed."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A named pipe would wait for a writer."""


class LocalFiles:
    """Objects as files of a folder, a network disk for example.

    fsspec looks whether a file exists before it opens it for writing, so that two processes may write into one; here a
    file is written under a private name and linked to its own, which fails if that is taken.

    Symbolic links below the root are not followed: any user who may write there could have this process write, as its user,
    into any folder. So each folder of a name is opened in the one before.
    """

    def __init__(self, root: Path) -> None:
        """Use the names below ``root``."""
        self._root = root

    def read(
        self,
        names: Sequence[str],
        limits: Sequence[int],
        timeout_s: float,  # noqa: ARG002  a disk's calls cannot be ended
    ) -> list[bytes | OSError]:
        """Return each file, or why it cannot be read."""
        return [self._read(name, limit) for name, limit in zip(names, limits, strict=True)]

    def create(self, name: str, data: bytes, timeout_s: float) -> None:  # noqa: ARG002
        """Write a file that is not there yet."""
        *folders, own = PurePosixPath(name).parts
        with self._folder(folders, create=True) as folder, _draft(folder, data) as draft:
            try:
                os.link(draft, own, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _write_new(folder, own, data)  # a reader may see a part, which its checksum shows

    def replace(self, name: str, data: bytes, timeout_s: float) -> None:  # noqa: ARG002
        """Write a file, whether it is there or not."""
        *folders, own = PurePosixPath(name).parts
        with self._folder(folders, create=True) as folder, _draft(folder, data) as draft:
            os.replace(draft, own, src_dir_fd=folder, dst_dir_fd=folder)

    def folders(self, folder: str, timeout_s: float) -> list[str]:  # noqa: ARG002
        """Return the own names of the folders that a folder has."""
        with (
            suppress(FileNotFoundError),
            self._folder(PurePosixPath(folder).parts) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            return [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        return []

    def names(self, prefix: str, timeout_s: float) -> list[str]:  # noqa: ARG002
        """Return the names that begin so."""
        listed, place = list[str](), PurePosixPath(prefix.rpartition("/")[0])
        with suppress(FileNotFoundError), self._folder(place.parts) as folder:
            for path, _, files, inner in os.fwalk(".", dir_fd=folder):
                plain = [each for each in files if _is_file(inner, each)]
                listed += [str(PurePosixPath(place, path, each)) for each in plain]
        return [name for name in listed if name.startswith(prefix)]

    @contextmanager
    def _folder(self, parts: Sequence[str], *, create: bool = False) -> Generator[int]:
        """Open a folder below the root for the block.

        Raises:
            OSError: It does not exist, or there is a link in its place.
        """
        if create:
            self._root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._root, _FOLDER)  # which its user has named, and may be a link
        try:
            for part in parts:
                inner = _inner(descriptor, part, create=create)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, name: str, limit: int) -> bytes | OSError:
        *folders, own = PurePosixPath(name).parts
        try:
            with (
                self._folder(folders) as folder,
                # With an opener the file owns its descriptor, and closes it if it is a folder's.
                open(own, "rb", opener=lambda name, _: os.open(name, _FILE, dir_fd=folder)) as file,
            ):
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return b""  # a pipe or a device: damage, after which others write
                return bounded(file.read(limit + 1), limit)
        except OSError as error:
            return error


def _inner(folder: int, name: str, *, create: bool) -> int:
    """Open a folder in another one.

    Raises:
        OSError: It does not exist, or there is a link in its place.
    """
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as error:
        reason = "it is no folder, or a link, which is not followed in a remote"
        raise OSError(errno.ENOTDIR, reason, name) from error


@contextmanager
def _draft(folder: int, data: bytes) -> Generator[str]:
    """Write a file under a private name into a folder; it is gone after the block."""
    draft = f".{secrets.token_hex(8)}.part"
    try:
        _write_new(folder, draft, data)
        yield draft
    finally:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)


def _write_new(folder: int, name: str, data: bytes) -> None:
    """Write a file that is not there yet into a folder.

    Raises:
        FileExistsError: It is there.
        OSError: It cannot be written; its name is free, though a full disk has cut it.
    """
    with os.fdopen(os.open(name, _NEW_FILE, 0o666, dir_fd=folder), "wb") as file:
        try:
            file.write(data)
            file.flush()
        except OSError:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise


def _is_file(folder: int, name: str) -> bool:
    with suppress(OSError):  # it has just gone
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def bounded(data: bytes, limit: int) -> bytes | OSError:
    """Return an object's content, or that it is larger than its limit."""
    if len(data) > limit:
        return OSError(
            errno.EFBIG, f"it has more than {limit} bytes, which no object of its kind has"
        )
    return data
