"""Temporary folders named after their process, so that those of killed processes can be removed.

A process removes its folders when it exits; a process ended by SIGKILL cannot, and its files in
``/dev/shm`` take up memory until the machine restarts.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache.owner import boot_and_namespace, start_ticks

_KIND = "inductor-plugin-operands"
_NAME = re.compile(rf"{_KIND}-([0-9a-f]{{12}})-([1-9][0-9]*)-([1-9][0-9]*)-[0-9a-z_]+")


@dataclass(frozen=True)
class ProcessId:
    """A process, distinguished from later processes with the same number.

    Attributes:
        place: Where its number is valid; see `boot_and_namespace`.
        pid: Its number.
        started: Its start time, in clock ticks since boot.
    """

    place: str
    pid: int
    started: int

    @property
    def prefix(self) -> str:
        """The prefix of the names of its folders."""
        return f"{_KIND}-{self.place}-{self.pid}-{self.started}-"


def process_id(pid: int) -> ProcessId | None:
    """Return the process that has a number now; None if there is none, or no ``/proc``."""
    place, started = boot_and_namespace(), start_ticks(pid)
    return None if place is None or started is None else ProcessId(place, pid, started)


def make_folder(parent: Path) -> Path:
    """Create a folder of this process that other users cannot open.

    Raises:
        OSError: It cannot be created.
    """
    process = process_id(os.getpid())
    # Without a process in its name it is never swept.
    return Path(tempfile.mkdtemp(prefix=process.prefix if process else f"{_KIND}-", dir=parent))


def sweep(parent: Path) -> list[Path]:
    """Remove this user's folders whose process has ended; return those removed."""
    return [path for path in orphans(parent) if _remove(path)]


def orphans(parent: Path) -> list[Path]:
    """Return this user's folders whose process ran in `boot_and_namespace` and has ended, sorted."""
    paths: list[Path] = []
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            process = named_process(entry.name)
            if (
                process is None
                or process_id(process.pid) == process
                or process.place != boot_and_namespace()
            ):
                continue
            with suppress(OSError):
                is_own = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                if is_own and entry.is_dir(follow_symlinks=False):
                    paths.append(Path(entry.path))
    return sorted(paths)


def named_process(name: str) -> ProcessId | None:
    """Return the process that a folder is named after; None for any other name. Pure."""
    match = _NAME.fullmatch(name)
    return ProcessId(match[1], int(match[2]), int(match[3])) if match else None


def _remove(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
