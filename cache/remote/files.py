"""The file system of a remote, by its URL: the one module that uses fsspec.

What its file systems raise (botocore, aiohttp, google ...) has no common base: whatever goes wrong becomes an OSError here.
"""

from __future__ import annotations

import errno
import importlib
import os
import secrets
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import urlsplit

from inductor_plugin.cache.remote.loop import client_loop
from inductor_plugin.errors import CacheError

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure"}
"""The package's extra that brings the file system of a protocol."""

_PASSING = ("ExpiredToken", "InvalidToken", "NoSuchBucket", "RequestTimeTooSkewed")
"""Codes of S3 that s3fs takes for a missing object or a missing right, though they concern all requests and may pass."""

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A named pipe would wait for a writer."""


class Files(Protocol):
    """Objects by their names below a URL. Every call ends within its limit of seconds, where the store's client can be ended."""

    def read(
        self, names: Sequence[str], limits: Sequence[int], timeout_s: float
    ) -> list[bytes | OSError]:
        """Return each object, or why it cannot be read: FileNotFoundError if there is none, OSError if it is larger than its limit."""
        ...

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        """Write an object that is not there yet.

        Raises:
            FileExistsError: It is there.
            OSError: It may have been written, or not.
        """
        ...

    def replace(self, name: str, data: bytes, timeout_s: float) -> None:
        """Write an object, whether it is there or not.

        Raises:
            OSError: It may have been written, or not.
        """
        ...

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        """Return the names that begin with a folder's, none if there is no such folder.

        Raises:
            OSError: They cannot be listed.
        """
        ...


def open_files(url: str) -> Files:
    """Return the objects below a URL; nothing is asked of the store yet.

    Raises:
        CacheError: A package that this kind of URL needs is not installed, or it does not take the URL.
    """
    protocol = url.partition("://")[0]
    # A second, with aiobotocore, and only where a remote is named.
    try:
        core: Any = importlib.import_module("fsspec.core")
        options = {"skip_instance_cache": True, "use_listings_cache": False, **_options(protocol)}
        system, root = core.url_to_fs(url, **options)
    except ImportError as error:
        raise CacheError(
            f"{shown(url)} needs a package that is not installed ({error}): {remedy(protocol)}"
        ) from error
    except Exception as error:  # whatever a file system's constructor raises
        raise CacheError(
            f"{shown(url)} cannot be opened: {type(error).__name__}: {error}; correct remote_url"
        ) from error
    if protocol in ("file", "local"):
        return LocalFiles(Path(root))
    return FsspecFiles(system, root)


def remedy(protocol: str) -> str:
    """Return the command that installs what a protocol needs."""
    if extra := EXTRAS.get(protocol):
        return f'pip install "inductor-plugin[{extra}]"'
    return f"install fsspec's file system for {protocol}://"


def shown(url: str) -> str:
    """Return a URL for messages, without a user and password."""
    try:
        host = urlsplit(url).netloc.rpartition("@")
    except ValueError:
        return url.partition("://")[0] + "://..."
    return url.replace(f"{host[0]}@", "", 1) if host[0] else url


def _options(protocol: str) -> dict[str, Any]:
    """Return arguments of a file system's constructor besides those that fsspec's configuration names.

    Raises:
        ImportError, ValueError: There is no such file system here.
    """
    if protocol in ("file", "local"):
        return {"auto_mkdir": True}
    registry: Any = importlib.import_module("fsspec.registry")
    known: Any = None if "::" in protocol else registry.get_filesystem_class(protocol)
    return {"loop": client_loop()} if getattr(known, "async_impl", False) else {}


class FsspecFiles:
    """The objects of one of fsspec's file systems."""

    def __init__(self, system: Any, root: str) -> None:
        """Use the names below ``root``, which the file system understands."""
        self._system = system
        self._root = root.rstrip("/")
        self._loop: Any = None
        if getattr(system, "async_impl", False):
            asyn: Any = importlib.import_module("fsspec.asyn")
            self._loop = asyn.sync

    def read(
        self, names: Sequence[str], limits: Sequence[int], timeout_s: float
    ) -> list[bytes | OSError]:
        """Return each object, or why it cannot be read."""
        if not names:
            return []
        paths = [self._path(name) for name in names]
        ends = [limit + 1 for limit in limits]  # one more tells that it is too large
        try:
            contents = self._call("cat_ranges", timeout_s, paths, [0] * len(paths), ends)
        except Exception as error:  # noqa: BLE001  see the module
            return [_os_error(error)] * len(names)
        return [_content(each, limit) for each, limit in zip(contents, limits, strict=True)]

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        """Write an object that is not there yet, by a conditional request where the store has one."""
        try:
            self._write(name, data, timeout_s, "create")
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            # It refuses conditional requests; `Exchange` reads back what it has written.
            if not isinstance(self.read([name], [0], timeout_s)[0], FileNotFoundError):
                raise FileExistsError(errno.EEXIST, "it is there", name) from error
            self._write(name, data, timeout_s, "overwrite")

    def replace(self, name: str, data: bytes, timeout_s: float) -> None:
        """Write an object, whether it is there or not."""
        self._write(name, data, timeout_s, "overwrite")

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        """Return the names that begin with a folder's."""
        try:
            self._system.invalidate_cache()
            paths: list[str] = self._call("find", timeout_s, self._path(prefix.rstrip("/")))
        except Exception as error:  # see the module
            failure = _os_error(error)
            if isinstance(failure, FileNotFoundError):
                return []
            raise failure from error
        start = f"{self._root}/"
        return [path[len(start) :] for path in paths if path.startswith(start)]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _write(self, name: str, data: bytes, timeout_s: float, mode: str) -> None:
        path = self._path(name)
        try:
            if self._loop is None:  # sftp, ftp ...: no object stores, they need the folder first
                self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._call("pipe_file", timeout_s, path, data, mode=mode)
        except Exception as error:  # see the module
            raise _os_error(error) from error

    def _call(self, name: str, timeout_s: float, *arguments: Any, **named: Any) -> Any:
        """Call a method; one of an asynchronous file system is ended when its time is over."""
        if self._loop is None:
            return getattr(self._system, name)(*arguments, **named)
        method = getattr(self._system, f"_{name}")
        return self._loop(self._system.loop, method, *arguments, timeout=timeout_s, **named)


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

    def names(self, prefix: str, timeout_s: float) -> list[str]:  # noqa: ARG002
        """Return the names that begin with a folder's."""
        listed: list[str] = []
        with suppress(FileNotFoundError), self._folder(PurePosixPath(prefix).parts) as folder:
            for path, _, files, inner in os.fwalk(".", dir_fd=folder):
                plain = [each for each in files if _is_file(inner, each)]
                listed += [str(PurePosixPath(prefix, path, each)) for each in plain]
        return listed

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
                return _content(file.read(limit + 1), limit)
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


class WatchedFiles:
    """Objects of another store, with a notice before each request."""

    def __init__(self, files: Files, begins: Callable[[float], None]) -> None:
        """Call ``begins`` with the limit of each request, in seconds, before it."""
        self._files = files
        self._begins = begins

    def read(
        self, names: Sequence[str], limits: Sequence[int], timeout_s: float
    ) -> list[bytes | OSError]:
        """Return each object, or why it cannot be read."""
        self._begins(timeout_s)
        return self._files.read(names, limits, timeout_s)

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        """Write an object that is not there yet."""
        self._begins(timeout_s)
        self._files.create(name, data, timeout_s)

    def replace(self, name: str, data: bytes, timeout_s: float) -> None:
        """Write an object, whether it is there or not."""
        self._begins(timeout_s)
        self._files.replace(name, data, timeout_s)

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        """Return the names that begin with a folder's."""
        self._begins(timeout_s)
        return self._files.names(prefix, timeout_s)


Opener = Callable[[str], Files]
"""Returns the objects below a URL, as `open_files` does."""


def _content(content: Any, limit: int) -> bytes | OSError:
    if isinstance(content, BaseException):
        # S3 answers so for a range of an object without any bytes.
        empty = isinstance(content, OSError) and "range is not satisfiable" in str(content)
        return b"" if empty else _os_error(content)
    data = bytes(content)
    if len(data) > limit:
        return OSError(
            errno.EFBIG, f"it has more than {limit} bytes, which no object of its kind has"
        )
    return data


def _os_error(error: BaseException) -> OSError:
    """Return what went wrong as an OSError."""
    if type(error).__name__.endswith("TimeoutError"):  # asyncio's is no OSError in Python 3.10
        return TimeoutError(errno.ETIMEDOUT, "no answer in time")
    if isinstance(error, OSError):
        return OSError(errno.EIO, str(error)) if _code(error) in _PASSING else error
    if isinstance(error, NotImplementedError):
        return OSError(errno.EROFS, "its file system cannot write")
    return OSError(errno.EIO, f"{type(error).__name__}: {error}")


def _code(error: BaseException) -> str:
    """Return the code that an S3 server gave for an error, empty if none did."""
    response: Any = getattr(error.__cause__, "response", None)
    try:
        return str(response["Error"]["Code"])
    except (TypeError, KeyError):
        return ""
