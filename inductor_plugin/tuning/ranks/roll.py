"""The parts of a process in its job, and the groups in which they decide."""

from __future__ import annotations

import itertools
import threading


class Roll:
    """The groups of a process, by the kind of device that they are for."""

    def __init__(self) -> None:
        """Begin with none."""
        self._guard = threading.Lock()
        self._groups: dict[str, set[str]] = {}
        self._parts = itertools.count()
        self._absent: dict[str, set[int]] = {}

    def part(self) -> int:
        """Return a number for one more part of this process: each set of options has its own."""
        with self._guard:
            return next(self._parts)

    def add(self, device: str, group: str) -> bool:
        """Add a group; return whether it is a new one."""
        with self._guard:
            groups = self._groups.setdefault(device, set())
            is_new = group not in groups
            groups.add(group)
            return is_new

    def has(self, device: str, group: str) -> bool:
        """Return whether this process decides in a group."""
        with self._guard:
            return group in self._groups.get(device, ())

    def report_absence(self, group: str, part: int, *, absent: bool) -> int:
        """Store whether a part of this process can measure nothing; return by how much the group has more such processes now.

        A process is counted once, however many parts of it decide in the group: each set of options has one.

        Args:
            group: The group.
            part: Names the part in this process.
            absent: Whether it can measure nothing.
        """
        with self._guard:
            parts = self._absent.setdefault(group, set())
            before = bool(parts)
            if absent:
                parts.add(part)
            else:
                parts.discard(part)
            return bool(parts) - before
