"""The groups in which a process decides about the problems of a job, in the order in which it came to them."""

from __future__ import annotations

import threading


class Roll:
    """The groups of a process, by the kind of device that they are for."""

    def __init__(self) -> None:
        """Begin with none."""
        self._guard = threading.Lock()
        self._groups: dict[str, list[str]] = {}
        self._absent: dict[str, set[int]] = {}

    def add(self, device: str, group: str) -> int | None:
        """Add a group; return how many were there before, None if it is one of them."""
        with self._guard:
            groups = self._groups.setdefault(device, [])
            if group in groups:
                return None
            groups.append(group)
            return len(groups) - 1

    def has(self, device: str, group: str) -> bool:
        """Return whether this process decides in a group."""
        with self._guard:
            return group in self._groups.get(device, ())

    def note_absence(self, group: str, part: int, *, absent: bool) -> int:
        """Note whether a part of this process can measure nothing; return by how much the group has more such processes now.

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
