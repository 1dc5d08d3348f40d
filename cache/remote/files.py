"""The file system of a remote, by its URL: the one module that uses fsspec.

What its file systems raise (botocore, aiohttp, google ...) has no common base: whatever goes wrong becomes an OSError here.
"""

from __future__ import annotations

import errno
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from inductor_plugin.cache.remote.disk import LocalFiles, bounded
from inductor_plugin.cache.remote.loop import client_loop
from inductor_plugin.errors import CacheError, without_user

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure"}
"""The package's extra that brings the file system of a protocol."""

_PASSING = ("ExpiredToken", "InvalidToken", "NoSuchBucket", "RequestTimeTooSkewed")
"""Codes of S3 that s3fs takes for a missing object or a missing right, though they concern all requests and may pass."""


class WriteRefusedError(OSError):
    """A store may be read, and not written to."""


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

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        """Return the own names of the folders that a folder has; none if there is no such folder.

        Args:
            folder: Its name, with a slash at its end.
            timeout_s: As of the others.

        Raises:
            OSError: They cannot be listed.
        """
        ...

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        """Return the names that begin so, none if there is no such folder.

        Args:
            prefix: The name of a folder, with a slash at its end, and the first letters of names in it, or none.
            timeout_s: As of the others.

        Raises:
            TimeoutError: It takes longer to list them; fewer may be listed in time.
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
            f"{without_user(url)} needs a package that is not installed ({error}): {remedy(protocol)}"
        ) from error
    except Exception as error:  # whatever a file system's constructor raises
        raise CacheError(
            f"{without_user(url)} cannot be opened: {type(error).__name__}: {error}; correct remote_url"
        ) from error
    if protocol in ("file", "local"):
        return LocalFiles(Path(root))
    return FsspecFiles(system, root)


def remedy(protocol: str) -> str:
    """Return the command that installs what a protocol needs."""
    if extra := EXTRAS.get(protocol):
        return f'pip install "inductor-plugin[{extra}]"'
    return f"install fsspec's file system for {protocol}://"


def _options(protocol: str) -> dict[str, Any]:
    """Return arguments of a file system's constructor besides those that fsspec's configuration names.

    Raises:
        ImportError, ValueError: There is no such file system here.
    """
    if protocol in ("file", "local"):
        return {"auto_mkdir": True}
    registry: Any = importlib.import_module("fsspec.registry")
    known: Any = registry.get_filesystem_class(protocol)
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

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        """Return the own names of the folders that a folder has."""
        inside = self._listed("ls", timeout_s, folder, detail=True)
        paths = [str(each["name"]).rstrip("/") for each in inside if each["type"] == "directory"]
        return [path.rpartition("/")[2] for path in paths]

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        """Return the names that begin so."""
        folder, _, letters = prefix.rpartition("/")
        # Object stores narrow a listing; the others have no limit of time here.
        narrowed = {"prefix": letters} if letters and self._loop is not None else {}
        paths: list[str] = self._listed("find", timeout_s, folder, **narrowed)
        start = self._path(prefix)
        return [path[len(self._root) + 1 :] for path in paths if path.startswith(start)]

    def _listed(self, method: str, timeout_s: float, folder: str, **named: Any) -> list[Any]:
        """Return what a method lists of a folder; nothing if there is no such folder.

        Raises:
            OSError: It cannot be listed.
        """
        try:
            self._system.invalidate_cache()
            return self._call(method, timeout_s, self._path(folder.rstrip("/")), **named)
        except Exception as error:  # see the module
            failure = _os_error(error)
            if isinstance(failure, FileNotFoundError):
                return []
            raise failure from error

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

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        """Return the own names of the folders that a folder has."""
        self._begins(timeout_s)
        return self._files.folders(folder, timeout_s)

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        """Return the names that begin so."""
        self._begins(timeout_s)
        return self._files.names(prefix, timeout_s)


Opener = Callable[[str], Files]
"""Returns the objects below a URL, as `open_files` does."""


def _content(content: Any, limit: int) -> bytes | OSError:
    if isinstance(content, BaseException):
        # S3 answers so for a range of an object without any bytes.
        empty = isinstance(content, OSError) and "range is not satisfiable" in str(content)
        return b"" if empty else _os_error(content)
    return bounded(bytes(content), limit)


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
