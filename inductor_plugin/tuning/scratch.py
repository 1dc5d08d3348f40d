"""Temporary folders that name the process they serve, so that a killed process's can be removed.

A process that ends removes its folders itself; one ended by SIGKILL cannot, and what lies in
``/dev/shm`` takes memory until the machine restarts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_KIND = "inductor-plugin-operands"
_NAME = re.compile(rf"{_KIND}-([0-9a-f]{{12}})-([1-9][0-9]*)-([1-9][0-9]*)-[0-9a-z_]+")
_START = 19
"""Index of the start time among what follows the command in ``/proc/PID/stat``: field 22 of the
line, of which the command is field 2 (proc_pid_stat(5))."""


@dataclass(frozen=True)
class ProcessId:
    """One process, also after another one has got its number.

    Attributes:
        place: Where its number counts; see `boot_and_namespace`.
        pid: Its number.
        started: When it started, in clock ticks since the machine did.
    """

    place: str
    pid: int
    started: int

    @property
    def prefix(self) -> str:
        """How the names of its folders start."""
        return f"{_KIND}-{self.place}-{self.pid}-{self.started}-"


def process_id(pid: int) -> ProcessId | None:
    """Return the process that has a number now; None if there is none, or no ``/proc`` to ask."""
    place, started = boot_and_namespace(), start_ticks(pid)
    return None if place is None or started is None else ProcessId(place, pid, started)


@functools.cache
def boot_and_namespace() -> str | None:
    """Return a name for this start of the machine and this PID namespace; None without ``/proc``.

    Containers may share ``/dev/shm``, and machines a temporary folder, but not their processes: a
    number that is free here may be a living process there.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return None
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:12]


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks; None if it has ended or cannot be asked."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = line.rpartition(")")[2].split()  # the command may hold blanks and brackets
        # A zombie holds no memory and opens no file; its parent may never wait for it.
        return None if fields[0] in "ZX" else int(fields[_START])
    except (OSError, ValueError, IndexError):
        return None


def make_folder(parent: Path) -> Path:
    """Make a folder of this process, closed to others.

    Raises:
        OSError: It cannot be made.
    """
    me = process_id(os.getpid())
    # Without an owner in its name it is never swept.
    return Path(tempfile.mkdtemp(prefix=me.prefix if me else f"{_KIND}-", dir=parent))


def sweep(parent: Path) -> list[Path]:
    """Remove this user's folders whose process has ended; return those that are gone."""
    return [path for path in orphans(parent) if _remove(path)]


def orphans(parent: Path) -> list[Path]:
    """Return this user's folders whose process was one of `boot_and_namespace` and has ended, sorted."""
    found: list[Path] = []
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            named = named_process(entry.name)
            if (
                named is None
                or process_id(named.pid) == named
                or named.place != boot_and_namespace()
            ):
                continue
            with suppress(OSError):
                mine = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                if mine and entry.is_dir(follow_symlinks=False):
                    found.append(Path(entry.path))
    return sorted(found)


def named_process(name: str) -> ProcessId | None:
    """Return the process a folder's name speaks of; None if it is no such name. Pure."""
    found = _NAME.fullmatch(name)
    return ProcessId(found[1], int(found[2]), int(found[3])) if found else None


def _remove(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
