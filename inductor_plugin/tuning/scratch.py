"""Temporary folders named after their process, so that those of killed processes can be removed.

A process removes its folders when it exits; a process ended by SIGKILL cannot, and its files in
``/dev/shm`` take up memory until the machine restarts, those of a build a temporary folder for good.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache.owner import belongs_to_user, boot_and_namespace, start_ticks

_OPERANDS = "inductor-plugin-operands"
BUILD = "inductor-plugin-build"
_NAME = re.compile(
    rf"(?:{_OPERANDS}|{BUILD})-([0-9a-f]{{12}})-([1-9][0-9]*)-([1-9][0-9]*)-[0-9a-z_]+"
)
_SWEPT: set[Path] = set()
"""Folders this process has already swept; once is enough."""


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
        """The prefix of the names of its folders of operands."""
        return self.prefix_of(_OPERANDS)

    def prefix_of(self, kind: str) -> str:
        """Return the prefix of the names of its folders of a kind."""
        return f"{kind}-{self.place}-{self.pid}-{self.started}-"


def process_id(pid: int) -> ProcessId | None:
    """Return the process that has a number now; None if there is none, or no ``/proc``."""
    place, started = boot_and_namespace(), start_ticks(pid)
    return None if place is None or started is None else ProcessId(place, pid, started)


def make_folder(parent: Path, kind: str = _OPERANDS) -> Path:
    """Create a folder of this process that other users cannot open.

    Args:
        parent: Where to create it.
        kind: What it is for, the beginning of its name: operands, or `BUILD`.

    Raises:
        OSError: It cannot be created.
    """
    process = process_id(os.getpid())
    # Without a process in its name it is never swept.
    prefix = process.prefix_of(kind) if process else f"{kind}-"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


@contextmanager
def build_folder() -> Generator[Path]:
    """Create a folder of this process for one build, and remove it after the block."""
    parent = Path(tempfile.gettempdir())
    sweep_once(parent)
    folder = make_folder(parent, BUILD)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_once(parent: Path) -> None:
    """Sweep a folder unless this process has done so; 0.2 ms with twenty folders in use."""
    if parent not in _SWEPT:
        _SWEPT.add(parent)
        sweep(parent)


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
                is_own = belongs_to_user(entry.stat(follow_symlinks=False))
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
