"""Objects of a remote in memory, and faults of a store."""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from inductor_plugin.cache.remote.files import Files


@dataclass
class MemoryFiles:
    """A store that compares before it writes, as S3 does."""

    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    requests: Counter[str] = field(default_factory=Counter[str])
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def read(
        self, names: Sequence[str], limits: Sequence[int], timeout_s: float
    ) -> list[bytes | OSError]:
        with self._guard:
            self.requests["read"] += len(names)
            return [self._read(name, limit) for name, limit in zip(names, limits, strict=True)]

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        with self._guard:
            self.requests["create"] += 1
            if name in self.objects:
                raise FileExistsError(name)
            self.objects[name] = data

    def replace(self, name: str, data: bytes, timeout_s: float) -> None:
        with self._guard:
            self.requests["replace"] += 1
            self.objects[name] = data

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        with self._guard:
            self.requests["list"] += 1
            inside = [name[len(folder) :] for name in self.objects if name.startswith(folder)]
            return sorted({name.partition("/")[0] for name in inside if "/" in name})

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        with self._guard:
            self.requests["list"] += 1
            return sorted(name for name in self.objects if name.startswith(prefix))

    def _read(self, name: str, limit: int) -> bytes | OSError:
        if name not in self.objects:
            return FileNotFoundError(name)
        data = self.objects[name]
        return OSError(errno.EFBIG, "too large") if len(data) > limit else data


@dataclass
class FaultyFiles:
    """Another store, with faults.

    Attributes:
        inner: The other store.
        delay_s: Seconds that every request takes.
        failing: Requests that fail, from now on; negative for all.
        refuses: Whether nothing may be written.
        cut: Number of reads that return half an object.
        flipped: Number of reads that return an object with one other byte.
        overwrites: Whether it does not compare before it writes.
        hides: Whether it denies what is missing, as S3 does where the bucket may not be listed.
        held: Requests wait until this is set, if there is one.
    """

    inner: Files
    delay_s: float = 0.0
    failing: int = 0
    refuses: bool = False
    cut: int = 0
    flipped: int = 0
    overwrites: bool = False
    hides: bool = False
    held: threading.Event | None = None

    def read(
        self, names: Sequence[str], limits: Sequence[int], timeout_s: float
    ) -> list[bytes | OSError]:
        try:
            self._delay(timeout_s)
        except OSError as error:
            return [error] * len(names)
        return [self._damaged(each) for each in self.inner.read(names, limits, timeout_s)]

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        self._delay(timeout_s)
        if self.refuses:
            raise PermissionError("Access Denied")
        if self.overwrites and isinstance(self.inner, MemoryFiles):
            self.inner.objects[name] = data
            return
        self.inner.create(name, data, timeout_s)

    def replace(self, name: str, data: bytes, timeout_s: float) -> None:
        self._delay(timeout_s)
        if self.refuses:
            raise PermissionError("Access Denied")
        self.inner.replace(name, data, timeout_s)

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        self._delay(timeout_s)
        return self.inner.folders(folder, timeout_s)

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        self._delay(timeout_s)
        return self.inner.names(prefix, timeout_s)

    def _delay(self, timeout_s: float) -> None:
        if self.held is not None:
            self.held.wait()
        time.sleep(min(self.delay_s, timeout_s))
        if self.delay_s > timeout_s:
            raise TimeoutError("no answer in time")
        if self.failing:
            self.failing -= 1
            raise OSError(5, "500 Internal Server Error")

    def _damaged(self, content: bytes | OSError) -> bytes | OSError:
        if isinstance(content, OSError):
            is_hidden = self.hides and isinstance(content, FileNotFoundError)
            return PermissionError("Forbidden") if is_hidden else content
        if self.cut:
            self.cut -= 1
            return content[: len(content) // 2]
        if self.flipped:
            self.flipped -= 1
            at = len(content) // 2
            return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        return content
