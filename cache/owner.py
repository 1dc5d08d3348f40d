"""Which user a file belongs to; which process an unfinished one, by its name, and whether that process still runs."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path

_NAME = re.compile(r"([0-9a-f]{12})-([1-9][0-9]*)-([1-9][0-9]*)-[0-9a-f]+")
_OLD_NAME = re.compile(r"([1-9][0-9]*)-[0-9a-f]{16}")
"""Names by earlier checkouts of 0.2.0 and before, and by this one where there is no ``/proc``."""

_START = 19
"""Index of the start time among the fields after the command in ``/proc/PID/stat``: field 22 of the
line; the command is field 2 (proc_pid_stat(5))."""


def belongs_to_user(status: os.stat_result) -> bool:
    """Return whether a file belongs to the user that this process acts as."""
    return status.st_uid == os.geteuid()


def prefix() -> str:
    """Return the start of the names of this process's files."""
    return prefix_of(os.getpid())


def has_ended(name: str) -> bool | None:
    """Return whether the process that a file is named after has ended.

    None if that cannot be known: it ran on another machine, in another container or before the machine
    was started again, or the name is none of this module's.
    """
    match = _NAME.fullmatch(name)
    if match is not None:
        if match[1] != boot_and_namespace():
            return None
        return start_ticks(int(match[2])) != int(match[3])
    match = _OLD_NAME.fullmatch(name)
    # An old name may be of a process elsewhere, so that only a running one here says something.
    return False if match is not None and start_ticks(int(match[1])) is not None else None


@functools.cache
def boot_and_namespace() -> str | None:
    """Return a name for this boot of the machine and this PID namespace; None without ``/proc``.

    Containers may share ``/dev/shm``, and machines a temporary folder, but not their processes: a
    number that is unused here may be a running process there.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return None
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:12]


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks; None if it has ended or cannot be read."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = line.rpartition(")")[2].split()  # the command may hold blanks and brackets
        # A zombie has no memory and no open files; its parent may never wait for it.
        return None if fields[0] in "ZX" else int(fields[_START])
    except (OSError, ValueError, IndexError):
        return None


@functools.lru_cache(maxsize=1)
def prefix_of(pid: int) -> str:
    """Return the start of the names of a process's files; its number alone without ``/proc``."""
    place, started = boot_and_namespace(), start_ticks(pid)
    return f"{pid}-" if place is None or started is None else f"{place}-{pid}-{started}-"
